"""Items together: batches, collated or apart."""

__all__: list[str] = []
