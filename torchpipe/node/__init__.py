"""Nodes: their descriptions, their iterators, the context of a pass, and the questions that any node answers."""

__all__: list[str] = []  # import its modules
