"""torch's ``DataLoader`` on torchpipe's engine."""

from __future__ import annotations

__all__: list[str] = []  # import its modules
