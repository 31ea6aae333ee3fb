"""Random streams: one seed for all of them, and the global random states of the process."""

from __future__ import annotations

__all__: list[str] = []  # import its modules
