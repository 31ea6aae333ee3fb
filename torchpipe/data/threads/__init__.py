"""Worker threads (``worker_method="thread"``)."""

__all__: list[str] = []
