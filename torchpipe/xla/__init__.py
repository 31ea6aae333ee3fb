"""For torch_xla's users: drop-in loaders, one loader for several devices, and ``spawn`` with a shared dataset."""

__all__: list[str] = []  # import its modules
