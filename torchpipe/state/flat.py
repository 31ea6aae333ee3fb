"""The flat state of a loader, as users keep it: written, and checked before anything of it is used.

Runs in the user's process. What its position means is the stream's affair; whose it is, its numbers say.
"""

from __future__ import annotations

import hashlib
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from torchpipe.errors import StateError, StateMismatchError
from torchpipe.state.codec import decode, encode

__all__ = [
    "CLAIMS",
    "MAX_ALL_SHARDS",
    "MAX_SHARDS",
    "STATE_KEYS",
    "STATE_VERSION",
    "FlatState",
    "damaged",
    "digest",
    "shown",
]

STATE_VERSION = 2
STATE_KEYS = ("version", "fingerprint", "seed", "epoch", "delivered", "num_shards", "rank", "world_size", "payload")
CLAIMS = "claims"  # a key beside them, of a state with open claims
MAX_SHARDS = 4096
"""The most shards of a rank. Each has memory of its own when it runs, so a state must not ask for any number."""
MAX_ALL_SHARDS = 1 << 16
"""The most shards of all ranks."""

_NUMBERS = ("seed", "epoch", "delivered", "num_shards", "rank", "world_size")
_LARGEST = {"seed": 1 << 4096, "num_shards": MAX_ALL_SHARDS}  # of others: 2**62


@lru_cache(maxsize=64)
def digest(graph_text: str) -> str:
    """The fingerprint that belongs to a graph's description."""
    return hashlib.sha256(graph_text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class FlatState:
    """``numbers``: seed, epoch, delivered, num_shards, rank and world_size. ``position`` is the stream's own state.

    ``common``: are a rank's shards those of the run, whoever hosts them? Of a single process they are. ``data``: what
    identifies the data that the graph reads; None in states of former versions.
    """

    graph: str
    numbers: dict[str, int] = field(default_factory=dict)
    position: dict[str, Any] | None = None
    common: bool = False
    data: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The flat dict; its keys never depend on the position.

        The payload has a checksum and repeats the numbers beside it, so that a change of either is found. Raises:
        TypeError or ValueError for a number that :meth:`read` would refuse: better now than when the run is gone.
        """
        for name in _NUMBERS:
            wrong = _wrong_number(name, self.numbers[name])
            if wrong:
                kind = TypeError if type(self.numbers[name]) is not int else ValueError
                raise kind(f"no state can be saved that would load: {wrong}. Give plain integers to the loader")
        payload = {
            "graph": self.graph,
            "numbers": self.numbers,
            "position": self.position,
            "common": self.common,
            "data": self.data,
        }
        numbers = {name: self.numbers[name] for name in _NUMBERS}
        return {
            "version": STATE_VERSION,
            "fingerprint": digest(self.graph),
            **numbers,
            "payload": encode(payload | {"numbers": numbers}),
        }

    @classmethod
    def read(cls, state: Any, *, allow_pickle: bool = False, keep_opaque: bool = False) -> FlatState:
        """Read a flat dict. Raises: StateError if it is no state; StateMismatchError for another loader or version."""
        if isinstance(state, Mapping) and CLAIMS in state:
            raise StateError(
                "the state has open claims, which only the loader of the rank that saved it can take up: give it to "
                "load_state_dict() there, and save each rank's own under a name of its own"
            )
        if not isinstance(state, Mapping):
            raise StateError(
                f"a loader state is the dict from state_dict(), got {type(state).__name__}: {shown(state)}. Read a "
                "saved file back with what wrote it (torch.load, say) and pass the loader's dict from it"
            )
        missing = [key for key in STATE_KEYS if key not in state]
        if missing:
            if {"dataset", "sampler"} <= state.keys():
                raise StateMismatchError("the state is that of a DataLoader, and this is a graph (DataLoader2)")
            raise StateError(
                f"not a torchpipe loader state: {', '.join(missing)} missing, it has "
                f"{', '.join(map(str, state))[:200] or 'nothing'}. Pass the dict from state_dict() as it was"
            )
        if state["version"] != STATE_VERSION:
            raise StateMismatchError(
                f"the state has version {shown(state['version'])}, this torchpipe reads version {STATE_VERSION}: "
                "load it with the version of torchpipe that wrote it"
            )
        for name in _NUMBERS:
            if wrong := _wrong_number(name, state[name]):
                raise damaged(wrong)
        payload = _open(state, allow_pickle, keep_opaque)
        if state["rank"] >= state["world_size"]:
            raise damaged(f"it is of rank {state['rank']} of {state['world_size']}")
        return cls(
            graph=payload["graph"],
            numbers={name: state[name] for name in _NUMBERS},
            position=payload["position"],
            common=payload.get("common") is True or state["world_size"] == 1,
            data=payload.get("data"),
        )


def _wrong_number(name: str, value: Any) -> str:
    """The fault of a number in a state, as text; empty if there is none."""
    least, most = int(name in ("num_shards", "world_size")), _LARGEST.get(name, 1 << 62)
    if type(value) is not int:
        return f"{name} is {shown(value)}"
    if not least <= value <= most:
        return f"{name} is {shown(value)}, and can be {least} to {most if most < 1 << 64 else 'thousands of bits'}"
    return ""


def _open(state: Mapping[str, Any], allow_pickle: bool, keep_opaque: bool) -> dict[str, Any]:
    """The payload, once it agrees with what stands beside it."""
    if not isinstance(state["payload"], bytes | bytearray | memoryview):
        raise damaged(f"payload is {shown(state['payload'])}, not bytes")
    payload = decode(bytes(state["payload"]), allow_pickle=allow_pickle, keep_opaque=keep_opaque)
    if not isinstance(payload, dict) or not isinstance(payload.get("graph"), str) or "position" not in payload:
        raise damaged("its payload holds no graph and position")
    if not isinstance(payload["position"], dict | None):
        raise damaged(f"the position in its payload is {shown(payload['position'])}")
    belongs = digest(payload["graph"])
    if state["fingerprint"] != belongs:
        raise damaged(f"fingerprint is {shown(state['fingerprint'])}, but its payload belongs to {belongs}")
    numbers = payload.get("numbers")
    if not isinstance(numbers, dict) or numbers.keys() != set(_NUMBERS):
        raise damaged("its payload does not repeat the numbers beside it")
    for name in _NUMBERS:
        if type(numbers[name]) is not int or numbers[name] != state[name]:
            wrong = _wrong_number(name, numbers[name])
            raise damaged(wrong or f"{name} is {state[name]}, but its payload belongs to {numbers[name]}")
    return payload


def shown(value: Any) -> str:
    """At most 40 characters of any value, of a hostile one as well."""
    try:
        return reprlib.repr(value)[:40]
    except Exception:  # an integer of thousands of digits, an object whose repr raises
        return f"a {type(value).__name__}"


def damaged(what: str) -> StateError:
    """The error for a state that contradicts itself."""
    return StateError(f"the state is damaged: {what}. Use an older checkpoint")
