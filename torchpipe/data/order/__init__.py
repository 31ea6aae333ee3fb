"""The order of an epoch: what is drawn, sampled and carried over."""

__all__: list[str] = []
