"""What a node is: its description, its iterator, the context of a pass, and what may be asked of any node."""

__all__: list[str] = []  # import its modules
