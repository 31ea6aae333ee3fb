"""Archives and compressed files, read as streams. A file for each node."""

__all__: list[str] = []
