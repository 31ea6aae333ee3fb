"""Items of many lengths: packed, padded, sorted into batches by length or cost."""

__all__: list[str] = []
