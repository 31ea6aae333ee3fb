"""Nodes that set the number of items: the first ones, again, without end."""

__all__: list[str] = []
