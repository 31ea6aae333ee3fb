"""Several sources in proportion, several files at a time. A file for each node."""

__all__: list[str] = []
