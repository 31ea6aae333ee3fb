"""What arrives on a device with memory of its own, and where an error appears: the same on XLA and on CUDA."""

from __future__ import annotations

import dataclasses
import gc
import math
import os
import subprocess
import sys
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch

from tests.device.kinds import MOVED_TO
from tests.sources import Script, feed_threads, start, wait_until
from torchpipe.device import Backend, resolve
from torchpipe.iter import IterableWrapper
from torchpipe.iter.to_device import ToDevice
from torchpipe.state import decode, encode

os.environ.setdefault("PJRT_DEVICE", "CPU")


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    image: torch.Tensor
    name: str


def batches(length: int) -> list[dict[str, Any]]:
    return [{"x": torch.full((2, 3), float(index)), "index": torch.tensor(index)} for index in range(length)]


def take(iterator: Any, count: int) -> list[int]:
    return [int(batch["index"]) for _, batch in zip(range(count), iterator)]


@pytest.fixture(params=MOVED_TO)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def backend(device: str) -> Backend:
    made = resolve(device)
    made.prepare()
    return made


def moved(backend: Backend, batch: Any) -> Any:
    return backend.receive(backend.transfer(batch))


def test_nested_batches_keep_their_types(backend: Backend) -> None:
    tensor = torch.arange(4.0)
    batch = OrderedDict(
        pair=Pair([tensor, 1], ("text", None)), sample=Sample(torch.ones(2, 2), "a"), again=tensor, numbers=[1, 2.5]
    )
    result = moved(backend, batch)
    assert type(result) is OrderedDict
    assert type(result["pair"]) is Pair
    assert type(result["sample"]) is Sample
    assert result["pair"].right == ("text", None)
    assert result["numbers"] is batch["numbers"]
    assert result["again"] is result["pair"].left[0]
    assert result["again"].device.type == result["sample"].image.device.type == backend.name
    assert torch.equal(result["again"].cpu(), tensor)
    assert batch["again"] is tensor
    assert tensor.device.type == "cpu"


def test_a_packed_sequence_arrives_as_rnns_take_it(backend: Backend) -> None:
    packed = moved(backend, torch.nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(1, 2)]))
    assert (packed.data.device.type, packed.batch_sizes.device.type) == (backend.name, "cpu")
    padded, lengths = torch.nn.utils.rnn.pad_packed_sequence(packed)
    assert (padded.device.type, tuple(padded.shape), lengths.tolist()) == (backend.name, (3, 2, 2), [3, 1])


EXACT = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


@pytest.mark.parametrize("dtype", EXACT, ids=str)
def test_values_and_dtypes_arrive_exactly(backend: Backend, dtype: torch.dtype) -> None:
    values = torch.tensor([0, 1, 3, 100]).to(dtype)
    if dtype is torch.int64:
        values[3] = 2**63 - 1
    if dtype in (torch.float64, torch.float32):
        values[3] = math.pi
    if dtype is torch.complex64:
        values = torch.tensor([0, 1, 3, 1 + 2j], dtype=dtype)
    result = moved(backend, values)
    assert result.dtype is result.cpu().dtype is dtype
    assert torch.equal(result.cpu().view(torch.uint8), values.view(torch.uint8))


def in_inference_mode() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(3)


FORMS = {
    "scalar": lambda: torch.tensor(3.5),
    "empty": lambda: torch.empty(0, 3),
    "transposed": lambda: torch.arange(12.0).reshape(3, 4).t(),
    "expanded": lambda: torch.arange(3.0).expand(4, 3),
    "strided": lambda: torch.arange(12.0)[::3],
    "columns": lambda: torch.arange(12.0).reshape(3, 4)[:, 1:3],
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "conjugated": lambda: torch.tensor([1 + 2j]).conj(),
    "negated": lambda: torch.tensor([1 + 2j]).conj().imag,
    "inference": lambda: in_inference_mode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_any_form_of_tensor_arrives(backend: Backend, form: str) -> None:
    tensor = FORMS[form]()
    result = moved(backend, tensor)
    assert result.device.type == backend.name
    assert torch.equal(result.cpu(), tensor)
    if backend.name == "cuda":
        assert result.stride() == tensor.to("cuda").stride()  # XLA has formats of its own


def test_a_leaf_that_requires_grad_still_does(backend: Backend) -> None:
    result = moved(backend, torch.ones(3, requires_grad=True))
    assert result.requires_grad
    assert result.is_leaf


def test_a_tensor_that_is_there_already_is_passed_on(backend: Backend) -> None:
    there = moved(backend, torch.ones(2))
    result = moved(backend, [there, torch.zeros(2)])
    assert result[0] is there
    assert result[1].device == there.device


class Subclass(torch.Tensor):
    name = "none"


@pytest.mark.parametrize("depth", [0, 2])
def test_parameters_and_subclasses_keep_their_class_and_attributes(device: str, depth: int) -> None:
    tagged: Any = torch.arange(3.0).as_subclass(Subclass)
    tagged.name = "tagged"
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    batch = {"tagged": tagged, "weights": torch.nn.Parameter(torch.ones(2)), "frozen": frozen, "x": torch.ones(1)}
    with start(ToDevice(Script([batch]), device, depth)) as iterator:
        result = next(iterator)
    assert {key: type(value) for key, value in result.items()} == {key: type(value) for key, value in batch.items()}
    assert all(value.device.type == device for value in result.values())
    assert (result["tagged"].name, result["tagged"].requires_grad) == ("tagged", False)
    assert torch.equal(result["tagged"].cpu().as_subclass(torch.Tensor), torch.arange(3.0))
    assert result["weights"].requires_grad
    assert result["weights"].is_leaf
    assert not result["frozen"].requires_grad


def test_the_host_memory_may_be_reused_at_once(backend: Backend) -> None:
    assert backend.releases_source
    for size in (4, 1 << 20, 1 << 24):
        for pinned in (False, True) if backend.name == "cuda" else (False,):
            values = torch.ones(size).pin_memory() if pinned else torch.ones(size)
            result = moved(backend, values)
            values.zero_()
            assert float(result.cpu().min()) == 1.0


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_the_first_batch_comes_before_the_second_is_read(device: str, depth: int) -> None:
    source = Script(batches(9), block_at=1)
    with start(ToDevice(source, device, depth)) as iterator:
        assert int(next(iterator)["index"]) == 0
        assert len(source.journal.pulled) == 1
        source.gate.set()
        assert take(iterator, 9) == list(range(1, 9))


def test_L7_an_error_of_the_source_is_raised_at_its_place(device: str) -> None:
    iterator = start(ToDevice(Script(batches(9), fail_at=4, error=OSError("planted")), device))
    assert take(iterator, 4) == [0, 1, 2, 3]
    with iterator, pytest.raises(OSError, match="planted"):
        next(iterator)


def test_L7_none_is_a_batch(device: str) -> None:
    with start(ToDevice(Script([torch.ones(1), None, torch.ones(1)]), device)) as iterator:
        assert [batch is None for batch in iterator] == [False, True, False]


def test_L7_a_tensor_that_cannot_be_moved_is_an_error_at_its_place_and_taken_again(device: str) -> None:
    good = batches(5)
    bad = [*good[:3], {"x": torch.ones(1, device="meta"), "index": torch.tensor(3)}, *good[4:]]
    iterator = start(ToDevice(Script(bad), device))
    assert take(iterator, 3) == [0, 1, 2]
    with iterator, pytest.raises((TypeError, NotImplementedError), match="meta"):
        next(iterator)
    with start(ToDevice(Script(good), device), state=iterator.state_dict()) as again:
        assert take(again, 9) == [3, 4]


@pytest.mark.parametrize("threads", [2, 4])
def test_the_order_holds_with_several_transfer_threads(device: str, threads: int) -> None:
    """Large and small batches in turn: the small ones overtake."""
    sizes = [1 << 20 if number % 3 == 0 else 4 for number in range(30)]
    items = [torch.full((size,), float(number)) for number, size in enumerate(sizes)]
    with start(ToDevice(Script(items), device, 4, host_prefetch=4, transfer_threads=threads)) as iterator:
        assert [float(batch[0]) for batch in iterator] == [float(number) for number in range(30)]


@pytest.mark.parametrize("pinned", [False, True])
def test_a_source_may_use_its_memory_again(device: str, pinned: bool) -> None:
    if pinned and device != "cuda":
        pytest.skip("only CUDA has pinned memory")
    memory = torch.zeros(1 << 22, pin_memory=pinned)
    node = IterableWrapper(range(20)).map(lambda number: memory.fill_(number))
    with start(ToDevice(node, device, 4)) as iterator:
        found = [(float(batch[0]), float(batch[-1])) for batch in iterator]
    assert found == [(number, number) for number in range(20)]


@pytest.mark.parametrize("every", [1, None])
@pytest.mark.parametrize("depth", [0, 1, 2, 8])
def test_L2_a_checkpoint_in_mid_epoch_loses_nothing(device: str, depth: int, every: int | None) -> None:
    received: list[int] = []
    state = None
    for count in (3, 0, 4, 1):
        with start(ToDevice(Script(batches(12)), device, depth), every=every, state=state) as iterator:
            received += take(iterator, count)
            state = decode(encode(iterator.state_dict()))
    with start(Script(batches(12)), state=state) as plain:  # and without the stage
        received += take(plain, 12)
    assert received == list(range(12))


def test_L6_an_abandoned_epoch_ends_its_thread(device: str) -> None:
    for batch in start(ToDevice(Script(batches(50)), device)):
        if int(batch["index"]) == 3:
            break
    gc.collect()
    wait_until(lambda: feed_threads() == [])


def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    name = f"{device}:99"
    with start(ToDevice(Script(batches(2)), name)) as iterator, pytest.raises(ValueError, match=f"no device {name}"):
        next(iterator)


EXITING = """
import os, sys
os.environ["PJRT_DEVICE"] = "CPU"
sys.path.insert(0, {root!r})
import torch
from tests.sources import Script, start
from torchpipe.iter.to_device import ToDevice
assert "torch_xla" not in sys.modules
node = ToDevice(Script([torch.ones(1 << 20) for _ in range(500)]), {device!r}, 4)
assert "torch_xla" not in sys.modules
iterator = start(node)
print(float(next(iterator).sum()))
"""


@pytest.mark.nightly
def test_L6_a_process_that_exits_in_mid_epoch_exits_cleanly(device: str, pytestconfig: pytest.Config) -> None:
    script = EXITING.format(root=str(pytestconfig.rootpath), device=device)
    command = [sys.executable, "-X", "faulthandler", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1048576.0\n"), done.stderr
