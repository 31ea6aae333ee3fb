"""Reading by index: positions are chosen first, and only the items that are handed on are made."""

from __future__ import annotations

__all__: list[str] = []  # import its modules
