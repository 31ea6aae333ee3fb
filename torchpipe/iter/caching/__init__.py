"""Items kept for later epochs and runs. A file for each node."""

__all__: list[str] = []
