"""The storage of files (on disk, behind a URL, in a bucket): finds, opens and writes them."""

__all__: list[str] = []
