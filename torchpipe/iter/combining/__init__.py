"""Several streams into one. A file for each node."""

__all__: list[str] = []
