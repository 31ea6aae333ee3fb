"""For torch_xla's users: drop-in loaders, one loader for several devices, and ``spawn`` with a shared dataset."""

from __future__ import annotations

__all__: list[str] = []  # import its modules
