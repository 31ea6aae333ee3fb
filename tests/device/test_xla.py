"""The device stage on real XLA (PJRT on the CPU). Collecting this module imports no torch_xla."""

from __future__ import annotations

import dataclasses
import gc
import math
import os
import subprocess
import sys
import types
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch

from tests.sources import Script, feed_threads, start, wait_until
from torchpipe.device.xla import XlaBackend
from torchpipe.iter.running.to_device import ToDevice
from torchpipe.state import decode, encode

os.environ.setdefault("PJRT_DEVICE", "CPU")

pytestmark = pytest.mark.xla


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


@pytest.fixture
def backend() -> XlaBackend:
    made = XlaBackend()
    made.prepare()
    return made


def moved(backend: XlaBackend, batch: Any) -> Any:
    return backend.receive(backend.transfer(batch))


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
@pytest.mark.parametrize("device", ["xla", "xla:0", torch.device("xla"), torch.device("xla:0")])
def test_batches_arrive_in_order_on_the_device(depth: int, device: Any) -> None:
    with start(ToDevice(Script(batches(9)), device, depth)) as iterator:
        for number, batch in enumerate(iterator):
            assert batch["x"].device.type == batch["index"].device.type == "xla"
            assert torch.equal(batch["x"].cpu(), torch.full((2, 3), float(number)))
            assert batch["index"].dtype is torch.int64
    assert number == 8


def test_nested_batches_keep_their_types(backend: XlaBackend) -> None:
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
    assert result["again"].device.type == result["sample"].image.device.type == "xla"
    assert torch.equal(result["again"].cpu(), tensor)
    assert batch["again"] is tensor
    assert tensor.device.type == "cpu"


def test_what_torch_xla_moves_arrives_too(backend: XlaBackend) -> None:
    """Attributes of objects and torch_xla's DataWrapper; and a packed sequence as RNNs take it."""
    import torch_xla.utils.utils

    class Wrapper(torch_xla.utils.utils.DataWrapper):  # type: ignore[misc, name-defined]
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor

        def get_tensors(self) -> list[torch.Tensor]:
            return [self.tensor]

        def from_tensors(self, tensors: list[torch.Tensor]) -> Any:
            return {"unwrapped": tensors[0]}

    batch = [types.SimpleNamespace(x=torch.ones(2)), Wrapper(torch.ones(3)), {torch.ones(4)}]
    namespace, unwrapped, tensors = moved(backend, batch)
    found = [namespace.x, unwrapped["unwrapped"], *tensors]
    assert [(tensor.device.type, len(tensor)) for tensor in found] == [("xla", 2), ("xla", 3), ("xla", 4)]
    packed = moved(backend, torch.nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(1, 2)]))
    assert (packed.data.device.type, packed.batch_sizes.device.type) == ("xla", "cpu")
    padded, lengths = torch.nn.utils.rnn.pad_packed_sequence(packed)
    assert (padded.device.type, tuple(padded.shape), lengths.tolist()) == ("xla", (3, 2, 2), [3, 1])


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
def test_values_and_dtypes_arrive_exactly(backend: XlaBackend, dtype: torch.dtype) -> None:
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
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "conjugated": lambda: torch.tensor([1 + 2j]).conj(),
    "negated": lambda: torch.tensor([1 + 2j]).conj().imag,
    "inference": lambda: in_inference_mode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_any_form_of_tensor_arrives(backend: XlaBackend, form: str) -> None:
    tensor = FORMS[form]()
    result = moved(backend, tensor)
    assert result.device.type == "xla"
    assert torch.equal(result.cpu(), tensor)


def test_a_leaf_that_requires_grad_still_does(backend: XlaBackend) -> None:
    assert moved(backend, torch.ones(3, requires_grad=True)).requires_grad


def test_a_tensor_that_is_there_already_is_passed_on(backend: XlaBackend) -> None:
    there = moved(backend, torch.ones(2))
    result = moved(backend, [there, torch.zeros(2)])
    assert result[0] is there
    assert result[1].device == there.device


class Subclass(torch.Tensor):
    name = "none"


class Hollow(torch.Tensor):
    """A wrapper: what it stands for is in ``inner``."""

    def __new__(cls, inner: torch.Tensor) -> Hollow:
        made: Any = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        made.inner = inner
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*[arg.inner if isinstance(arg, cls) else arg for arg in args], **(kwargs or {}))


@pytest.mark.parametrize("depth", [0, 2])
def test_parameters_and_subclasses_keep_their_class_and_attributes(depth: int) -> None:
    tagged: Any = torch.arange(3.0).as_subclass(Subclass)
    tagged.name = "tagged"
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    batch = {"tagged": tagged, "weights": torch.nn.Parameter(torch.ones(2)), "frozen": frozen, "x": torch.ones(1)}
    with start(ToDevice(Script([batch]), "xla", depth)) as iterator:
        result = next(iterator)
    assert {key: type(value) for key, value in result.items()} == {key: type(value) for key, value in batch.items()}
    assert all(value.device.type == "xla" for value in result.values())
    assert (result["tagged"].name, result["tagged"].requires_grad) == ("tagged", False)
    assert torch.equal(result["tagged"].cpu().as_subclass(torch.Tensor), torch.arange(3.0))
    assert result["weights"].requires_grad
    assert result["weights"].is_leaf
    assert not result["frozen"].requires_grad


REFUSED = {
    r"dtype torch.uint16 would arrive as int16.*Cast it to torch.int32": lambda: torch.ones(2).to(torch.uint16),
    r"dtype torch.uint32 would arrive as int32.*Cast it to torch.int64": lambda: torch.ones(2).to(torch.uint32),
    r"dtype torch.uint64 would arrive as int64": lambda: torch.ones(2).to(torch.uint64),
    r"dtype torch.complex128 would lose its imaginary part": lambda: torch.ones(2, dtype=torch.complex128),
    r"dtype torch.float8_e8m0fnu is unknown to torch_xla": lambda: torch.ones(2).to(torch.float8_e8m0fnu),
    r"layout is torch.sparse_coo. Make it dense": lambda: torch.eye(2).to_sparse(),
    r"layout is torch.sparse_csr. Make it dense": lambda: torch.eye(2).to_sparse_csr(),
    r"it is a nested tensor. Pad it": lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
    r"it is a nested tensor. Pad": lambda: torch.nested.nested_tensor([torch.ones(1)], layout=torch.jagged),
    r"it is quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    r"it is a Hollow, whose values are not in itself. Unwrap it": lambda: Hollow(torch.ones(2)),
    r"part of an autograd graph": lambda: torch.ones(2, requires_grad=True) * 2,
    r"it is on meta": lambda: torch.ones(2, device="meta"),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested", "ignore:.*quantiz")
@pytest.mark.parametrize("message", REFUSED)
def test_L7_what_torch_xla_would_change_or_leave_behind_is_refused_by_name(backend: XlaBackend, message: str) -> None:
    batch = {"image": torch.ones(2), "rest": [1, Pair(0, REFUSED[message]())]}
    with pytest.raises(TypeError, match=r"^batch\['rest'\]\[1\].right cannot be moved to xla:0: .*" + message):
        backend.transfer(batch)


def test_the_casts_that_the_errors_advise_work(backend: XlaBackend) -> None:
    values = torch.tensor([0, 60_000], dtype=torch.uint16)
    assert moved(backend, values.to(torch.int32)).cpu().tolist() == [0, 60_000]


def test_the_host_memory_may_be_reused_at_once(backend: XlaBackend) -> None:
    assert backend.releases_source
    for size in (4, 1 << 20):
        values = torch.ones(size)
        result = moved(backend, values)
        values.zero_()
        assert float(result.cpu().min()) == 1.0


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_the_first_batch_comes_before_the_second_is_read(depth: int) -> None:
    source = Script(batches(9), block_at=1)
    with start(ToDevice(source, "xla", depth)) as iterator:
        assert int(next(iterator)["index"]) == 0
        assert len(source.journal.pulled) == 1
        source.gate.set()
        assert take(iterator, 9) == list(range(1, 9))


def failing() -> Script:
    return Script(batches(9), fail_at=4, error=OSError("planted"))


def test_L7_an_error_of_the_source_is_raised_at_its_place() -> None:
    iterator = start(ToDevice(failing(), "xla"))
    assert take(iterator, 4) == [0, 1, 2, 3]
    with iterator, pytest.raises(OSError, match="planted"):
        next(iterator)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_torch_xla_itself_ends_such_an_epoch_silently() -> None:
    """Why this stage is not built on MpDeviceLoader. Should this fail one day, torch_xla has mended it."""
    import torch_xla
    import torch_xla.distributed.parallel_loader

    make: Any = torch_xla.distributed.parallel_loader.MpDeviceLoader
    assert len(list(make(failing(), torch_xla.device()))) == 4


def test_L7_none_is_a_batch() -> None:
    with start(ToDevice(Script([torch.ones(1), None, torch.ones(1)]), "xla")) as iterator:
        assert [batch is None for batch in iterator] == [False, True, False]


def test_L7_a_refused_tensor_is_raised_at_its_place_and_taken_again() -> None:
    good = batches(5)
    bad = [*good[:3], {"x": torch.ones(1).to(torch.uint16), "index": torch.tensor(3)}, *good[4:]]
    iterator = start(ToDevice(Script(bad), "xla"))
    assert take(iterator, 3) == [0, 1, 2]
    with iterator, pytest.raises(TypeError, match=r"batch\['x'\]"):
        next(iterator)
    with start(ToDevice(Script(good), "xla"), state=iterator.state_dict()) as again:
        assert take(again, 9) == [3, 4]


@pytest.mark.parametrize("every", [1, None])
@pytest.mark.parametrize("depth", [0, 1, 2, 8])
def test_L2_a_checkpoint_in_mid_epoch_loses_nothing(depth: int, every: int | None) -> None:
    received: list[int] = []
    state = None
    for count in (3, 0, 4, 1):
        with start(ToDevice(Script(batches(12)), "xla", depth), every=every, state=state) as iterator:
            received += take(iterator, count)
            state = decode(encode(iterator.state_dict()))
    with start(Script(batches(12)), state=state) as plain:  # and without the stage
        received += take(plain, 12)
    assert received == list(range(12))


def test_L6_an_abandoned_epoch_ends_its_thread() -> None:
    for batch in start(ToDevice(Script(batches(50)), "xla")):
        if int(batch["index"]) == 3:
            break
    gc.collect()
    wait_until(lambda: feed_threads() == [])


def test_a_device_that_is_not_there_is_refused() -> None:
    with start(ToDevice(Script(batches(2)), "xla:7")) as iterator, pytest.raises(ValueError, match="no device xla:7"):
        next(iterator)


def test_the_thread_adds_nothing_to_the_graph_being_built() -> None:
    """A lazy operation in the feed thread would show as a computation in the consumer's next graph."""
    import torch_xla
    import torch_xla.debug.metrics

    metrics: Any = torch_xla.debug.metrics
    torch_xla.sync()
    metrics.clear_all()
    with start(ToDevice(Script(batches(6)), "xla", 3)) as iterator:
        assert len(list(iterator)) == 6
        torch_xla.sync()
    assert not [name for name in metrics.counter_names() if name.startswith("xla::") and "_to_copy" not in name]
    assert metrics.metric_data("ExecuteTime") is None
    assert metrics.metric_data("TransferToDeviceTime")[0] == 6  # one grouped transfer a batch


EXITING = """
import os, sys
os.environ["PJRT_DEVICE"] = "CPU"
sys.path.insert(0, {root!r})
import torch
from tests.sources import Script, start
from torchpipe.iter.running.to_device import ToDevice
assert "torch_xla" not in sys.modules
node = ToDevice(Script([torch.ones(1 << 20) for _ in range(500)]), "xla", 4)
assert "torch_xla" not in sys.modules
iterator = start(node)
print(float(next(iterator).sum()))
"""


def test_L6_a_process_that_exits_in_mid_epoch_exits_cleanly(pytestconfig: pytest.Config) -> None:
    command = [sys.executable, "-X", "faulthandler", "-c", EXITING.format(root=str(pytestconfig.rootpath))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1048576.0\n"), done.stderr
