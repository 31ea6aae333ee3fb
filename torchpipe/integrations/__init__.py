"""torchpipe's loaders inside the trainers that people use: one module for each, imported only when it is asked for."""

from __future__ import annotations

__all__: list[str] = []
