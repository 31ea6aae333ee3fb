"""Nodes for remote files: object stores, web servers."""

__all__: list[str] = []
