"""How many items there are: the first ones, again, without end."""

__all__: list[str] = []
