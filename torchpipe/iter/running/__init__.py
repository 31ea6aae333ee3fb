"""When and where items are made: ahead, on a device. A file for each node."""

__all__: list[str] = []
