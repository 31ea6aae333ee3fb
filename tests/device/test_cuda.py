"""What CUDA alone has: streams, pinned memory, kinds of tensors, the current device. Needs a GPU.

What it shares with XLA is tested in ``test_moved``, and in loaders in ``test_each_device``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from tests.device.kinds import other_stream
from tests.sources import Script, start
from torchpipe import DataLoader
from torchpipe.compat.torch_private import pin_memory
from torchpipe.device import Backend, resolve
from torchpipe.device.pinned import pinned
from torchpipe.device.tree import tensors_in
from torchpipe.iter import IterableWrapper
from torchpipe.iter.to_device import ToDevice
from torchpipe.testing.compare import value_of

pytestmark = pytest.mark.cuda

LARGE = 1 << 22  # numbers in a batch of 16 MiB, which takes a while to copy


@pytest.fixture
def backend() -> Backend:
    made = resolve("cuda")
    made.prepare()
    return made


def moved(backend: Backend, batch: Any) -> Any:
    return backend.receive(backend.transfer(batch))


DTYPES = [  # beside those that every device takes
    *(torch.uint16, torch.uint32, torch.uint64, torch.complex32, torch.complex128),
    *(torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_more_dtypes_arrive(backend: Backend, dtype: torch.dtype) -> None:
    values = torch.arange(64, dtype=torch.uint8).view(dtype)
    result = moved(backend, values)
    assert (result.dtype, result.shape, result.device.type) == (dtype, values.shape, "cuda")
    assert torch.equal(result.cpu().view(torch.uint8), values.view(torch.uint8))


class Hollow(torch.Tensor):
    """A wrapper: what it stands for is in ``inner``."""

    def __new__(cls, inner: torch.Tensor) -> Hollow:
        made: Any = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        made.inner = inner
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*[arg.inner if isinstance(arg, cls) else arg for arg in args], **(kwargs or {}))


class Stuck(Hollow):
    def to(self, *_: Any, **__: Any) -> Any:
        return self


KINDS = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse, by rows": lambda: torch.eye(3).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    "in a graph": lambda: torch.ones(2, requires_grad=True) * 2,
    "wrapper": lambda: Hollow(torch.ones(2)),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested", "ignore:.*quantiz")
@pytest.mark.parametrize("kind", KINDS)
def test_other_kinds_of_tensors_arrive_as_to_gives_them(kind: str) -> None:
    batches = [{"x": torch.ones(2), "rest": [1, KINDS[kind]()]} for _ in range(4)]
    expected = KINDS[kind]().to("cuda")
    with start(ToDevice(Script(batches), "cuda")) as iterator:
        for batch in iterator:
            result = batch["rest"][1]
            assert batch["x"].device == result.device == expected.device
            assert (type(result), result.layout, result.requires_grad) == (
                type(expected),
                expected.layout,
                expected.requires_grad,
            )
            assert dense(result) == dense(expected)


def dense(tensor: torch.Tensor) -> Any:
    if tensor.is_nested:
        return [part.tolist() for part in tensor.unbind()]
    if tensor.is_quantized:
        return tensor.int_repr().tolist()
    return (tensor if tensor.layout is torch.strided else tensor.to_dense()).tolist()


def test_L7_what_stays_behind_is_refused_by_name(backend: Backend) -> None:
    with pytest.raises(TypeError, match=r"^batch\['rest'\]\[1\] cannot be moved to cuda:0: .* of this Stuck leaves it"):
        moved(backend, {"rest": [1, Stuck(torch.ones(2))]})


def busy_kernels() -> torch.Tensor:
    """Queue some milliseconds of work on the current stream; its result is 1."""
    ones = torch.ones(2048, 2048, device="cuda")
    for _ in range(20):
        ones = ones @ ones / 2048
    return ones[0, 0]


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_memory_that_the_loops_stream_still_reads_is_not_used_again(depth: int) -> None:
    """Each batch is let go as soon as its sum is queued, behind work that takes longer than several copies."""
    node = IterableWrapper(range(30)).map(lambda number: torch.full((LARGE,), float(number)))
    sums = []
    with other_stream("cuda"), start(ToDevice(node, "cuda", depth)) as iterator:
        for batch in iterator:
            sums.append((batch * busy_kernels())[:: LARGE // 16].sum())
            del batch
        found = torch.stack(sums).tolist()
    assert found == [16.0 * number for number in range(30)]


@pytest.mark.parametrize("depth", [0, 2])
def test_what_the_source_makes_on_the_device_is_waited_for(depth: int) -> None:
    """In the thread that runs ahead, by kernels that are still queued when the batch is handed out."""

    def made(number: int) -> dict[str, torch.Tensor]:
        return {
            "there": torch.full((LARGE,), float(number), device="cuda") * busy_kernels(),
            "here": torch.tensor(number),
        }

    found = []
    with other_stream("cuda"), start(ToDevice(IterableWrapper(range(12)).map(made), "cuda", depth)) as iterator:
        for batch in iterator:
            found.append(batch["there"][:: LARGE // 4].sum() + batch["here"])
            del batch
        assert torch.stack(found).tolist() == [5.0 * number for number in range(12)]


@pytest.mark.parametrize("depth", [0, 2])
def test_the_loops_device_and_stream_stay_what_they_are(depth: int) -> None:
    with other_stream("cuda"):
        before = torch.cuda.current_device(), torch.cuda.current_stream()
        with start(ToDevice(Script([torch.ones(4)] * 5), "cuda:0", depth)) as iterator:
            for _ in iterator:
                assert (torch.cuda.current_device(), torch.cuda.current_stream()) == before


@pytest.mark.parametrize("depth", [0, 2])
def test_batches_go_to_another_device_than_the_current_one(depth: int) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    with start(ToDevice(Script([torch.full((9,), float(n)) for n in range(5)]), "cuda:1", depth)) as iterator:
        for number, batch in enumerate(iterator):
            assert str(batch.device) == "cuda:1"
            assert batch.tolist() == [number] * 9
            assert torch.cuda.current_device() == 0


def test_L5_memory_on_the_device_does_not_grow_with_the_passes() -> None:
    def one_pass() -> int:
        with start(ToDevice(Script([torch.ones(LARGE)] * 6), "cuda", 2)) as iterator:
            for batch in iterator:
                del batch
        torch.cuda.synchronize()
        return torch.cuda.memory_reserved()

    first = max(one_pass() for _ in range(2))
    assert max(one_pass() for _ in range(8)) <= first + 3 * 4 * LARGE  # by timing, one more may be on its way


def test_options_work_as_elsewhere() -> None:
    node = ToDevice(Script([torch.ones(2)] * 6), "cuda", 2, dtype="bfloat16", sync="loader", wait_every=2)
    with start(node) as iterator:
        assert all(batch.dtype is torch.bfloat16 for batch in iterator)
        assert (iterator.stats().syncs, iterator.stats().waits) == (6, 3)  # type: ignore[attr-defined]


def test_a_graph_is_captured_while_batches_are_moved_ahead() -> None:
    held = torch.zeros(LARGE, device="cuda")
    items = [torch.full((LARGE,), float(number)) for number in range(20)]
    found = []
    with start(ToDevice(Script(items), "cuda", 3)) as iterator:
        next(iterator)
        held[:: LARGE // 4].sum()  # kernels are loaded at their first call, not while it is recorded
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            total = held[:: LARGE // 4].sum()
        for batch in iterator:
            held.copy_(batch)
            graph.replay()
            found.append(float(total))
    assert found == [4.0 * number for number in range(1, 20)]


class Pictures(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, number: int) -> Any:
        return {"x": torch.full((10_000,), float(number)), "name": f"{number}"}


WORKERS: dict[str, dict[str, Any]] = {
    "in process": {},
    "workers": {"num_workers": 2},
    "threads": {"num_workers": 2, "worker_method": "thread"},
}


@pytest.fixture(params=WORKERS)
def workers(request: pytest.FixtureRequest) -> dict[str, Any]:
    return WORKERS[request.param]


def test_pin_memory_gives_the_same_batches_in_pinned_memory(workers: dict[str, Any]) -> None:
    """Kept ones stay as they were, and a state goes on behind what was handed out."""
    expected = [value_of(batch) for batch in DataLoader(Pictures(), 4)]
    with DataLoader(Pictures(), 4, pin_memory=True, **workers) as loader:
        batches = list(loader)
        assert all(batch["x"].is_pinned() for batch in batches)
        assert [value_of(batch) for batch in batches] == expected
        iterator = iter(loader)
        found = [value_of(next(iterator)) for _ in range(2)]
        state = loader.state_dict()
    with DataLoader(Pictures(), 4, pin_memory=True, **workers) as other:
        other.load_state_dict(state)
        assert found + [value_of(batch) for batch in other] == expected


def test_pinned_batches_are_copied_without_waiting_in_the_users_loop(workers: dict[str, Any]) -> None:
    """As people write it for torch's loader."""
    sums = []
    with DataLoader(Pictures(), 4, pin_memory=True, **workers) as loader:
        for batch in loader:
            sums.append(batch["x"].to("cuda", non_blocking=True).sum(dim=1) / 10_000)
    assert torch.cat(sums).tolist() == list(range(24))


class Point(NamedTuple):
    x: torch.Tensor
    name: str


class Own:
    """Says by itself how it is pinned, as torch's page on the DataLoader has it."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    def pin_memory(self) -> Own:
        return Own(self.values.pin_memory())


FLOATS = torch.arange(24.0).reshape(4, 6)
BATCHES: dict[str, Callable[[], Any]] = {
    "list": lambda: [FLOATS, "name", 3],
    "tuple": lambda: (FLOATS, FLOATS.bool()),
    "named": lambda: {"point": Point(FLOATS, "a"), "ordered": OrderedDict(x=FLOATS)},
    "transposed": lambda: [FLOATS.t(), FLOATS[:, ::2]],
    "dtypes": lambda: [FLOATS.to(dtype) for dtype in (torch.bfloat16, torch.complex128, torch.int64, torch.uint16)],
    "conjugate": lambda: [FLOATS.to(torch.complex64).conj(), FLOATS.to(torch.complex64).conj().imag],
    "small": lambda: [torch.tensor(3), torch.empty(0), torch.empty(2, 0)],
    "sparse": lambda: {"sparse": FLOATS.to_sparse(), "learned": torch.nn.Parameter(FLOATS)},
}


@pytest.mark.parametrize("name", BATCHES)
def test_batches_are_pinned_as_torchs_loader_pins_them(name: str) -> None:
    made, expected = pinned(BATCHES[name](), "cuda"), pin_memory(BATCHES[name](), "cuda")
    assert type(made) is type(expected)
    for one, other in zip(tensors_in(made), tensors_in(expected), strict=True):
        assert (type(one), one.dtype, one.shape) == (type(other), other.dtype, other.shape)
        assert torch.equal(one.to_dense(), other.to_dense())
        assert one.is_pinned() == other.is_pinned()  # one without values is not


def test_an_expanded_tensor_is_pinned() -> None:
    """torch's loader fails there."""
    made = pinned(FLOATS.expand(3, 4, 6), "cuda")
    assert made.is_pinned()
    assert torch.equal(made, FLOATS.expand(3, 4, 6))


def test_a_batch_says_by_itself_how_it_is_pinned() -> None:
    loader = DataLoader([FLOATS, FLOATS], None, collate_fn=Own, num_workers=1, pin_memory=True)
    assert all(type(batch) is Own and batch.values.is_pinned() for batch in loader)


class Refuses(Own):
    def pin_memory(self) -> Own:
        if int(self.values[0]) == 2:
            raise ValueError("not this one")
        return super().pin_memory()


def test_L7_a_batch_that_cannot_be_pinned_is_an_error_in_its_place(workers: dict[str, Any]) -> None:
    with DataLoader(
        [torch.tensor([n]) for n in range(5)], None, collate_fn=Refuses, pin_memory=True, **workers
    ) as loader:
        iterator, found = iter(loader), []
        for _ in range(6):
            try:
                found.append(int(next(iterator).values))
            except StopIteration:
                break
            except ValueError as error:
                found.append(str(error))
    assert found == [0, 1, "not this one", 3, 4]


def test_what_worker_threads_make_on_the_device_arrives() -> None:
    class OnDevice(Pictures):
        def __getitem__(self, number: int) -> Any:
            return torch.full((10_000,), float(number), device="cuda")

    for device in (None, "cuda"):
        with DataLoader(OnDevice(), 4, num_workers=2, worker_method="thread", device=device) as loader:
            assert [int(row[-1]) for batch in loader for row in batch] == list(range(24))
