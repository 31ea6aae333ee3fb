"""What runs in worker processes and in the dispatcher."""

__all__: list[str] = []  # import its modules
