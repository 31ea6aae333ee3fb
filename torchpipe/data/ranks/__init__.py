"""A ``DataLoader`` among the ranks of ``torch.distributed``."""

__all__: list[str] = []
