"""How a graph is executed: shards, what is dispatched to them, the merge, and reading services."""

__all__: list[str] = []  # import its modules
