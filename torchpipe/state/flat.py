"""The flat state of a loader, as users keep it: written, and checked before anything of it is used.

Runs in the user's process. What its position means is the stream's affair; whose it is, its numbers say. Every loader's
state has the same form (:class:`FlatForm`): a dict with a fixed set of keys, plain values beside a payload that has a
checksum and repeats them.
"""

from __future__ import annotations

import hashlib
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from torchpipe.errors import StateError, StateMismatchError
from torchpipe.state.codec import decode, encode, from_text

__all__ = [
    "CLAIMS",
    "MAX_ALL_SHARDS",
    "MAX_SHARDS",
    "STATE_KEYS",
    "STATE_VERSION",
    "FlatForm",
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


@dataclass(frozen=True)
class FlatForm:
    """The form of one loader's state. ``head``: the keys between version and payload, which ``repeated`` finds in the
    payload again; ``loader``, and what it is of, in words.
    """

    loader: str
    version: int
    head: tuple[str, ...]
    repeated: Callable[[dict[str, Any]], dict[str, Any]]

    @property
    def keys(self) -> tuple[str, ...]:
        return ("version", *self.head, "payload")

    def write(self, head: Mapping[str, Any], payload: bytes) -> dict[str, Any]:
        return {"version": self.version, **{name: head[name] for name in self.head}, "payload": payload}

    def read(self, state: Any, *, allow_pickle: bool, keep_opaque: bool = False) -> dict[str, Any]:
        """The payload, once it agrees with what stands beside it.

        Raises: StateError if it is no state, or damaged; StateMismatchError for another version or kind of loader.
        """
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
        missing = [key for key in self.keys if key not in state]
        if missing:
            other = "graph (DataLoader2)" if "fingerprint" in state else "DataLoader" if "sampler" in state else ""
            if other not in ("", self.loader):
                raise StateMismatchError(f"the state is that of a {other}, and this is a {self.loader}")
            raise StateError(
                f"not a torchpipe loader state: {', '.join(missing)} missing, it has "
                f"{', '.join(map(str, state))[:200] or 'nothing'}. Pass the dict from state_dict() as it was"
            )
        if type(state["version"]) is not int or state["version"] != self.version:
            raise StateMismatchError(
                f"the state has version {shown(state['version'])}, this torchpipe reads version {self.version}: "
                "load it with the version of torchpipe that wrote it"
            )
        data = state["payload"]
        if not isinstance(data, str | bytes | bytearray | memoryview):
            raise damaged(f"payload is {shown(data)}, and neither bytes nor text")
        data = from_text(data) if isinstance(data, str) else bytes(data)
        payload = decode(data, allow_pickle=allow_pickle, keep_opaque=keep_opaque)
        inside = self.repeated(payload if isinstance(payload, dict) else {})
        for name in self.head:
            here, there = state[name], inside.get(name)
            if type(here) is not type(there):
                raise damaged(f"{name} is {shown(here)}, of type {type(here).__name__}, not {type(there).__name__}")
            if here != there:
                raise damaged(f"{name} is {shown(here)}, but its payload belongs to {shown(there)}")
        return payload  # type: ignore[no-any-return]


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
        return _GRAPH.write({"fingerprint": digest(self.graph), **numbers}, encode(payload | {"numbers": numbers}))

    @classmethod
    def read(cls, state: Any, *, allow_pickle: bool = False, keep_opaque: bool = False) -> FlatState:
        """Read a flat dict. Raises: StateError if it is no state; StateMismatchError for another loader or version."""
        payload = _GRAPH.read(state, allow_pickle=allow_pickle, keep_opaque=keep_opaque)
        for name in _NUMBERS:
            if wrong := _wrong_number(name, state[name]):
                raise damaged(wrong)
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


def _repeated(payload: dict[str, Any]) -> dict[str, Any]:
    graph, numbers = payload.get("graph"), payload.get("numbers")
    if not isinstance(graph, str) or "position" not in payload:
        raise damaged("its payload holds no graph and position")
    if not isinstance(payload["position"], dict | None):
        raise damaged(f"the position in its payload is {shown(payload['position'])}")
    if not isinstance(numbers, dict):
        raise damaged("its payload does not repeat the numbers beside it")
    return numbers | {"fingerprint": digest(graph)}


_GRAPH = FlatForm("graph (DataLoader2)", STATE_VERSION, STATE_KEYS[1:-1], _repeated)


def shown(value: Any) -> str:
    """At most 40 characters of any value, of a hostile one as well."""
    try:
        return reprlib.repr(value)[:40]
    except Exception:  # an integer of thousands of digits, an object whose repr raises
        return f"a {type(value).__name__}"


def damaged(what: str) -> StateError:
    """The error for a state that contradicts itself."""
    return StateError(f"the state is damaged: {what}. Use an older checkpoint")
