"""The objects that users hold: ``DataLoader2``, its iterator and its state."""

__all__: list[str] = []  # import its modules
