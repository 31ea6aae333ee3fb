"""What several rooms of nodes share."""

__all__: list[str] = []
