"""Helpers with the names of ``torchdata.datapipes.utils``. Runs wherever they are called."""

from __future__ import annotations

from functools import partial
from typing import Any

from torchpipe.compat.torch_datapipes import TorchIterDataPipe, TorchMapDataPipe
from torchpipe.compat.torch_private import pin_memory as torchs_pin_memory
from torchpipe.formats.storage.streams import StreamWrapper
from torchpipe.graph.draw import to_dot
from torchpipe.node.functional import forms, lookup
from torchpipe.node.traits import DataPipe

__all__ = ["StreamWrapper", "janitor", "offer_to_torchs_nodes", "pin_memory_fn", "to_graph"]


def janitor(obj: Any) -> None:
    """Close the open streams (:class:`StreamWrapper`) in ``obj``, also in its lists, tuples and dicts."""
    StreamWrapper.close_streams(obj)  # type: ignore[no-untyped-call]


def offer_to_torchs_nodes() -> None:
    """Let nodes that derive from torch's own classes have these forms too, as importing torchdata did.

    They are registered with torch, but for names that are registered there already. A name can be registered once, so
    call this when your own nodes are.
    """
    kinds: dict[str, Any] = {"iter": TorchIterDataPipe, "map": TorchMapDataPipe}
    for kind, base in kinds.items():
        for name in forms(kind):
            if name not in base.functions:
                base.register_function(name, partial(_build, kind, name))


def _build(kind: str, name: str, node: Any, *args: Any, **kwargs: Any) -> Any:
    form = lookup(kind, name, node)
    assert form is not None  # names stay
    return form(*args, **kwargs)


def pin_memory_fn(data: Any, device: Any = None) -> Any:
    """The tensors in ``data``, also in its lists, tuples, dicts and objects with ``pin_memory()``, in pinned memory."""
    return torchs_pin_memory(data, device)  # type: ignore[no-untyped-call]


def to_graph(dp: DataPipe, *, debug: bool = False) -> Any:
    """A picture of the graph that ends in ``dp``: a ``graphviz.Source``, which notebooks show.

    The branches of ``fork`` and the like are left out unless ``debug``. :func:`torchpipe.graph.to_dot` is its text, and
    needs nothing.

    Raises: ModuleNotFoundError without the package ``graphviz``.
    """
    try:
        import graphviz
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "The package `graphviz` is required to be installed to use this function: pip install graphviz. "
            "torchpipe.graph.to_dot(dp) gives the text of the picture without it",
            name="graphviz",
        ) from None
    return graphviz.Source(to_dot(dp, debug=debug))
