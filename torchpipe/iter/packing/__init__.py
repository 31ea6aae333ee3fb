"""Items of many lengths: packed, padded, sorted into batches by length or cost. A file for each node."""

__all__: list[str] = []
