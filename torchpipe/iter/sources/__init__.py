"""The sources of items: objects in memory, file names, tables, other libraries' datasets."""

__all__: list[str] = []
