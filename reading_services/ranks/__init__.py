"""What the reading services of several ranks agree on."""

__all__: list[str] = []
