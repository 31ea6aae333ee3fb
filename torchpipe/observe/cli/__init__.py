"""The command line: ``torchpipe explain``, ``state show``, ``state diff`` and ``doctor``. See ``main``."""

__all__ = []
