"""Several sources in proportion, several files at a time."""

__all__: list[str] = []
