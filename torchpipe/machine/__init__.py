"""The machine's resources, and this process's use of them: cores, memory, limits of containers, the bytes of items."""

__all__ = []
