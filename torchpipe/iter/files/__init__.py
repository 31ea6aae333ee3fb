"""Files, here and in object stores and on web servers: listed, opened, written."""

__all__: list[str] = []
