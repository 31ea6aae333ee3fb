"""``torchdata.datapipes.utils``: helpers for nodes' streams and pictures."""

from torchpipe.utils import StreamWrapper, janitor, pin_memory_fn, to_graph

__all__ = ["StreamWrapper", "janitor", "pin_memory_fn", "to_graph"]
