"""The number of items of a stream: the first ones, again, without end."""

__all__: list[str] = []
