"""The places in which files lie, and how they are opened."""

__all__: list[str] = []
