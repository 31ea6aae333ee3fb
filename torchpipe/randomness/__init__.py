"""Random streams: one seed for all of them, and the global random states of the process."""

__all__: list[str] = []  # import its modules
