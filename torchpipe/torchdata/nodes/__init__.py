"""Nodes of torchdata's that torchpipe's own make unnecessary. A file for each node, or close family."""

__all__: list[str] = []
