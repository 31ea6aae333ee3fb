"""The claims in a state, beside the loader's own part. Runs in the user's process.

The state is the loader's, as it was before the oldest open claim or up to an eighth of ``ahead`` earlier, since not
every position is remembered, and the numbers of the open ones. With 10 items given, of which 3 and 7 are open, and the
loader's state before item 2: ``first`` (0, 2), ``following`` (0, 10), ``open`` [(0, 3), (0, 7)]. A resume goes to item
2, passes over 2, gives 3, passes over 4 to 6, gives 7, passes over 8 and 9, and goes on. Each epoch that has open
claims has a loader's state of its own (``later``), since draws between two epochs may fix the order of the second.

Also here: what the two loaders differ in for claims, whose items they have and who makes them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from torch.utils.data import IterDataPipe

from torchpipe.compat.torch_private import is_iterable, unwrapped
from torchpipe.data.order.samplers import parts_of, ranks_of_sampler
from torchpipe.data.ranks.batches import RankedSampler
from torchpipe.data.ranks.graph import rank_and_ranks
from torchpipe.errors import StateError, StateMismatchError
from torchpipe.loader.dataloader2 import DataLoader2
from torchpipe.loader.driven import Driven
from torchpipe.state.codec import decode, encode, from_text

__all__ = ["Item", "SavedClaims", "check_loader", "makes_items", "ranks_of_claims"]


def check_loader(loader: Any) -> None:
    """Raises: TypeError for another library's; ValueError for a loader whose items come in any order, and for one whose
    ranks wait for each other.
    """
    if not isinstance(loader, Driven):
        raise TypeError(f"claims are of a DataLoader or a DataLoader2 of torchpipe, got {loader!r:.200}")
    if not getattr(loader, "in_order", True):
        raise ValueError(
            "claims need in_order=True: with in_order=False items have no number that another run would give them"
        )
    if advice := _own_pace(loader):
        raise ValueError(
            "each rank takes claims at its own pace, and the ranks of this loader begin epochs together: " + advice
        )


def _own_pace(loader: Any) -> str:
    """The change that gives ranks a pace of their own, where they have none, as text."""
    if isinstance(loader, DataLoader2):
        together = loader.reading_service.agrees and loader.reading_service.world_size > 1
        return together * "use OrdinalReadingService(seed, rank, ranks) instead of DistributedReadingService"
    if isinstance(loader.sampler, RankedSampler) and loader.sampler.num_replicas > 1:
        return "give a sampler instead of distributed=, DistributedSampler(dataset, ranks, rank)"
    if (
        is_iterable(loader)
        and isinstance(loader.dataset, IterDataPipe)
        and rank_and_ranks(unwrapped(loader.dataset))[1] > 1
    ):
        return "give the graph to DataLoader2 with OrdinalReadingService(seed, rank, ranks)"
    return ""


def makes_items(loader: Any) -> bool:
    """True if the loader's items are made in this process."""
    if isinstance(loader, DataLoader2):
        return loader.reading_service.figures().workers == 0
    return bool(loader.num_workers == 0)


def ranks_of_claims(loader: Any) -> list[int]:
    """[rank, ranks, batch size]: by which claims are counted."""
    if isinstance(loader, DataLoader2):
        return [loader.reading_service.rank, loader.reading_service.world_size, 1]
    ranks, rank = ranks_of_sampler([loader.dataset, *parts_of(loader.sampler), *parts_of(loader.batch_sampler)])
    return [rank, ranks, loader.batch_size or 0]


Item: TypeAlias = tuple[int, int]  # (epoch, ordinal)


@dataclass(frozen=True, kw_only=True)
class SavedClaims:
    """``first``: the item that the loader's state is before; what is before ``following``, and not ``open``, was done.

    ``later``: for later epochs, (item, the loader's state before it). ``ranks``: [rank, ranks, batch size] of the
    loader. Not saved: ``allow_pickle``, whether it was so read, and ``own``, the loader's state beside it.
    """

    first: Item
    following: Item
    open: list[Item]
    later: list[tuple[Item, dict[str, Any]]]
    version: int
    counts: dict[str, int]
    reasons: dict[str, int]
    results: list[tuple[Item, list[Any]]]
    ranks: list[int]
    allow_pickle: bool = False
    own: dict[str, Any] | None = None

    def encoded(self) -> bytes:
        plain = {name: getattr(self, name) for name in _NAMES}
        pairs = {name: [[list(item), value] for item, value in plain[name]] for name in ("later", "results")}
        items = {"first": list(self.first), "following": list(self.following), "open": [*map(list, self.open)]}
        return encode(plain | pairs | items)

    @classmethod
    def read(cls, loader: Any, text: Any, own: dict[str, Any], allow_pickle: bool) -> SavedClaims:
        """The claims that stand beside a loader's ``own`` state. Raises: StateError for damage, StateMismatchError for
        another rank's.
        """
        ranks = ranks_of_claims(loader)
        saved = decode(from_text(text), allow_pickle=allow_pickle) if isinstance(text, str) else None
        if not isinstance(saved, dict) or saved.keys() != set(_NAMES) or not _is_sound(saved):
            raise StateError(f"the claims of the state are damaged: {saved or text!r:.200}. Use an older checkpoint")
        if saved["ranks"] != ranks:
            different = [
                f"{name} {theirs} (here {ours})"
                for name, theirs, ours in zip(("rank", "number of ranks", "batch size"), saved["ranks"], ranks)
                if theirs != ours
            ]
            raise StateMismatchError(
                f"the claims of the state belong to another loader: {', '.join(different)}. Claims are counted by rank "
                "and batch: load on each rank the state that it saved, in a run like the one that saved it"
            )
        pairs = {name: [((*item,), value) for item, value in saved[name]] for name in ("later", "results")}
        items = {"first": (*saved["first"],), "following": (*saved["following"],), "open": [*map(tuple, saved["open"])]}
        return cls(**saved | pairs | items, allow_pickle=allow_pickle, own=own)


_NAMES = tuple(entry.name for entry in fields(SavedClaims) if entry.name not in ("allow_pickle", "own"))


def _is_sound(saved: dict[str, Any]) -> bool:
    if any(type(saved[name]) is not list for name in ("open", "later", "results", "ranks")):
        return False
    pairs = [*saved["later"], *saved["results"]]
    if any(type(pair) is not list or len(pair) != 2 for pair in pairs):
        return False
    items = [saved["first"], saved["following"], *saved["open"], *(item for item, _ in pairs)]
    return (
        all(type(item) is list and len(item) == 2 and all(type(part) is int for part in item) for item in items)
        and min(map(min, items)) >= 0
        and saved["first"] <= saved["following"]
        and all(saved["first"] <= item < saved["following"] for item in saved["open"])
        and all(type(state) is dict for _, state in saved["later"])
        and all(type(results) is list for _, results in saved["results"])
        and type(saved["version"]) is int
        and saved["version"] >= 0
        and all(type(saved[name]) is dict for name in ("counts", "reasons"))
        and saved["counts"].keys() <= {"done", "dropped", "again", "passed"}
        and all(type(count) is int for name in ("counts", "reasons") for count in saved[name].values())
        and len(saved["ranks"]) == 3
    )
