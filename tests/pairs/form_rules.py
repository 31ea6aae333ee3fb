"""Which chains of forms are refused, or not exact, and why: the table in docs/guarantees.md is made of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from tests.pairs.form_chains import Chain, kinds_of
from tests.pairs.forms import FORMS
from tests.rings import added_by_rings
from torchpipe.errors import GraphError, NotSerializableError, StateError

__all__ = ["LIMITS", "REFUSALS", "Limit", "Refusal", "alone", "limit_of", "may_be_refused", "refusal_of"]


def _places(chain: Chain, trait: str) -> list[int]:
    return [place for place, (key, number) in enumerate(chain) if trait in FORMS[key].traits_of(number)]


def _behind(chain: Chain, first: str, second: str) -> bool:
    """Does a form of the second trait stand behind one of the first?"""
    before, after = _places(chain, first), _places(chain, second)
    return bool(before and after and min(before) < max(after))


def _draws_behind(chain: Chain, trait: str) -> bool:
    found = _places(chain, trait)
    return bool(found) and any(number in FORMS[key].draws for key, number in chain[min(found) + 1 :])


def _moves_branches(chain: Chain) -> bool:
    """Are there branches that are moved apart, and share a pass over something?"""
    moved = (
        place
        for place, ((one, _), (other, _)) in enumerate(pairwise(chain))
        if "branches" in FORMS[one].traits and "main" in FORMS[other].traits
    )
    return any("shared" in FORMS[key].traits for place in moved for key, _ in chain[: place + 1])


def _names(chain: Chain, *keys: str) -> bool:
    return any(key in keys for key, _ in chain)


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What is neither exact nor refused."""

    what: str
    why: str
    when: Callable[[Chain], bool]
    example: str


LIMITS: list[Limit] = [
    Limit(
        what="functions, or nodes of yours, that draw from the global random states behind `to_device`, or before a "
        "`to_map_datapipe` that stands behind it",
        why="they run in your process and draw from its states: use `random_map`, or put them before it",
        when=lambda chain: (
            _draws_behind(chain, "main")
            or (_behind(chain, "main", "collects") and any(number in FORMS[key].draws for key, number in chain))
        ),
        example="IterableWrapper:0 | to_device:0 | map:0",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A chain of which this holds is refused with such an error; if not ``always``, it depends on the items."""

    what: str
    when: Callable[[Chain], bool]
    example: str
    error: type[Exception]
    text: str
    always: bool = True


REFUSALS: list[Refusal] = [
    Refusal(
        what="two sharding points on one path",
        when=lambda chain: len(_places(chain, "shards")) > 1,
        example="IterableWrapper:0 | sharding_filter:0 | sharding_filter:0",
        error=GraphError,
        text="two sharding points|random_split cannot|in branches|branches of|a cache stands",
    ),
    Refusal(
        what="`random_split` behind what has another order in each epoch (`shuffle`, `mix` ...) or a sharding point",
        when=lambda chain: any(_behind(chain, trait, "splits") for trait in ("seeded", "shards")),
        example="IterableWrapper:0 | shuffle:0 | random_split:0",
        error=GraphError,
        text="random_split cannot stand behind",
    ),
    Refusal(
        what="`cycle`, `cache` and other nodes that read their input twice, behind `sharding_round_robin_dispatch`",
        when=lambda chain: _behind(chain, "dispatches", "rereads") or _behind(chain, "dispatches", "caches"),
        example="IterableWrapper:0 | sharding_round_robin_dispatch:0 | cache/folder:0",
        error=GraphError,
        text="dispatched|a cache stands|random_split cannot|comes once an epoch",
        always=False,
    ),
    Refusal(
        what="`cache` behind `to_device`",
        when=lambda chain: _behind(chain, "main", "caches"),
        example="IterableWrapper:0 | to_device:0 | cache:0",
        error=GraphError,
        text="a cache stands behind",
    ),
    Refusal(
        what="`cycle` and other nodes that read their input twice, behind `to_device`",
        when=lambda chain: _behind(chain, "main", "rereads"),
        example="IterableWrapper:0 | to_device:0 | cycle:0",
        error=GraphError,
        text="once an epoch",
        always=False,
    ),
    Refusal(
        what="`on_error(\"skip\")` behind `cache` alone",
        when=lambda chain: _behind(chain, "caches", "skips"),
        example="PathList:0 | open_files:0 | map/content:0 | cache:0 | on_error/bad items:0",
        error=GraphError,
        text="stands behind a cache",
        always=False,
    ),
    Refusal(
        what="`to_map_datapipe` behind a sharding point",
        when=lambda chain: _behind(chain, "shards", "collects"),
        example="IterableWrapper:0 | sharding_filter:0 | enumerate:0 | to_map_datapipe:0 | to_iter_datapipe:0",
        error=GraphError,
        text="stands before to_map_datapipe",
    ),
    Refusal(
        what="a sharding point behind `to_device`",
        when=lambda chain: _behind(chain, "main", "shards"),
        example="IterableWrapper:0 | to_device:0 | sharding_filter:0",
        error=GraphError,
        text="no sharding point",
    ),
    Refusal(
        what="branches (`fork`, `demux`, `unzip` ...), if some are moved to a device before they meet",
        when=_moves_branches,
        example="IterableWrapper:0 | fork:0 | to_device:0",
        error=GraphError,
        text="branches",
    ),
    Refusal(
        what="an item with an open stream that is held while a state is taken",
        when=lambda chain: any(kind.startswith("open ") for kind in kinds_of(chain)),
        example="PathList:0 | to_device:0 | open_files:0 | mux:0 | map/content:0",
        error=StateError,
        text="cannot be saved",
        always=False,
    ),
    Refusal(
        what="open streams that have to leave a worker process",
        when=lambda chain: any(kinds_of(chain)[place].startswith("open ") for place in _places(chain, "main")),
        example="PathList:0 | open_files:0 | to_device:0 | map/content:0",
        error=NotSerializableError,
        text="cannot be sent from the worker",
        always=False,
    ),
    Refusal(
        what="`mix(stop=\"restart\")` behind `sharding_round_robin_dispatch`",
        when=lambda chain: _behind(chain, "dispatches", "seeded") and ("mix", 2) in chain,
        example="IterableWrapper:0 | sharding_round_robin_dispatch:0 | mix:2",
        error=GraphError,
        text="a dispatched stream can be read once",
        always=False,
    ),
    Refusal(
        what="open streams that are held behind `cycle`, beyond the end of a round",
        when=lambda chain: any(kind.startswith("open ") for kind in kinds_of(chain)) and _names(chain, "cycle"),
        example="PathList:0 | open_files:0 | cycle:0 | shuffle:0 | map/content:0",
        error=ValueError,
        text="closed file",
        always=False,
    ),
    Refusal(
        what="`to_map_datapipe` behind a wrong `set_length`",
        when=lambda chain: _names(chain, "set_length") and bool(_places(chain, "collects")),
        example="IterableWrapper:0 | set_length:2 | enumerate:0 | to_map_datapipe:0 | to_iter_datapipe:0",
        error=IndexError,
        text="is invalid for IterToMapConverter",
        always=False,
    ),
    Refusal(
        what="`rebatch` behind batches of several classes",
        when=lambda chain: _names(chain, "rebatch"),
        example="SequenceWrapper:0 | map-style batch:0 | to_iter_datapipe:0 | mix:0 | rebatch:2",
        error=TypeError,
        text="cannot join batches that are not alike",
        always=False,
    ),
    Refusal(
        what="`mix` with an input that has no item (in some shard)",
        when=lambda chain: _names(chain, "mix"),
        example="IterableWrapper:0 | sharding_filter:0 | batch:3 | skip:3 | mix:0",
        error=RuntimeError,
        text="has no item of input|it has no items",
        always=False,
    ),
]  # fmt: skip
REFUSALS += [Refusal(**refusal) for ring in added_by_rings("form_rules") for refusal in ring.REFUSALS]


def limit_of(chain: Chain) -> Limit | None:
    return next((limit for limit in LIMITS if limit.when(chain)), None)


def refusal_of(chain: Chain) -> Refusal | None:
    """Why the chain is sure to be refused."""
    return next((refusal for refusal in REFUSALS if refusal.always and refusal.when(chain)), None)


def may_be_refused(chain: Chain, error: BaseException) -> Refusal | None:
    """Which rule says that this error may come."""
    return next(
        (
            refusal
            for refusal in REFUSALS
            if refusal.when(chain) and isinstance(error, refusal.error) and re.search(refusal.text, str(error))
        ),
        None,
    )


def alone(chain: Chain) -> bool:
    return limit_of(chain) is not None or refusal_of(chain) is not None
