"""The execution of a graph: shards, the items dispatched to them, the merge, and reading services."""

__all__: list[str] = []  # import its modules
