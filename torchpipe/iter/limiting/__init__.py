"""How many items there are: the first ones, again, without end. A file for each node."""

__all__: list[str] = []
