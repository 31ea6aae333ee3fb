"""Items together: batches, collated or apart. A file for each node."""

__all__: list[str] = []
