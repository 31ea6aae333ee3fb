"""One stream into several. A file for each node."""

__all__: list[str] = []
