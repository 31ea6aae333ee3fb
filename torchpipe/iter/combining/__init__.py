"""Several streams into one."""

__all__: list[str] = []
