"""Nodes of torchdata's for which torchpipe has a better one, by what they are about."""

__all__: list[str] = []
