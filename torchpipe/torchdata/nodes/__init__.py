"""Nodes of torchdata's for which torchpipe has a better one. A file for each node, or close family."""

__all__: list[str] = []
