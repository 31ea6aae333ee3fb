"""The traits of a node: attributes with defaults, for a class to set. CONTRIBUTING.md has the list.

Runs in every process. ``traits`` asks, and answers for nodes that are derived from torch's own classes as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

__all__ = ["NodeProtocol"]


class NodeProtocol:
    """Base of all of torchpipe's nodes.

    ``by_index``, ``seeded`` and ``yields_new_tensors`` are asked of the node, and may be properties. The others are
    asked of its class: what a node keeps in an attribute of such a name is its own affair.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Raises: TypeError if a base says something that the defaults here would hide."""
        super().__init_subclass__(**options)
        for base in cls.__mro__[cls.__mro__.index(NodeProtocol) + 1 :]:
            hidden = [name for name in vars(NodeProtocol) if name in vars(base) and not name.startswith("_")]
            if hidden:
                raise TypeError(
                    f"{cls.__name__}: {', '.join(hidden)} of {base.__name__} would be hidden by the default: let "
                    f"{base.__name__} stand before the node's class among the bases"
                )

    alters_stream: ClassVar[bool] = True
    """False if items and their order are the same without it: it is then no part of the graph's identity."""

    by_index: bool = False
    """True for a source that is read by index, so that nobody makes what another shard keeps."""

    dispatches: ClassVar[bool] = False
    """True if it, and all before it, runs once for all shards, whom the items are dealt to."""

    divided_by: ClassVar[str] = ""
    """The form that lets each shard read its own part of what this source reads. A sharding point straight after it
    passes over items without making them, and reads all of it.
    """

    divides: ClassVar[bool] = False
    """True for a sharding point, whose iterator keeps one shard's part (``context.share``). A class that has torch's
    ``apply_sharding`` alone is one too: it is called on each pass's copy. ``len()`` counts the items of all shards.
    """

    fingerprint_data: ClassVar[tuple[str, ...]] = ()
    """Its attributes that hold data: by their length and a sample of their items they are part of the graph's identity.
    All other attributes count in full.
    """

    fingerprint_ignores: ClassVar[tuple[str, ...]] = ()
    """Its attributes that are no part of the graph's identity, since they do not alter the stream."""

    inputs: ClassVar[tuple[str, ...]] = ()
    """The attributes that hold its inputs, in the order in which its iterator gets them: as often as they stand there.
    By default all nodes among its attributes, each once, in the order in which they were set.
    """

    one_to_one: ClassVar[bool] = False
    """True if it makes each item of one item of each input, in their order, and of nothing else."""

    pairs: ClassVar[bool] = True
    """True if items of its inputs, if there are several, belong together by their positions: ``on_error`` skips of all
    what it skips of one. False where an item is of one input alone, as with ``concat``.
    """

    runs_in_main: ClassVar[bool] = False
    """True if it must run in the user's process, and all after it."""

    seeded: bool | None = None
    """True if the loader's seed and epoch decide which items it gives, or in which order. None: they do if its class
    has ``set_seed``, which is then called on each pass's copy.
    """

    selects: ClassVar[bool] = False
    """True if it hands on what it reads, some or in another order, and positions where its inputs have them."""

    shared: ClassVar[bool] = False
    """True if the nodes that read it share one pass over it: it reads its input once, however many there are."""

    yields_new_tensors: bool = False
    """True if each item's tensors have memory of their own, which no code writes to again: they are sent from there."""

    def check_shards(self, num_shards: int = 1) -> None:
        """Raises: GraphError if it cannot be divided among so many shards. Asked of what stands before a sharding point
        when a loader is built, if that number is fixed.
        """

    def explained(self) -> str:
        """The text of ``loader.explain()`` about it, beside its name."""
        return ""

    def made_of(self) -> Mapping[str, Any]:
        """The data that its items are made of, besides its inputs', by name: for ``cache``, which keeps them for as
        long as none of these change. By default all attributes. ``content_digest`` says what these may hold, and has
        what to put in the place of something that may change unseen.
        """
        return vars(self)

    def is_replicable(self) -> bool:
        """True if every shard may have a copy; else it runs as with ``runs_in_main``. The same, in torchdata's way."""
        return True
