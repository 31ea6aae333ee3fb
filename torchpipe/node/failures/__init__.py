"""The failures of a node."""

__all__: list[str] = []
