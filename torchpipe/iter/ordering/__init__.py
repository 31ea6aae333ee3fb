"""The order of items, and who has which. A file for each node."""

__all__: list[str] = []
