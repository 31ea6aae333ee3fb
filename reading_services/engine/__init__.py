"""Decisions alone: which worker begins what, from which cursor, and what a death means. Runs in the main process.

Imports nothing of processes, sockets or signals: what runs shards is behind :mod:`reading_services.engine.workers`.
"""

__all__: list[str] = []
