"""Shards that are written whole or not at all, by a run that goes on behind the last whole one."""

__all__: list[str] = []
