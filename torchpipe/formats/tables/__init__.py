"""Tables: blocks of rows, columns as arrays."""

__all__: list[str] = []
