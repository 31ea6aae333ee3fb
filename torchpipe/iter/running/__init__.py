"""When and where items are made: ahead, on a device."""

__all__: list[str] = []
