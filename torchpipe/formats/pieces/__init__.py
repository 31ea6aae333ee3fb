"""Pieces of files, and the plan of all of them that is made with a graph."""

__all__: list[str] = []
