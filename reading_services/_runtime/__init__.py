"""The multi-process runtime: who runs where, and what they say to each other. Private to ``reading_services``."""

__all__: list[str] = []  # import its modules
