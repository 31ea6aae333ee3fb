"""Reading many samples out of one file, from any of them on: tar, zip, TFRecord. A file for each node."""

__all__: list[str] = []
