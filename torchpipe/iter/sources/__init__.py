"""Where items come from: objects in memory, file names, tables, other libraries' datasets. A file for each node."""

__all__: list[str] = []
