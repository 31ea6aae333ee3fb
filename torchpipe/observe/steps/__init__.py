"""Which samples the steps of an epoch have, the items of steps made again, and what each ``mix`` has drawn."""

__all__ = []
