"""The order of items, and who has which."""

__all__: list[str] = []
