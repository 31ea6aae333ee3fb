"""``in_memory_cache`` of map-style nodes: what was read once is kept."""

from __future__ import annotations

import zlib
from typing import Any, TypeVar

from torchpipe.node.datapipe import MapDataPipe, functional_datapipe
from torchpipe.node.own_generators import OwnGenerators
from torchpipe.node.plain import as_key, plain_key
from torchpipe.node.validate import check_map_input
from torchpipe.randomness.global_random import BatchRandom
from torchpipe.state.copying import copy_item

__all__ = ["InMemoryCacheHolder"]

T = TypeVar("T")


_SEED = 0x1_4E3  # any number: no run's


class _Held:
    """The items read of ``source``. They stay in their process: a copy in another one begins empty."""

    def __init__(self, source: Any = None) -> None:
        self.source = source
        self.items: dict[Any, Any] = {}
        self.random: BatchRandom | None = None

    def read(self, index: Any) -> Any:
        """The item, with what its functions draw from the global random states: the same wherever and whenever."""
        index = plain_key(index)
        number = index if type(index) is int and index >= 0 else zlib.crc32(repr(index).encode())
        if self.random is None:
            self.random = BatchRandom(OwnGenerators(self.source))
        return self.random.within(_SEED, 0, number, lambda: self.source[index])

    def __reduce__(self) -> Any:
        return _Held, ()


@functional_datapipe("in_memory_cache")
class InMemoryCacheHolder(MapDataPipe[T]):
    """Reads each item of ``source_dp`` once in a process, and hands out copies of what was read from then on.

    Copies of what can be changed in place, that is: a function that changes an item does not change what is kept. What
    cannot be copied is handed out itself.

    What is before it has to give the same item for a key every time: put what is random after it. Random numbers that
    its functions draw from the global states are the key's own, the same in every process, epoch and run. Numpy's
    numbers and tensors of no dimension are the keys that Python's own are, and ``source_dp`` is read by these.

    Raises: TypeError if ``source_dp`` is not map-style, or for a key that is none.
    """

    def __init__(self, source_dp: MapDataPipe[T]) -> None:
        check_map_input("in_memory_cache (map-style)", source_dp)
        self.source = source_dp
        self._held = _Held(source_dp)

    def __getitem__(self, index: Any) -> T:
        held = self._held
        if held.source is not self.source:  # a copy of this node, that reads another one or is in another process
            held = self._held = _Held(self.source)
        index = as_key(index, "in_memory_cache (map-style)")
        if index not in held.items:
            held.items[index] = held.read(index)
        return copy_item(held.items[index])  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self.source)
