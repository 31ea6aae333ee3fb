"""One item at a time: change it, drop it, make several of it."""

__all__: list[str] = []
