"""Nodes that keep the items that were made once."""

__all__: list[str] = []
