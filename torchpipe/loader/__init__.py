"""What users hold: ``DataLoader2``, its iterator and its state."""

from __future__ import annotations

__all__: list[str] = []  # import its modules
