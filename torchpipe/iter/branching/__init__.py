"""One stream into several."""

__all__: list[str] = []
