"""Where items come from: objects in memory, file names, tables, other libraries' datasets."""

__all__: list[str] = []
