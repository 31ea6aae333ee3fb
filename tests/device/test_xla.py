"""The device stage on real XLA (PJRT on the CPU). Collecting this module imports no torch_xla."""

from __future__ import annotations

import os
import types
from typing import Any, NamedTuple

import pytest
import torch

from tests.sources import Script, start
from torchpipe.device.xla import XlaBackend
from torchpipe.iter.to_device import ToDevice

os.environ.setdefault("PJRT_DEVICE", "CPU")

pytestmark = pytest.mark.xla


class Pair(NamedTuple):
    left: Any
    right: Any


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


def test_what_torch_xla_moves_arrives_too(backend: XlaBackend) -> None:
    """Attributes of objects and torch_xla's DataWrapper."""
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


class Hollow(torch.Tensor):
    """A wrapper: what it stands for is in ``inner``."""

    def __new__(cls, inner: torch.Tensor) -> Hollow:
        made: Any = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        made.inner = inner
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*[arg.inner if isinstance(arg, cls) else arg for arg in args], **(kwargs or {}))


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


def failing() -> Script:
    return Script(batches(9), fail_at=4, error=OSError("planted"))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_torch_xla_itself_ends_such_an_epoch_silently() -> None:
    """Why this stage is not built on MpDeviceLoader. Should this fail one day, torch_xla has mended it."""
    import torch_xla
    import torch_xla.distributed.parallel_loader

    make: Any = torch_xla.distributed.parallel_loader.MpDeviceLoader
    assert len(list(make(failing(), torch_xla.device()))) == 4


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
