"""The state of a ``DataLoader``: flat, checked before anything of it is used. Runs in the user's process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchpipe.data.iterable import saved_shards
from torchpipe.data.order.samplers import ranks_of_sampler
from torchpipe.data.order.sampling import begun_elsewhere
from torchpipe.errors import StateMismatchError
from torchpipe.node.identity import Identity
from torchpipe.node.iterator import stored_count
from torchpipe.state import Cursor, encode
from torchpipe.state.flat import FlatForm, damaged, shown

__all__ = [
    "FORM",
    "Position",
    "check_position",
    "handed_out",
    "identity_of",
    "length_of_dataset",
    "of_rank",
    "read",
    "write",
]

_IDENTITY = ("dataset", "length", "batch_size", "drop_last", "sampler", "collate")
_DATA = "data"  # in the payload alone, of what identifies them; none in former states
_WITHOUT = {"fetch": "batches"}  # in the payload alone, if it is another: what states without it mean
_PARTS = ("identity", "numbers", "order", "batches", "standing", "now")  # of a payload


@dataclass(frozen=True, kw_only=True)
class Position:
    """``delivered`` batches of ``epoch`` have been handed out; ``order`` and ``batches`` tell how to go on.

    The rest of the epoch may be empty. Without ``order`` and ``batches`` the epoch has not begun, and it takes over
    ``between_epochs``. ``now``: where the generators stand that epochs' seeds and orders may be drawn from.
    """

    epoch: int
    delivered: int
    order: dict[str, Any] | None = None
    batches: dict[str, Any] | None = None
    between_epochs: dict[str, Any] | None = None
    now: dict[str, Any] | None = None

    @property
    def handed_out(self) -> int:
        """The number of batches that were, those before their turn (out of order) included."""
        return handed_out(self.delivered, self.batches)


def handed_out(delivered: int, batches: Mapping[str, Any] | None) -> int:
    return delivered + len((batches or {}).get("done", ()))


def identity_of(loader: Any) -> dict[str, Any]:
    """The identity that a state must share with the loader that it is loaded into."""
    sampler = loader._index_sampler
    inner = getattr(sampler, "sampler", sampler)
    size = getattr(sampler, "batch_size", None) if loader.batch_size is None else loader.batch_size
    if loader.distributed:
        size = None  # the position counts samples
    length = length_of_dataset(loader)
    by_sample = {"fetch": loader.fetch} if loader.fetch != _WITHOUT["fetch"] else {}
    return by_sample | {
        _DATA: loader._data_of(length).to_plain(),
        "dataset": "iterable" if loader._is_iterable else "map-style",
        "length": length,
        "batch_size": size if type(size) is int else -1,
        "drop_last": bool(loader.drop_last),
        "sampler": type(inner).__name__,
        "collate": loader._bound_to_collate,
    }


def length_of_dataset(loader: Any) -> int:
    try:
        return len(loader.dataset)
    except Exception:  # iterable ones have none; a user's may fail in any way
        return -1


def write(position: Position, identity: Mapping[str, Any]) -> dict[str, Any]:
    """The flat dict that users keep, but for its payload, which becomes text; its keys are always the same."""
    numbers = {"epoch": position.epoch, "delivered": position.delivered}
    payload = encode(
        {
            "identity": dict(identity),
            "numbers": numbers,
            "order": position.order,
            "batches": position.batches,
            "standing": position.between_epochs,
            "now": position.now,
        }
    )
    return FORM.write({**identity, **numbers}, payload)


def read(
    state: Any, identity: Mapping[str, Any], *, allow_pickle: bool, allow_other_data: bool, of_this_rank: bool
) -> Position:
    """``of_this_rank``: no other rank may have saved it.

    Raises: StateMismatchError, showing both sides; StateError for what is no such state, or damaged.
    """
    payload = FORM.read(state, allow_pickle=allow_pickle)
    for name in ("epoch", "delivered"):
        if type(state[name]) is not int or not 0 <= state[name] < 1 << 62:
            raise damaged(f"{name} is {shown(state[name])}")
    sides = (_WITHOUT | payload["identity"], _WITHOUT | dict(identity))
    different = [name for name in (*_IDENTITY, *_WITHOUT) if sides[0].get(name) != sides[1][name]]
    if different:
        saved, ours = ({name: side.get(name) for name in different} for side in sides)
        raise StateMismatchError(
            f"the state belongs to another loader. saved: {_listed(saved)}; here: {_listed(ours)}. Make the loader as "
            "it was when the state was saved, or begin a new run"
        )
    if not allow_other_data:
        Identity(**identity[_DATA]).check(payload["identity"].get(_DATA), of_this_rank=of_this_rank)
    return Position(
        epoch=state["epoch"],
        delivered=state["delivered"],
        order=payload["order"],
        batches=payload["batches"],
        between_epochs=payload["standing"],
        now=payload["now"],
    )


def of_rank(batches: dict[str, Any] | None, samplers: list[Any]) -> dict[str, Any] | None:
    """``batches``, if there are any, with the rank that they belong to where a sampler divides."""
    ranks, rank = ranks_of_sampler(samplers)
    return batches | {"rank": rank} if batches and ranks > 1 else batches


def check_position(position: Position, iterable: bool, num_workers: int, samplers: list[Any]) -> None:
    """Raises: StateError where the parts of ``position`` do not go together, or not with such a loader."""
    batches = position.batches or {}
    here = ranks_of_sampler(samplers)[1]
    if batches.get("rank", here) != here:
        raise StateMismatchError(
            f"the state is that of rank {shown(batches['rank'])}, and this is rank {here}: with in_order=False, "
            "worker_seeding='torch' and datasets that have a state, a position is more than a count of batches. Load "
            "on each rank the state that it saved"
        )
    if iterable:
        under_way = position.batches is not None
        if under_way:
            saved_shards(batches)
            stored_count(batches, "seed", (1 << 63) - 1)
            if "begins" in batches and batches["shards"] != 1:
                raise begun_elsewhere()
            if "begins" in batches and not _is_begin(batches["begins"]):
                raise damaged(f"where its dataset began is {shown(batches['begins'])}")
            counts = batches["stream"].get("counts")
            if type(counts) is not list or not all(type(count) is int for count in counts):
                raise damaged(f"the counts of its shards' batches are {shown(counts)}")
            if sum(counts) != position.delivered:
                raise damaged(f"{position.delivered} batches were delivered, and its shards made {sum(counts)} of them")
    else:
        under_way = position.order is not None
        _check_done(batches.get("done", []), position.delivered)
        if "lanes" in batches:
            _check_lanes(batches["lanes"], batches.get("again"), num_workers)
        if "dataset" in batches and num_workers:
            raise StateMismatchError(
                "the state has the state of a dataset that was read in process (num_workers=0), and this loader has "
                f"num_workers={num_workers}, each with a dataset and a state of its own: load it with num_workers=0"
            )
    if position.delivered and not under_way:
        raise damaged(f"{position.delivered} batches of its epoch were delivered, and nothing says how to go on")
    if batches and not under_way:
        raise damaged("it says where its batches stand, and not where their order does")


def _is_begin(begins: Any) -> bool:
    """Is it what a dataset that is read in the user's process said before its first batch?"""
    return type(begins) is list and len(begins) == 1 and isinstance(begins[0], dict) and "dataset" in begins[0]


def _check_done(done: Any, delivered: int) -> None:
    if type(done) is not list or any(type(number) is not int or number < delivered for number in done):
        raise damaged(f"the batches that were handed out before their turn are {shown(done)}")


def _check_lanes(lanes: Any, again: Any, num_workers: int) -> None:
    """``again``: of each worker, the entries that its cursor skips."""
    if type(lanes) is not list or type(again) is not list or len(lanes) != len(again):
        raise damaged(f"the states of its workers are {shown(lanes)}, and what they make again {shown(again)}")
    for state, entries in zip(lanes, again):
        cursor = Cursor.from_state(state)
        if cursor is None or type(entries) is not list or len(entries) != cursor.skip or cursor.count < cursor.skip:
            raise damaged(f"a worker's state is {shown(state)}, which makes {shown(entries)} again")
        if not all(type(entry) is tuple and len(entry) == 2 and type(entry[0]) is int for entry in entries):
            raise damaged(f"what a worker makes again is {shown(entries)}, not numbers of batches and their indices")
    if len(lanes) != num_workers:
        raise StateMismatchError(
            f"the state has the states of {len(lanes)} workers (worker_seeding='torch', or a dataset with a "
            f"state_dict of its own), and this loader has num_workers={num_workers}: make it with as many"
        )


def _repeated(payload: dict[str, Any]) -> dict[str, Any]:
    if not payload.keys() >= set(_PARTS) or not isinstance(payload["identity"], dict):
        raise damaged("its payload is no DataLoader's")
    if not all(isinstance(payload[name], dict | None) for name in _PARTS) or payload["numbers"] is None:
        raise damaged("its payload holds no position")
    return {**payload["identity"], **payload["numbers"]}


FORM = FlatForm("DataLoader", 1, (*_IDENTITY, "epoch", "delivered"), _repeated)


def _listed(side: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={'None' if value == -1 else shown(value)}" for name, value in side.items())
