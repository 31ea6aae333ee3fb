"""What was made once is kept. A file for each node."""

__all__: list[str] = []
