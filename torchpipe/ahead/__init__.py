"""Running ahead of a consumer in threads, with a cursor for what was handed out."""

__all__: list[str] = []  # import its modules
