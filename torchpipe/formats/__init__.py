"""Formats of files: records, and the positions between them to which a reader can go back. No nodes."""

__all__: list[str] = []  # import its modules
