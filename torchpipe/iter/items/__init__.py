"""One item at a time: change it, drop it, make several of it. A file for each node."""

__all__: list[str] = []
