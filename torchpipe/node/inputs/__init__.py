"""Where a node's inputs are found."""

__all__: list[str] = []
