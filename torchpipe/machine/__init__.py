"""What the machine has and this process takes: cores, memory, limits of containers, the bytes of items."""

__all__ = []
