"""Reading by index: positions are chosen first, and only the items that are handed on are made."""

__all__: list[str] = []  # import its modules
