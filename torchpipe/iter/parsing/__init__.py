"""Nodes that read open files: lines, tables, paragraphs, JSON."""

__all__: list[str] = []
