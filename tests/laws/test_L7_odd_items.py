"""L7, never silent: items of every odd type arrive as what they are, or are refused by name, in their place.

Through every boundary: nodes in process, the pipe of a worker, the dispatcher, the device stage, and a state.
"""

from __future__ import annotations

import collections
import copyreg
import dataclasses
import datetime
import enum
import fractions
import io
import pathlib
import re
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tests.laws.executors import make_loader, make_service
from tests.processes.values import DTYPES, make, same
from torchpipe import InProcessReadingService, IterDataPipe
from torchpipe.errors import NotSerializableError
from torchpipe.iter import IterableWrapper

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::torchpipe.errors.OpaqueStateWarning")


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Sample:
    image: Any
    label: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    value: Any


class Colour(enum.Enum):
    RED = 1


class Flag(enum.IntFlag):
    A = 1
    B = 2


class OtherArguments(Exception):
    def __init__(self, text: str, *, code: int) -> None:
        super().__init__(text)
        self.code = code


class OtherText(Exception):
    """Pickle alone gives it its text, from which it makes another one."""

    def __init__(self, code: Any) -> None:
        super().__init__(f"code {code}")


class NotUnicode(UnicodeDecodeError):
    def __init__(self, what: str) -> None:
        super().__init__("utf-8", b"\xff", 0, 1, what)


class Array(np.ndarray[Any, Any]):
    pass


class Text(str):
    pass


class Registered:
    """Cannot be pickled, but for the function that is registered below."""

    def __reduce__(self) -> Any:
        raise TypeError("copyreg was not asked")


copyreg.pickle(Registered, lambda _: (Registered, ()))  # after torchpipe has been imported, as users do


def read_only(size: int) -> np.ndarray[Any, Any]:
    array = np.arange(size)
    array.flags.writeable = False
    return array


def containing_itself() -> list[Any]:
    values: list[Any] = [1]
    values.append(values)
    return values


def noted() -> ValueError:
    error = ValueError("an item", 3)
    error.add_note("with a note")
    return error


def a_generator() -> Iterator[int]:
    yield 1


LEGAL: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "true": lambda: True,
    "large int": lambda: -(10**100),
    "nan": lambda: float("nan"),
    "negative zero": lambda: -0.0,
    "bytes": lambda: b"\0a" * 50_000,
    "bytearray": lambda: bytearray(b"\0a" * 50_000),
    "surrogate": lambda: "a\ud800b\0",
    "complex": lambda: complex(1, float("inf")),
    "numpy int": lambda: np.int64(3),
    "numpy bool": lambda: np.bool_(True),
    "numpy text": lambda: np.str_("x"),
    "numpy date": lambda: np.datetime64("2020-01-01"),
    "numpy record": lambda: np.ones(1, dtype=[("a", "i4")])[0],
    "array without dimensions": lambda: np.array(3),
    "structured array": lambda: np.ones(2, dtype=[("a", ">i4"), ("b", "f8", (2,))]),
    "array of objects": lambda: np.array([None, "a", (1,)], dtype=object),
    "array with gaps": lambda: np.arange(60_000).reshape(200, 300)[::2, ::3],
    "Fortran's array": lambda: np.asfortranarray(np.arange(60_000).reshape(200, 300)),
    "big-endian array": lambda: np.arange(10_000, dtype=">i4"),
    "read-only array": lambda: read_only(3),
    "large read-only array": lambda: read_only(10_000),
    "empty array": lambda: np.zeros((0, 3)),
    "masked array": lambda: np.ma.masked_array([1, 2], [True, False]),
    "array subclass": lambda: np.arange(3).view(Array),
    "long double": lambda: np.longdouble(1) / 3,
    **{f"tensor of {dtype}": lambda dtype=dtype: make(dtype, (2, 3), 1) for dtype in DTYPES},
    "tensor without dimensions": lambda: torch.tensor(3),
    "empty tensor": lambda: torch.empty(0, 3),
    "tensor with gaps": lambda: torch.arange(90_000.0).reshape(300, 300).T[::2],
    "conjugate": lambda: torch.tensor([1 + 2j]).conj(),
    "leaf": lambda: torch.ones(2, requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "sparse tensor": lambda: torch.eye(2).to_sparse(),
    "quantized tensor": lambda: torch.quantize_per_tensor(torch.ones(2), 0.5, 1, torch.qint8),
    "packed sequence": lambda: torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)]),
    "size": lambda: torch.Size([1, 2]),
    "dtype": lambda: torch.float32,
    "named tuple": lambda: Pair(1, torch.ones(2)),
    "dataclass": lambda: Sample(np.ones(2), [1]),
    "frozen dataclass": lambda: Frozen((1, 2)),
    "enum": lambda: Colour.RED,
    "flags": lambda: Flag.A | Flag.B,
    "path": lambda: pathlib.Path("/a"),
    "date": lambda: datetime.datetime(2020, 1, 1, fold=1, tzinfo=datetime.UTC),
    "fraction": lambda: fractions.Fraction(1, 3),
    "set": lambda: {1, "a", None},
    "odd keys": lambda: {None: 1, (1, 2): 2, 1.5: 3, b"x": 4, frozenset([1]): 5, Colour.RED: 6, True: 7},
    "list in itself": containing_itself,
    "default dict": lambda: collections.defaultdict(list, a=[1]),
    "bounded deque": lambda: collections.deque([1], maxlen=3),
    "text subclass": lambda: Text("a"),
    "ellipsis": lambda: Ellipsis,
    "not implemented": lambda: NotImplemented,
    "exception": noted,
    "stop iteration": lambda: StopIteration(3),
    "stop iteration class": lambda: StopIteration,
    "interrupt": lambda: KeyboardInterrupt("an item"),
    "exit": lambda: SystemExit(3),
    "group": lambda: ExceptionGroup("several", [ValueError(1)]),
    "os error": lambda: FileNotFoundError(2, "no such file", "name"),
    "exception with other arguments": lambda: OtherArguments("text", code=3),
    "exception with a text of its own": lambda: OtherText(3),
    "exception over C": lambda: NotUnicode("odd"),
    "class": lambda: Sample,
    "function": lambda: a_generator,
    "builtin": lambda: len,
    "range": lambda: range(3),
    "text stream": lambda: io.StringIO("x"),
    "registered": Registered,
}
# What looks into memory of another object, or is a place in this process
IN_PROCESS: dict[str, tuple[Callable[[], Any], str]] = {
    "graph": (lambda: torch.ones(2, requires_grad=True) * 2, r"Tensor cannot be sent .* autograd graph .* detach\(\)"),
    "generator": (a_generator, "generator cannot be sent .*: cannot pickle 'generator'"),
    "lock": (threading.Lock, "lock cannot be sent .*: cannot pickle '_thread.lock'"),
    "text file": (lambda: open(__file__), "TextIOWrapper cannot be sent .* the open file .*test_L7_odd_items.py"),
    "file": (lambda: open(__file__, "rb"), "BufferedReader cannot be sent .*: cannot pickle '(_io.)?BufferedReader'"),
}


def item(name: Any) -> Any:
    if name in LEGAL:
        return LEGAL[name]()
    return IN_PROCESS[name][0]() if name in IN_PROCESS else name


def equal(got: Any, sent: Any) -> bool:
    """The same type, with the same in it."""
    if type(got) is not type(sent):
        return False
    if isinstance(sent, torch.Tensor):
        if sent.layout is not torch.strided or sent.is_quantized:
            return got.dtype == sent.dtype and bool(torch.equal(got.to_dense(), sent.to_dense()))
        return same(got, sent)
    if isinstance(sent, np.ndarray | np.generic):
        return got.dtype == sent.dtype and got.shape == sent.shape and repr(got) == repr(sent)
    if isinstance(sent, io.StringIO):
        return got.getvalue() == sent.getvalue()
    if isinstance(sent, BaseException):
        return (repr(got), str(got), vars(got)) == (repr(sent), str(sent), vars(sent))
    if isinstance(sent, tuple):
        return len(got) == len(sent) and all(map(equal, got, sent))
    if isinstance(sent, Sample):
        return equal(got.image, sent.image) and equal(got.label, sent.label)
    if isinstance(sent, Registered):
        return True
    if isinstance(sent, set):
        return bool(got == sent)  # in whatever order
    return repr(got) == repr(sent)  # also of what contains itself, and of nan


def unlike(got: list[Any], names: list[Any]) -> list[Any]:
    assert len(got) == len(names)
    return [(name, value) for name, value in zip(names, got, strict=True) if not equal(value, item(name))]


def sharded(names: list[Any]) -> IterDataPipe[Any]:
    return IterableWrapper(names).sharding_filter().map(item)


def dispatched(names: list[Any]) -> IterDataPipe[Any]:
    return IterableWrapper(names).map(item).sharding_round_robin_dispatch()


@pytest.mark.parametrize("build", [sharded, dispatched])
@pytest.mark.parametrize("workers", [None, 2])
def test_L7_odd_items_arrive(workers: int | None, build: Callable[[list[Any]], IterDataPipe[Any]]) -> None:
    names = list(LEGAL)
    with make_loader(build(names).batch(1).unbatch(), make_service(workers, 2)) as loader:
        assert unlike(list(loader), names) == []


def test_L7_odd_items_of_a_graph_arrive() -> None:
    """They are in the graph, and come to the workers with it."""
    names = list(LEGAL)
    with make_loader(IterableWrapper([item(name) for name in names]).sharding_filter(), make_service(1, 1)) as loader:
        assert unlike(list(loader), names) == []


def test_L7_odd_items_pass_the_device_stage() -> None:
    names = [name for name in LEGAL if name != "list in itself"]
    with make_loader(sharded(names).to_device("cpu"), InProcessReadingService(prefetch_cnt=1)) as loader:
        assert unlike(list(loader), names) == []


@pytest.mark.parametrize("workers", [None, 2])
def test_L7_odd_items_are_kept_in_a_state(workers: int | None) -> None:
    """In a shuffle buffer: two loaders, of which the second goes on from the first one's state."""
    names = [name for name in LEGAL if name != "list in itself"]  # which is refused, and run again

    def graph() -> IterDataPipe[Any]:  # not shuffled by positions
        return sharded(names).map(lambda value: (value,)).shuffle(buffer_size=len(names))

    with make_loader(graph(), make_service(workers, 2)) as loader:
        stream = iter(loader)
        next(stream)
        state, rest = loader.state_dict(), [value for (value,) in stream]
    with make_loader(graph(), make_service(None, 2)) as loader:
        loader.load_state_dict(state, allow_pickle=True)
        got = [value for (value,) in loader]
    assert [pair for pair in zip(got, rest, strict=True) if not equal(*pair)] == []


@pytest.mark.parametrize("build", [sharded, dispatched])
@pytest.mark.parametrize("name", list(IN_PROCESS))
def test_L7_what_cannot_leave_its_process_is_refused_in_its_place(
    name: str, build: Callable[[list[Any]], IterDataPipe[Any]]
) -> None:
    names = [0, 1, 2, name, 4, 5]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # nobody closes the files
        with make_loader(build(names), make_service(None, 2)) as loader:
            assert [type(value) for value in loader] == [type(item(name)) for name in names]
        with make_loader(build(names), make_service(2, 2)) as loader:
            got = []
            with pytest.raises(NotSerializableError, match=IN_PROCESS[name][1]) as caught:
                for value in loader:
                    got.append(value)
            assert got == names[:3]
            assert loader.state_dict()["delivered"] == 3
            notes = "\n".join(caught.value.__notes__)
            assert re.search(r"in worker \d \(pid \d+\)", notes)
            assert (build is dispatched) == ("in the dispatcher (pid" in notes)


@pytest.mark.parametrize("workers", [1, 2])
def test_L7_what_the_dispatcher_cannot_send_stays_refused(workers: int) -> None:
    """After many small items, of which workers ask for more while they still have some."""
    names = [*range(3_000), "lock", *range(100)]
    with make_loader(dispatched(names), make_service(workers, workers)) as loader:
        got = []
        with pytest.raises(NotSerializableError):
            for value in loader:
                got.append(value)
        assert got == names[:3_000]


def test_L7_an_open_file_does_not_become_its_text_in_a_state() -> None:
    """After what cannot be kept, a state goes on from an older position."""
    with open(__file__) as file:
        graph = IterableWrapper(range(4)).map(lambda number: (file, number)).shuffle(buffer_size=3)
        with make_loader(graph, make_service(None, 1)) as loader:
            stream = iter(loader)
            next(stream)
            state, rest = loader.state_dict(), list(stream)
        with make_loader(graph, make_service(None, 1)) as loader:
            loader.load_state_dict(state, allow_pickle=True)
            assert list(loader) == rest


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, type("Cancelled", (BaseException,), {})])
@pytest.mark.parametrize("build", [sharded, dispatched])
def test_L7_what_is_no_exception_arrives_too(
    error: type[BaseException], build: Callable[[list[Any]], IterDataPipe[Any]]
) -> None:
    """Raised by a function of the user's; it ended the worker, three times over."""

    def fail(number: int) -> int:
        if number == 3:
            raise error("odd")
        return number

    for workers in (None, 2):
        graph = IterableWrapper(range(6)).map(fail)
        graph = graph.sharding_round_robin_dispatch() if build is dispatched else graph.sharding_filter()
        with make_loader(graph, make_service(workers, 2)) as loader:
            got = []
            with pytest.raises(error, match="odd"):
                for value in loader:
                    got.append(value)
            assert loader.state_dict()["delivered"] == len(got)
            # In process it might be Ctrl-C, which does not wait for items that were made ahead
            assert got == ([0, 1, 2] if workers else [0, 1, 2][: len(got)])


@pytest.mark.parametrize("view", [memoryview(b"abc"), memoryview(bytearray(12)).cast("i", (1, 3)), memoryview(b"")])
def test_L7_a_view_of_memory_arrives_as_one(view: memoryview) -> None:
    with make_loader(sharded([0, 1]).map(lambda _: memoryview(view)), make_service(1, 1)) as loader:
        for got in loader:
            assert (type(got), got.format, got.shape, got.readonly) == (
                memoryview,
                view.format,
                view.shape,
                view.readonly,
            )
            assert got == view


class MadeOfNothing:
    """Pickles what it cannot be made of again."""

    def __reduce__(self) -> Any:
        return MadeOfNothing, (1, 2)


def test_L7_an_item_that_cannot_be_rebuilt_is_an_error() -> None:
    graph = IterableWrapper(range(3)).sharding_filter().map(lambda number: MadeOfNothing())
    with make_loader(graph, make_service(1, 1)) as loader:
        with pytest.raises(TypeError, match="MadeOfNothing") as caught:
            list(loader)
        assert re.search(r"one of the next \d items of shard 0 could not be rebuilt", caught.value.__notes__[0])


def test_the_cases_are_what_they_say() -> None:
    assert not equal(np.ones(2), torch.ones(2))
    assert not equal(types.SimpleNamespace(a=1), types.SimpleNamespace(a=2))
