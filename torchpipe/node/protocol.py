"""What a node says of itself: attributes with defaults, for a class to set. CONTRIBUTING.md has the list.

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
    """Would items or their order differ without it? False: it is no part of the graph's identity."""

    by_index: bool = False
    """Is it a source that is read by index, so that nobody makes what another shard keeps?"""

    dispatches: ClassVar[bool] = False
    """Is all before it, and it, to run once for all shards, whom the items are dealt to?"""

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
    """Does it make each item of one item of each input, in their order, and of nothing else?"""

    pairs: ClassVar[bool] = True
    """Do items of its inputs, if there are several, belong together by their places? Then ``on_error`` leaves out of
    all what it leaves out of one. False where an item is of one input alone, as with ``concat``.
    """

    runs_in_main: ClassVar[bool] = False
    """Must it run in the user's process, and all after it?"""

    seeded: bool | None = None
    """Do the loader's seed and epoch decide which items it gives, or in which order? None: they do if its class has
    ``set_seed``, which is then called on each pass's copy.
    """

    selects: ClassVar[bool] = False
    """Does it hand on what it reads, some or in another order, and positions where its inputs have them?"""

    shared: ClassVar[bool] = False
    """Do the nodes that read it share one pass over it? It reads its input once, however many there are."""

    yields_new_tensors: bool = False
    """Are the tensors in its items held by nobody else, so that they can be sent from where they are?"""

    def made_of(self) -> Mapping[str, Any]:
        """What its items are made of besides those of its inputs, by name: for ``cache``, which keeps them for as long
        as none of that changes. By default all attributes. ``content_digest`` says what these may hold, and has what to
        put in the place of something that may change unseen.
        """
        return vars(self)

    def is_replicable(self) -> bool:
        """May every shard have a copy? Else it runs as ``runs_in_main`` says; the same, in torchdata's way."""
        return True
