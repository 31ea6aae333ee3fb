"""Map-style nodes that make items of others' items.

- ``batch`` of map-style nodes: batch number ``i`` is made of items that lie together.
- ``concat`` of map-style nodes: one behind the other.
- ``in_memory_cache`` of map-style nodes: what was read once is kept.
- ``map`` of map-style nodes: apply a function to an item when it is read.
- ``shuffle`` of map-style nodes: read them in random order.
- ``unzip`` of map-style nodes: a node for each column.
- ``zip`` of map-style nodes: tuples of the items of one key.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from torchpipe.indexed.keys import check_keys
from torchpipe.indexed.shuffled import ShuffledKeys, Switched
from torchpipe.map._indices import checked_index
from torchpipe.node.context import Context
from torchpipe.node.datapipe import DataChunk, MapDataPipe, functional_datapipe
from torchpipe.node.function_results import as_key, plain_key
from torchpipe.node.generator_seeding import SeededGenerators
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.validate import check_columns, check_count, check_function, check_map_input, columns_left
from torchpipe.randomness.global_random import BatchRandom
from torchpipe.state.copying import copy_item

__all__ = ["Batcher", "Concater", "InMemoryCacheHolder", "Mapper", "Shuffler", "UnZipper", "Zipper"]

T = TypeVar("T")


@functional_datapipe("batch")
class Batcher(MapDataPipe[list[T]]):
    """Batch ``i`` has the items from ``i * batch_size`` on; a shorter last one is left out with ``drop_last``.

    The input is read by indices from 0 on. ``wrapper_class`` makes the batch of a list.

    Raises: ValueError if ``batch_size`` is below 1; TypeError if ``wrapper_class`` cannot be called; IndexError for a
    batch that is not there.
    """

    def __init__(
        self,
        datapipe: MapDataPipe[T],
        batch_size: int,
        drop_last: bool = False,
        wrapper_class: Callable[[list[Any]], Any] = DataChunk,
    ) -> None:
        check_map_input("batch (map-style)", datapipe)
        check_function("wrapper_class", wrapper_class)
        self.source = datapipe
        self.batch_size = check_count("batch_size", batch_size, at_least=1)
        self.drop_last = drop_last
        self.wrapper_class = wrapper_class

    def __getitem__(self, index: Any) -> list[T]:
        first = checked_index("batch", index, len(self)) * self.batch_size
        numbers = range(first, min(first + self.batch_size, len(self.source)))
        return self.wrapper_class([self.source[number] for number in numbers])  # type: ignore[no-any-return]

    def __len__(self) -> int:
        full, rest = divmod(len(self.source), self.batch_size)
        return full if self.drop_last or not rest else full + 1


@functional_datapipe("concat")
class Concater(MapDataPipe[T]):
    """The items of the first input, then those of the second one, and so on, each read by indices from 0 on.

    Raises: ValueError without inputs; TypeError for an input that is not map-style; IndexError for an item that is not
    there.
    """

    def __init__(self, *datapipes: MapDataPipe[T]) -> None:
        if not datapipes:
            raise ValueError("concat needs at least one datapipe, got none")
        for datapipe in datapipes:
            check_map_input("concat (map-style)", datapipe)
        self.datapipes = datapipes

    def __getitem__(self, index: Any) -> T:
        number = checked_index("concat", index, len(self))
        for datapipe in self.datapipes:
            if number < len(datapipe):
                return datapipe[number]
            number -= len(datapipe)
        raise AssertionError("checked_index() made sure that it is there")

    def __len__(self) -> int:
        return sum(len(datapipe) for datapipe in self.datapipes)


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
            self.random = BatchRandom(SeededGenerators(self.source))
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


R = TypeVar("R")


def _unchanged(item: Any) -> Any:
    return item


@functional_datapipe("map")
class Mapper(MapDataPipe[R]):
    """Applies ``fn`` to every item that is read.

    Raises: TypeError if ``datapipe`` is not map-style or ``fn`` is no function; ValueError if ``fn`` does not take one
    argument.
    """

    @overload
    def __init__(self, datapipe: MapDataPipe[T], fn: Callable[[T], R]) -> None: ...
    @overload
    def __init__(self: Mapper[T], datapipe: MapDataPipe[T]) -> None: ...
    def __init__(self, datapipe: MapDataPipe[Any], fn: Callable[[Any], Any] = _unchanged) -> None:
        check_map_input("map (map-style)", datapipe)
        check_columns("fn", fn, None)
        self.source = datapipe
        self.fn: Callable[[Any], R] = fn

    def __getitem__(self, index: Any) -> R:
        return self.fn(self.source[index])

    def __len__(self) -> int:
        return len(self.source)


@functional_datapipe("shuffle", on="map")
class Shuffler(Switched[T]):
    """Reads a map-style node once through in random order: an *iterable* node.

    ``indices`` are the keys to read, by default ``range(len(datapipe))``. The order is a function of seed, epoch and
    position in the graph. A ``sharding_filter`` after it deals the keys: each shard reads only the items that it keeps.

    Up to 2**20 items the order is drawn and stored (8 bytes an item, 16 meanwhile), every order having the same chance.
    That of more is computed, position by position (:class:`~torchpipe.randomness.seeds.ComputedOrder`), which takes
    no memory and no time to begin or to resume. ``computed`` says which, whatever their number.

    State: a key and one integer.

    Raises: TypeError if ``datapipe`` is not map-style or ``indices`` cannot be indexed.
    """

    by_index = True
    fingerprint_data = ("indices",)
    seeded = True  # from the context: a pass is not told a seed by set_seed

    def __init__(
        self, datapipe: MapDataPipe[T], *, indices: Sequence[Any] | None = None, computed: bool | None = None
    ) -> None:
        check_keys("shuffle (map-style)", datapipe, indices)
        self.source = datapipe
        self.indices = indices
        self.computed = computed
        self.own_seed: int | None = None
        self.enabled = True

    def __len__(self) -> int:
        return len(self.source if self.indices is None else self.indices)

    def iterate(self, context: Context) -> NodeIterator[T]:
        keys = range(len(self)) if self.indices is None else self.indices
        return ShuffledKeys(self, context, self.source, keys, self.computed)


@functional_datapipe("unzip")
class UnZipper(MapDataPipe[T]):
    """A list of nodes, one for each position in the items of ``source_datapipe``, which are sequences of
    ``sequence_length`` values, but for the positions ``columns_to_skip``.

    Raises: ValueError for a ``sequence_length`` below 1, a column that is not there, and if no column is left.
    """

    def __new__(  # type: ignore[misc]
        cls,
        source_datapipe: MapDataPipe[Sequence[T]],
        sequence_length: int,
        columns_to_skip: Sequence[int] | None = None,
    ) -> list[MapDataPipe[T]]:
        check_map_input("unzip (map-style)", source_datapipe)
        sequence_length = check_count("sequence_length", sequence_length, at_least=1)
        columns = columns_left(sequence_length, columns_to_skip)
        return [_Column(source_datapipe, column) for column in columns]


class _Column(MapDataPipe[Any]):
    node_title = "a column of unzip()"

    def __init__(self, main_datapipe: MapDataPipe[Any], instance_id: int) -> None:
        self.source = main_datapipe
        self.instance_id = instance_id

    def __getitem__(self, index: Any) -> Any:
        return self.source[index][self.instance_id]

    def __len__(self) -> int:
        return len(self.source)


@functional_datapipe("zip")
class Zipper(MapDataPipe[tuple[Any, ...]]):
    """Under each key, the tuple of what all inputs have there; as long as the shortest one. Negative indices count from
    its end.

    Raises: ValueError without inputs; TypeError for an input that is not map-style; IndexError or KeyError for what one
    of them does not have.
    """

    def __init__(self, *datapipes: MapDataPipe[Any]) -> None:
        if not datapipes:
            raise ValueError("zip needs at least one datapipe, got none")
        for datapipe in datapipes:
            check_map_input("zip (map-style)", datapipe)
        self.datapipes = datapipes

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        index = plain_key(index)
        if type(index) is int and index < 0:  # the inputs, which may be longer, would each count from their own end
            index = checked_index("zip", index, len(self))
        return tuple(self._item(datapipe, index) for datapipe in self.datapipes)

    def _item(self, datapipe: MapDataPipe[Any], index: Any) -> Any:
        try:
            return datapipe[index]
        except LookupError as error:
            error.add_note(f"Index {index!r} is out of range for one of the inputs of zip, {datapipe!r}")
            raise

    def __len__(self) -> int:
        return min(len(datapipe) for datapipe in self.datapipes)
