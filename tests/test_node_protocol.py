"""What nodes say of themselves: listed in CONTRIBUTING.md, open to torch's nodes, and not mixed up with their data."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import IterDataPipe as TorchIterDataPipe

from torchpipe import DataLoader2, IterDataPipe, MapDataPipe, functional_datapipe
from torchpipe.errors import GraphError
from torchpipe.graph.plan import plan
from torchpipe.iter import IterableWrapper
from torchpipe.node.fingerprint import describe_graph
from torchpipe.node.protocol import NodeProtocol
from torchpipe.node.traits import divides, reads_late, runs_in_main, traits_of

NAMES = sorted(name for name in vars(NodeProtocol) if not name.startswith("_"))


def source() -> Any:
    return IterableWrapper(range(6)).sharding_filter()


def test_contributing_lists_each() -> None:
    page = (Path(__file__).resolve().parent.parent / "CONTRIBUTING.md").read_text()
    listed = page.partition("says what each means: ")[2].partition(". ")[0]
    assert re.findall(r"`(\w+)(?:\(\))?`", listed) == NAMES


class Busy(IterDataPipe[Any]):
    """Keeps data in attributes that have such names."""

    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe
        vars(self).update(dict.fromkeys(NAMES, "data"))

    def __iter__(self) -> Iterator[Any]:
        yield from self.datapipe


def test_what_a_node_keeps_under_such_a_name_says_nothing() -> None:
    node = Busy(source())
    assert list(node) == list(range(6))
    assert "Busy(alters_stream='data', by_index='data', check_shards='data', " in describe_graph(node)
    split = plan(node)
    assert (split.main_nodes, split.dispatch, len(split.sharding_points)) == ((), None, 1)
    assert not divides(node)
    assert not reads_late(node)


class OfTorch(TorchIterDataPipe[Any]):
    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe

    def __iter__(self) -> Iterator[Any]:
        yield from self.datapipe


class InMain(OfTorch):
    runs_in_main = True


class NotReplicable(OfTorch):
    def is_replicable(self) -> bool:
        return False


def test_a_node_derived_from_torchs_says_the_same_or_has_the_defaults() -> None:
    plain, in_main, alone = (kind(source()) for kind in (OfTorch, InMain, NotReplicable))
    assert [getattr(traits_of(plain), name) for name in NAMES] == [getattr(NodeProtocol, name) for name in NAMES]
    assert [runs_in_main(node) for node in (plain, in_main, alone)] == [False, True, True]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("base", [IterDataPipe, MapDataPipe])
def test_no_functional_form_takes_such_a_name(name: str, base: type) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is an attribute that every node has"):
        functional_datapipe(name)(type("Taking", (base,), {}))


def test_a_mixin_that_the_defaults_would_hide_is_refused() -> None:
    class Says:
        runs_in_main = True

    with pytest.raises(TypeError, match="runs_in_main of Says would be hidden by the default: let Says stand before"):

        class Hidden(IterDataPipe[int], Says):
            pass

    class Heard(Says, IterDataPipe[int]):
        pass

    assert Heard.runs_in_main


def _reads_source() -> dict[str, Any]:
    def __init__(self: Any, source: Any) -> None:
        vars(self)["read_from"] = source

    def __iter__(self: Any) -> Iterator[Any]:
        yield from self.read_from

    return {"__init__": __init__, "__iter__": __iter__}


@pytest.mark.parametrize("name", NAMES)
def test_a_node_that_means_something_else_by_a_traits_name_is_refused(name: str) -> None:
    class Mine(IterDataPipe[Any]):
        def __init__(self, source: Any) -> None:
            self.source = source

        def __iter__(self) -> Iterator[Any]:
            yield from self.source

    default = getattr(NodeProtocol, name)
    a_property = () if name in ("by_index", "seeded", "yields_new_tensors") else (property(lambda self: 1),)
    for value in (lambda self: 1, {"what": "ever"}, 3, "a text", *a_property):
        if isinstance(value, type(default)):
            continue
        setattr(Mine, name, value)
        with pytest.raises(GraphError, match=rf"Mine\.{name} is .* give it another name"):
            DataLoader2(Mine(IterableWrapper(range(4))))
        theirs = type("Theirs", (TorchIterDataPipe,), {name: value, **_reads_source()})
        assert list(DataLoader2(theirs(IterableWrapper(range(4))))) == [0, 1, 2, 3]


@pytest.mark.parametrize("base", [IterDataPipe, TorchIterDataPipe])
def test_a_node_with_slots_is_refused(base: Any) -> None:
    @dataclasses.dataclass(slots=True, eq=False)
    class Mine(base):
        count: int

        def __iter__(self) -> Iterator[int]:
            yield from range(self.count)

    with pytest.raises(GraphError, match=r"Mine has __slots__ \(count\)"):
        DataLoader2(Mine(3))
