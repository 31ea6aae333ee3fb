"""What stands in open files: lines, tables, paragraphs, JSON. A file for each node."""

__all__: list[str] = []
