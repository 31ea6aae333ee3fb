"""Reading many samples out of one file, from any of them on: tar, zip, TFRecord."""

__all__: list[str] = []
