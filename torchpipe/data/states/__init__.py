"""What a ``DataLoader`` saves and loads."""

__all__: list[str] = []
