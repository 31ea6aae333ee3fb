"""The graph as processes get it: equal, private to each, and its large arrays in memory once."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reading_services.processes.graph_image import GraphImage
from tests import leaks
from tests.laws.executors import PROCESSES, make_loader, make_service
from tests.processes.values import DTYPES, make, same
from torchpipe.iter import IterableWrapper
from torchpipe.state import shared_list

LARGE = 64 << 10


def files() -> list[str]:
    """The images that this process has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # the one that the folder was read through
            pass
    return [path for path in found if "torchpipe-graph" in path]


def loaded(*parts: Any) -> Any:
    image = GraphImage.of(*parts)
    try:
        return image.load()
    finally:
        image.close()


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """Tensors and arrays on both sides of what is shared, of any dtype and layout."""
    dtype = draw(st.sampled_from(DTYPES))
    size_bytes = draw(st.sampled_from([0, 64, LARGE - 64, LARGE, LARGE + 64, 3 * LARGE]))
    value = make(dtype, (size_bytes // dtype.itemsize // 4, 4), draw(st.integers(0, 2**32)))
    value = draw(st.sampled_from([value, value.T, value[1:], value[::2]]))
    if draw(st.booleans()) and dtype is not torch.complex32:
        try:
            array = value.numpy()
        except TypeError:  # a dtype that numpy does not have
            return value
        if draw(st.booleans()):
            array = np.asfortranarray(array)
        if draw(st.booleans()):
            array.flags.writeable = False
        return array
    return value


@given(parts=st.lists(arrays(), max_size=4))
def test_what_is_loaded_is_equal_and_as_writable_as_before(parts: list[Any]) -> None:
    got = loaded({"parts": parts, "again": parts[:1]}, "text")
    assert got[1] == "text"
    for arrived, sent in zip(got[0]["parts"], parts, strict=True):
        if isinstance(sent, torch.Tensor):
            assert same(arrived, sent)
        else:
            assert (arrived.dtype, arrived.shape) == (sent.dtype, sent.shape)
            assert arrived.tobytes() == sent.tobytes()
            if sent.nbytes >= LARGE and (sent.flags.c_contiguous or sent.flags.f_contiguous):
                assert arrived.flags.writeable == sent.flags.writeable
    for arrived, sent in zip(got[0]["again"], got[0]["parts"], strict=False):
        assert arrived is sent


def test_each_load_is_for_itself() -> None:
    original = torch.arange(100_000)
    image = GraphImage.of(original)
    (one,), (two,) = image.load(), image.load()
    one.fill_(-1)
    original.fill_(-2)
    assert torch.equal(two, torch.arange(100_000))
    assert torch.equal(image.load()[0], torch.arange(100_000))
    image.close()
    two += 1  # what was loaded stays good
    assert torch.equal(two, torch.arange(1, 100_001))


def test_what_is_small_needs_no_file() -> None:
    image = GraphImage.of([np.zeros(LARGE - 1, np.uint8), "text"])
    assert files() == []
    image.close()


def test_the_file_ends_with_the_image() -> None:
    image = GraphImage.of(np.zeros(LARGE, np.uint8))
    assert len(files()) == 1
    image.close()
    image.close()
    assert files() == []
    image = GraphImage.of(np.zeros(LARGE, np.uint8))
    del image
    assert files() == []


def test_without_room_each_process_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(name: str) -> int:
        fd = os.memfd_create(name, os.MFD_ALLOW_SEALING)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        return fd

    monkeypatch.setattr(shared_list, "anonymous_file", full)
    original = torch.arange(100_000)
    image = GraphImage.of(original)
    assert files() == []
    assert torch.equal(image.load()[0], original)


@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_that_is_mapped_from_a_file_is_mapped_again(tmp_path: Path, order: Any) -> None:
    path = tmp_path / "data"
    array = np.memmap(path, np.int32, "w+", offset=8, shape=(40, 50), order=order)
    array[:] = np.arange(2000).reshape(40, 50)
    for view in (array, array[3:9, ::-2], array.T[5], array[2:3]):
        (got,) = loaded(view)
        assert np.array_equal(got, view)
        array[3, 1] += 1
        assert np.array_equal(got, view)  # the same memory
    read = np.memmap(path, np.int32, "r", offset=8)
    image = GraphImage.of(read)
    assert (files(), len(image._body) < 1000) == ([], True)
    assert not image.load()[0].flags.writeable
    changed = np.memmap(path, np.int32, "c")
    changed[0] = -1
    for elsewhere in (changed, read + 1, read[:0]):  # of which no file has the values
        assert np.array_equal(loaded(elsewhere)[0], elsewhere)
    path.rename(tmp_path / "moved")
    assert np.array_equal(loaded(read)[0], read)
    path.write_bytes(bytes(8008))
    assert np.array_equal(loaded(read)[0], read)  # another file has the name


class Mapped:
    """A function with an array that is mapped from a file; says whether this process maps that file."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __call__(self, index: int) -> tuple[int, bool]:
        return int(self.array[index]), str(self.array.filename) in smaps()


def test_workers_map_the_file_that_an_array_is_mapped_from(tmp_path: Path) -> None:
    array = np.memmap(tmp_path / "data", np.int64, "w+", shape=(40,))
    array[:] = np.arange(40)
    graph = IterableWrapper(range(40)).sharding_filter().map(Mapped(array))
    with make_loader(graph, make_service(1, None, context="forkserver")) as loader:
        assert list(loader) == [(index, True) for index in range(40)]


def test_an_object_that_cannot_be_pickled_leaves_no_file() -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        GraphImage.of(np.zeros(LARGE, np.uint8), (number for number in range(3)))
    assert files() == []


class Table:
    """A function with much data; says how much memory of the process's own its data take."""

    def __init__(self, megabytes: int) -> None:
        self.data = torch.arange(megabytes << 17)  # of 8 bytes each

    def __call__(self, index: int) -> tuple[int, int, int]:
        """(an item, MB of the data that are in memory, MB of those that are this process's own)."""
        found = re.findall(r"torchpipe-graph.*?\nRss: +(\d+) kB.*?Anonymous: +(\d+) kB", smaps(), re.DOTALL)
        total = int(self.data.sum()) - len(self.data) * (len(self.data) - 1) // 2
        return int(self.data[index]) + total, *(sum(int(pair[n]) for pair in found) // 1024 for n in (0, 1))  # type: ignore[return-value]


def smaps() -> str:
    return Path("/proc/self/smaps").read_text()


@pytest.mark.nightly
@pytest.mark.parametrize("context", PROCESSES)
def test_large_arrays_of_a_graph_are_in_memory_once(context: str) -> None:
    before = leaks.Footprint.take()
    graph = IterableWrapper(range(40)).sharding_filter().map(Table(megabytes=32))
    workers = 1 if context == "spawn" else 2  # each of whose workers imports torch anew
    loader = make_loader(graph, make_service(workers, None, context=context))
    got = list(loader)
    assert [item for item, _, _ in got] == list(range(40))
    assert {own for _, _, own in got} == {0}
    assert max(mapped for _, mapped, _ in got) == 32
    loader.shutdown()
    assert leaks.wait_nothing_left(before) == []
    assert [item for item, _, _ in loader] == list(range(40))  # it starts anew
    loader.shutdown()
