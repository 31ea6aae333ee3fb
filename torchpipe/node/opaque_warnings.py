"""Items that only pickle can rebuild: which node of a pass holds them, and telling the user when a state is saved.

Runs wherever the pass runs.
"""

from __future__ import annotations

from typing import Any

from torchpipe.errors import OpaqueStateWarning, StateError
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import node_name
from torchpipe.node.user_warnings import warn_user
from torchpipe.state import Cursor, encode, opaque_notes

__all__ = ["OpaqueItemFinder", "OpaqueWarnings"]


class OpaqueItemFinder:
    """Tells the node, of those below ``root``, whose state holds a type. Looks once for each type, since it is slow."""

    def __init__(self, root: NodeIterator[Any]) -> None:
        self._root = root
        self._found: dict[str, str] = {}

    def __call__(self, type_name: str) -> str:
        if type_name not in self._found:
            self._found[type_name] = self._find(type_name)
        return self._found[type_name]

    def _find(self, type_name: str) -> str:
        waiting = [self._root]
        while waiting:
            iterator = waiting.pop(0)
            try:
                state = iterator.state_dict()
                own = {key: value for key, value in state.items() if key != "inputs" and not isinstance(value, Cursor)}
                data = encode(own)
            except StateError:
                continue
            if any(name == type_name for name, _ in opaque_notes(data)):
                return node_name(iterator.node) + self._attribute(iterator, own, type_name)
            waiting.extend(iterator.inputs)
        return ""

    def _attribute(self, iterator: NodeIterator[Any], own: dict[str, Any], type_name: str) -> str:
        """The attribute that holds the type, of those that the author has named in ``saved``."""
        holds = (
            name for name in iterator.saved if any(kind == type_name for kind, _ in opaque_notes(encode(own[name])))
        )
        return next((f".{name}" for name in holds), "")


class OpaqueWarnings:
    """Warns of what a saved state holds that loads with ``allow_pickle=True`` alone: once for each node and type."""

    def __init__(self) -> None:
        self._warned: set[tuple[str, str]] = set()

    def tell(self, payload: bytes) -> None:
        """Called by a method ``state_dict``, whose caller the warning points to."""
        for note in opaque_notes(payload):
            if note not in self._warned:
                self._warned.add(note)
                type_name, node = note
                warn_user(
                    f"{f'{node} holds' if node else 'the state holds'} items of type {type_name}, which only "
                    "pickle can rebuild: the state will load with allow_pickle=True alone. Buffer plain data, arrays "
                    "or tensors, or make the type a named tuple or a dataclass of a module. state.inspect shows what a "
                    "state holds",
                    OpaqueStateWarning,
                )
