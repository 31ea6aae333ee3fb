"""Parts that several packages of nodes share."""

__all__: list[str] = []
