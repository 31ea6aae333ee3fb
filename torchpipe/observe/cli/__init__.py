"""The command line: ``torchpipe explain``, ``state show``, ``state diff``, ``doctor``, ``audit``. See ``main``."""

__all__ = []
