"""Opening, reading and writing files, text in them, archives of them. A file for each node."""

__all__: list[str] = []
