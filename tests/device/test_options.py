"""The options of the device stage: what is refused, and what each does to batches on their way."""

from __future__ import annotations

import gc
import logging
import weakref
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reading_services import MultiProcessingReadingService
from tests.sources import Script, start, wait_until
from torchpipe import DataLoader2
from torchpipe.ahead.background import FeedStats
from torchpipe.device import BatchGate, DeviceKeywords, DeviceOptions
from torchpipe.device.prepare import tensor_of
from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper
from torchpipe.iter.running import Prefetcher
from torchpipe.iter.to_device import ToDevice
from torchpipe.state import Cursor, decode, encode
from torchpipe.testing import FakeBackend


def test_constructors_take_every_option() -> None:
    options = {option.name: option.type for option in fields(DeviceOptions)}
    assert (options.pop("device"), options.pop("device_prefetch")) == ("Any", "int")
    assert {name: hint.__forward_arg__ for name, hint in DeviceKeywords.__annotations__.items()} == options


def test_a_name_that_is_no_option_is_an_error_of_who_was_called() -> None:
    with pytest.raises(TypeError, match=r"^to_device\(\) got an unexpected keyword argument 'host_prefech'"):
        IterableWrapper([1]).to_device("cpu", host_prefech=2)  # type: ignore[call-arg]


def service_and_node() -> list[Any]:
    return [
        lambda graph, fake, **options: (
            graph,
            MultiProcessingReadingService(device=DeviceOptions(fake, **options)),
        ),
        lambda graph, fake, **options: (graph.to_device(fake, **options), None),
    ]


@pytest.mark.parametrize("place", service_and_node())
def test_the_node_and_the_service_take_the_same_options(place: Any) -> None:
    fake = FakeBackend()
    items = [{"x": np.ones((2, 2), np.float32) * n, "n": n} for n in range(5)]
    items.append({"x": np.ones((1, 2), np.float32), "n": 5})
    graph, service = place(
        IterableWrapper(items),
        fake,
        host_prefetch=2,
        transfer_threads=2,
        dtype="bfloat16",
        convert_numpy=True,
        sync="loader",
        batches_per_execution=2,
        wait_every=4,
        on_new_shape="pad",
        pad_value=7,
    )
    with DataLoader2(graph, reading_service=service) as loader:
        received = list(loader)
    assert [batch["n"] for batch in received] == list(range(6))
    assert {(batch["x"].dtype, tuple(batch["x"].shape)) for batch in received} == {(torch.bfloat16, (2, 2))}
    assert received[5]["x"].tolist() == [[1, 1], [7, 7]]
    assert [call for call in fake.calls if call in ("sync", "wait")] == ["sync", "sync", "wait", "sync"]


# --- on the host


def gate(**options: Any) -> BatchGate:
    return BatchGate(DeviceOptions("cpu", **options), "stage")


def test_only_floating_point_tensors_on_the_host_are_cast() -> None:
    batch = {"x": torch.ones(2), "y": torch.ones(2, dtype=torch.int64), "z": [torch.ones(1, dtype=torch.float64)]}
    admitted = gate(dtype=torch.float16).admit(batch)
    assert admitted is not None
    made = admitted.item
    assert (made["x"].dtype, made["y"].dtype, made["z"][0].dtype) == (torch.float16, torch.int64, torch.float16)
    assert made["y"] is batch["y"]
    assert batch["x"].dtype is torch.float32
    assert admitted.nbytes == 2 * 2 + 2 * 8 + 2
    leaf = gate(dtype="bfloat16").admit(torch.ones(2, requires_grad=True))
    assert leaf is not None
    assert leaf.item.requires_grad
    assert leaf.item.is_leaf


def test_numpy_arrays_are_kept_or_made_tensors() -> None:
    array = np.arange(6, dtype=np.int32)
    batch = [array, {"again": array, "text": np.array(["a"]), "objects": np.array([None])}]
    kept = gate().admit(batch)
    made = gate(convert_numpy=True).admit(batch)
    assert kept is not None
    assert made is not None
    assert kept.item is batch
    tensor = made.item[0]
    assert tensor.data_ptr() == array.ctypes.data
    assert made.item[1]["again"] is tensor
    assert made.item[1]["text"] is batch[1]["text"]
    assert made.item[1]["objects"] is batch[1]["objects"]


def test_arrays_that_torch_cannot_share_are_copied_or_refused() -> None:
    fixed = np.arange(4.0)
    fixed.flags.writeable = False
    for array in (fixed, np.arange(4.0)[::-1], np.arange(8.0)[::2]):
        made = tensor_of(array)
        assert made is not None
        assert made.tolist() == array.tolist()
    with pytest.raises(TypeError, match="other byte order"):
        tensor_of(np.arange(3, dtype=">i4"))
    with pytest.raises(TypeError, match="torch has no dtype"):
        tensor_of(np.ones(2, np.longdouble))


# --- shapes


def rows(*counts: int) -> list[dict[str, Any]]:
    return [{"x": torch.full((count, 2), float(index)), "n": index} for index, count in enumerate(counts)]


def numbers(items: Any) -> list[int]:
    return [batch["n"] for batch in items]


def staged(items: Any, policy: str, **options: Any) -> ToDevice[Any]:
    return ToDevice(Script(items), "cpu", on_new_shape=policy, **options)


def stats_of(iterator: Any) -> FeedStats:
    stats: FeedStats = iterator.stats()
    return stats


def test_new_shapes_are_counted_and_said(caplog: pytest.LogCaptureFixture) -> None:
    items = rows(4, 4, 3, 4, 3, 2)
    with start(staged(items, "allow")) as iterator:
        assert numbers(iterator) == list(range(6))
        assert stats_of(iterator).new_shapes == 2
    assert caplog.text == ""
    with caplog.at_level(logging.WARNING, "torchpipe"), start(staged(items, "warn")) as iterator:
        assert numbers(iterator) == list(range(6))
    assert [record.getMessage().count("float32") for record in caplog.records] == [1, 1]
    assert "new shapes so far: 2): float32[2, 2]" in caplog.text


def test_another_shape_is_padded_with_the_value_asked_for() -> None:
    with start(staged(rows(3, 1, 0, 3), "pad", pad_value=-1)) as iterator:
        received = [batch["x"].tolist() for batch in iterator]
        assert stats_of(iterator).new_shapes == 2
    pad = [-1.0, -1.0]
    assert received == [[[0, 0]] * 3, [[1, 1], pad, pad], [pad] * 3, [[3, 3]] * 3]


def texts(*shapes: tuple[int, int]) -> list[dict[str, Any]]:
    """Token numbers and their embeddings, labels, and an image whose channels are no length."""
    return [
        {
            "x": torch.full((rows, length), 7),
            "deep": [torch.ones(rows, length, 3)],
            "y": torch.ones(rows),
            "image": torch.ones(rows, 3, 4),
            "n": index,
        }
        for index, (rows, length) in enumerate(shapes)
    ]


def test_lengths_are_padded_to_a_few_fixed_ones() -> None:
    sizes = {"x": [4, 8, 16], "deep": [4, 8, 16]}
    items = texts((2, 3), (2, 8), (2, 1), (1, 9), (2, 16), (2, 4))
    with start(staged(items, "pad", pad_to=sizes, pad_value=-1)) as iterator:
        received = list(iterator)
        assert stats_of(iterator).new_shapes == 3  # of 4 in length, 8 and 16, and a last, smaller batch
    assert [tuple(batch["x"].shape) for batch in received] == [(2, 4), (2, 8), (2, 4), (2, 16), (2, 16), (2, 4)]
    assert all(batch["deep"][0].shape == (*batch["x"].shape, 3) for batch in received)
    assert {(*batch["y"].shape, *batch["image"].shape) for batch in received} == {(2, 2, 3, 4)}
    assert received[0]["x"].tolist() == [[7, 7, 7, -1]] * 2
    assert received[3]["x"].tolist() == [[7] * 9 + [-1] * 7, [-1] * 16]
    with start(staged([(torch.ones(1, 3), torch.ones(1))] * 2, "pad", pad_to=[8])) as iterator:
        assert [tuple(part.shape) for part in next(iterator)] == [(1, 8), (1,)]


def test_L7_a_length_beyond_the_largest_is_an_error_at_its_place() -> None:
    with start(staged(texts((2, 4), (2, 9), (2, 4)), "pad", pad_to=[4, 8])) as iterator:
        assert next(iterator)["n"] == 0
        with pytest.raises(ValueError, match=r"batch\['x'\] of \[2, 9\] on cpu cannot be padded .* to one of \[4, 8\]"):
            next(iterator)


@given(
    lengths=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=10),
    parts=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=4),
    every=st.sampled_from([1, 3, None]),
)
def test_L2_lengths_are_padded_alike_after_a_restore(
    lengths: list[tuple[int, int]], parts: list[tuple[int, int]], every: int | None
) -> None:
    items = texts((2, 5), *lengths)
    received: list[Any] = []
    state = None
    for count, depth in [*parts, (99, 2)]:
        node = staged(items, "pad", pad_to={"x": [1, 4, 9], "deep": [5, 9]}, prefetch=depth)
        with start(node, every=every, state=state) as iterator:
            received += [batch for _, batch in zip(range(count), iterator)]
            state = decode(encode(iterator.state_dict()))
    assert numbers(received) == list(range(len(items)))
    for batch, (_, length) in zip(received, [(2, 5), *lengths]):
        assert tuple(batch["x"].shape) == (2, next(size for size in (1, 4, 9) if size >= length))
        assert tuple(batch["deep"][0].shape) == (2, next(size for size in (5, 9) if size >= length), 3)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"x": torch.ones(4, 2), "n": 1},
            r"batch\['x'\] of float32\[4, 2\] cannot be padded: .* it was float32\[3, 2\]",
        ),
        ({"x": torch.ones(3, 2, 1), "n": 1}, r"batch\['x'\] of float32\[3, 2, 1\] cannot be padded"),
        ({"x": torch.ones(3, 2).int(), "n": 1}, r"batch\['x'\] of int32\[3, 2\] cannot be padded"),
        ({"x": 0, "n": 1}, "a batch with 0 tensors cannot be padded: the first one of this pass had 1"),
    ],
)
def test_L7_what_cannot_be_padded_is_an_error_at_its_place(other: Any, message: str) -> None:
    with start(staged([*rows(3), other], "pad")) as iterator:
        assert next(iterator)["n"] == 0
        with pytest.raises(ValueError, match=message):
            next(iterator)


def test_L7_another_shape_is_refused_at_its_place() -> None:
    iterator = start(staged(rows(3, 3, 2, 3), "raise"))
    assert [next(iterator)["n"], next(iterator)["n"]] == [0, 1]
    with iterator, pytest.raises(ValueError, match=r"batch\['x'\] of float32\[2, 2\] is refused") as caught:
        next(iterator)
    assert "while it moved item 2 " in caught.value.__notes__[0]
    again = start(staged(rows(3, 3, 2, 3), "raise"), state=iterator.state_dict())
    with again, pytest.raises(ValueError, match="is refused"):  # also where it is the first batch after a restore
        next(again)


def test_the_length_is_not_known_where_batches_may_be_left_out() -> None:
    assert len(staged(rows(1, 2), "pad")) == 2
    with pytest.raises(TypeError, match="is not known"):
        len(staged(rows(1, 2), "drop"))


@given(
    counts=st.lists(st.integers(0, 2), max_size=14),
    policy=st.sampled_from(["drop", "pad", "allow"]),
    parts=st.lists(st.tuples(st.integers(0, 6), st.sampled_from([0, 1, 3]), st.booleans()), min_size=1, max_size=4),
    every=st.sampled_from([1, 3, None]),
)
def test_L2_shapes_are_judged_alike_after_a_restore(
    counts: list[int], policy: str, parts: list[Any], every: int | None
) -> None:
    counts = [2, *counts] if policy == "pad" else counts
    items = rows(*counts)
    kept = [n for n, count in enumerate(counts) if policy != "drop" or count == counts[0]]
    received: list[Any] = []
    state = None
    for count, depth, two_queues in [*parts, (99, 2, True)]:
        options = {"host_prefetch": 2, "transfer_threads": 2} if two_queues and depth else {}
        node = staged(items, policy, prefetch=depth, **options)
        with start(node, every=every, state=state) as iterator:
            received += [batch for _, batch in zip(range(count), iterator)]
            state = decode(encode(iterator.state_dict()))
    assert numbers(received) == kept
    if policy == "pad":
        assert {tuple(batch["x"].shape) for batch in received} == {(2, 2)}


def test_L3_a_state_with_shapes_loads_without_the_stage_and_the_other_way_round() -> None:
    items = rows(2, 1, 2, 2)
    with start(staged(items, "drop")) as iterator:
        assert numbers([next(iterator), next(iterator)]) == [0, 2]
        state = iterator.state_dict()
    with start(Script(items), state=state) as plain:
        assert numbers(plain) == [3]
    with start(Prefetcher(Script(items), 2), state=state) as plain:
        assert numbers(plain) == [3]
    with start(staged(items, "drop"), state={"index": 1}) as iterator:
        assert numbers(iterator) == [1]  # nothing was known: the first batch that it sees decides


def test_L8_damaged_shapes_are_refused() -> None:
    with pytest.raises(StateError, match="shapes are damaged"):
        start(staged(rows(1), "drop"), state=Cursor().to_state() | {"shapes": [["float32"]]})


# --- the pace


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize(("length", "group", "syncs"), [(0, 1, 0), (3, 1, 3), (8, 4, 2), (9, 4, 3), (3, 4, 1)])
def test_work_is_started_in_equal_groups_and_a_rest(depth: int, length: int, group: int, syncs: int) -> None:
    fake = FakeBackend()
    node = ToDevice(Script(rows(*[1] * length)), fake, depth, sync="loader", batches_per_execution=group)
    steps: list[str] = []
    with start(node) as iterator:
        for _ in iterator:
            steps.append("step")
            assert fake.calls.count("sync") == (len(steps) - 1) // group
        assert stats_of(iterator).syncs == fake.calls.count("sync") == syncs


def test_a_loop_that_is_left_starts_nothing_more() -> None:
    fake = FakeBackend()
    with start(ToDevice(Script(rows(1, 1, 1)), fake, sync="loader")) as iterator:
        next(iterator)
        next(iterator)
    assert fake.calls.count("sync") == 1


def test_the_consumer_waits_for_the_device_as_often_as_asked() -> None:
    fake = FakeBackend()
    with start(ToDevice(Script(rows(*[1] * 7)), fake, wait_every=3)) as iterator:
        assert len(list(iterator)) == 7
        assert stats_of(iterator).waits == fake.calls.count("wait") == 2
    assert fake.calls.count("sync") == 0


def test_L7_a_thread_that_runs_ahead_must_not_start_the_work() -> None:
    node = Prefetcher(ToDevice(Script(rows(1, 1)), FakeBackend(), sync="loader"), 2)
    with start(node) as iterator, pytest.raises(RuntimeError, match=r"put to_device\(\) after prefetch\(\)"):
        next(iterator)


def test_stats_count_bytes_and_depths() -> None:
    fake = FakeBackend(block_at=2)
    with start(ToDevice(Script(rows(2, 2, 2, 2, 2, 2)), fake, 1, host_prefetch=2)) as iterator:
        numbers([next(iterator)])
        fake.gate.set()
        assert numbers(iterator) == [1, 2, 3, 4, 5]
        stats = stats_of(iterator)
    assert stats.moved_bytes == 6 * 16
    assert (stats.items, stats.ready, stats.ready_bytes, stats.waiting, stats.waiting_bytes) == (6, 0, 0, 0, 0)
    assert stats.pull_s > 0
    assert stats.transfer_s > 0


class Releasing(FakeBackend):
    """Keeps nothing of what it moved."""

    def transfer(self, batch: Any, /) -> Any:
        return batch["n"]


@pytest.mark.parametrize("options", [{}, {"host_prefetch": 1, "transfer_threads": 2}])
def test_L5_the_source_of_a_batch_is_let_go_before_the_consumer_takes_it(options: dict[str, Any]) -> None:
    made: list[weakref.ref[torch.Tensor]] = []

    def fresh(number: int) -> dict[str, Any]:
        tensor = torch.full((3,), float(number))
        made.append(weakref.ref(tensor))
        return {"x": tensor, "n": number}

    graph = IterableWrapper(range(3)).map(fresh).to_device(Releasing(), 3, **options)
    iterator = iter(graph)
    gc.disable()  # what is in a cycle would stay until the collector happens to run
    try:
        assert next(iterator) == 0
        wait_until(lambda: len(made) == 3 and not any(item() is not None for item in made))
    finally:
        gc.enable()
    assert list(iterator) == [1, 2]
