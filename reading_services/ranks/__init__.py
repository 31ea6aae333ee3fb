"""The agreement of the reading services of several ranks."""

__all__: list[str] = []
