"""How things travel between processes: messages, items, errors, the graph. Runs on both sides."""

__all__: list[str] = []  # import its modules
