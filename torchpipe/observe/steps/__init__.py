"""The samples of an epoch's steps, the items of steps made again, and the draws of each ``mix``."""

__all__ = []
