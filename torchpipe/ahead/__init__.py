"""Running ahead of a consumer in threads, with a cursor for what was handed out."""

from __future__ import annotations

__all__: list[str] = []  # import its modules
