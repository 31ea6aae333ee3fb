"""Archives and compressed files, read as streams."""

__all__: list[str] = []
