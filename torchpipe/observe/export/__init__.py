"""A loader's figures for tools that watch many runs; users import these from ``torchpipe.export``."""

__all__ = []
