"""Workers that are processes of this machine: how they start, talk, share memory and end."""

__all__: list[str] = []
