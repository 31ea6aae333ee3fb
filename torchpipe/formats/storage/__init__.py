"""Where files are stored (on disk, behind a URL, in a bucket), and how they are found, opened and written."""

__all__: list[str] = []
