"""What becomes of a node's failures."""

__all__: list[str] = []
