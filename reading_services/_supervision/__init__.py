"""How the main process starts, watches, restarts and ends worker processes, and what it knows of their shards."""

__all__: list[str] = []  # import its modules
