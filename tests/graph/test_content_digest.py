"""What items are made of: the same in every process, and another one whenever anything of it changes."""

from __future__ import annotations

import dataclasses
import enum
import functools
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch

from torchpipe import IterDataPipe
from torchpipe.iter import IterableWrapper, PathList
from torchpipe.map import SequenceWrapper
from torchpipe.node.content_digest import Unseen, describe_content


def content(node: Any, lenient: bool = False) -> str:
    return describe_content(node, lenient=lenient)


class Node(IterDataPipe[Any]):
    """Holds anything."""

    def __init__(self, **arguments: Any) -> None:
        vars(self).update(arguments)


def of(value: Any) -> str:
    return content(Node(value=value))


def module_of(source: str) -> Any:
    """A module of the user's, with this source."""
    module = ModuleType("users_own")
    exec(textwrap.dedent(source), vars(module))
    return module


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Tokenize:
    length: int

    def __call__(self, text: str) -> list[str]:
        return text.split()[: self.length]

    def backwards(self, text: str) -> list[str]:
        return self(text)[::-1]


TABLE = {"a": 1}
LOCK = threading.Lock()


def look_up(key: str) -> int:
    return TABLE[key]


def look_up_twice(key: str) -> int:
    return 2 * look_up(key)


def locked(key: str) -> int:
    with LOCK:
        return TABLE[key]


def recursive(number: int) -> int:
    return recursive(number - 1) if number else 0


def scaling(factor: float) -> Callable[[float], float]:
    return lambda item: item * factor


@functools.lru_cache
def remembered(number: int) -> int:
    return number + 1


class Rows:
    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)


class TorchRows(torch.utils.data.IterDataPipe[Any]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        yield from range(self.count)


def rich_graph() -> Any:
    """Of many arguments, among them such as Python orders or prints anew in every process."""
    graph = IterableWrapper([{"a", "b", "c"}, frozenset("xyz"), (1, 2.5, None, True, b"x", "text")])
    graph = graph.shuffle(buffer_size=7).sharding_filter().map(look_up_twice).map(Tokenize(3)).map(scaling(2.0))
    graph = graph.map(functools.partial(recursive)).map(lambda item: item in {"k", "l", "m"}).map(remembered)
    return Node(
        graph=graph,
        array=np.arange(6).reshape(2, 3).T,
        tensor=torch.arange(3, dtype=torch.bfloat16),
        kinds=(torch.float32, Colour.RED, Tokenize, TorchRows(3)),
        method=Tokenize(2).backwards,
        generator=np.random.default_rng(0),
        slices=slice(1, 2),
        lock=locked,
    )


SCRIPT = """
    from tests.graph.test_content_digest import content, rich_graph
    print(content(rich_graph()))
"""


def test_it_is_the_same_in_every_process_and_of_a_copy_that_was_sent_there() -> None:
    expected = content(rich_graph())
    assert content(cloudpickle.loads(cloudpickle.dumps(rich_graph()))) == expected
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONHASHSEED": "7"},
    )
    assert done.stdout.strip() == expected


MAIN = """
    import cloudpickle, sys
    from torchpipe.node.content_digest import describe_content
    from torchpipe.iter import IterableWrapper

    def decode(text):  # an attribute that is looked up below has the same name
        return text

    class Clean:
        drop = {"x", "y"}
        def __call__(self, item):
            return [helper(part).decode() for part in item if part not in self.drop]

    def helper(part):
        return bytes(part, "utf-8") * FACTOR

    FACTOR = 2
    graph = IterableWrapper(["ab"]).map(Clean()).map(lambda item: helper(item[0]))
    if __name__ == "__main__":
        open(sys.argv[1], "wb").write(cloudpickle.dumps(graph))
        print(describe_content(graph, lenient=False))
"""


def test_what_stands_in_a_script_is_the_same_in_workers(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(MAIN))
    done = subprocess.run(
        [sys.executable, "script.py", "graph"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert content(cloudpickle.loads((tmp_path / "graph").read_bytes())) == done.stdout.strip()


FUNCTIONS = [
    ("def f(x): return x + 1", "def f(x): return x + 100"),
    ("def f(x): return x + 1", "def f(x): return x - 1"),
    ("def f(x, by=1): return x + by", "def f(x, by=2): return x + by"),
    ("def f(x, *, by=1): return x + by", "def f(x, *, by=2): return x + by"),
    ("BY = 1\ndef f(x): return x + BY", "BY = 2\ndef f(x): return x + BY"),
    ("T = {'a': [1]}\ndef f(x): return T[x]", "T = {'a': [2]}\ndef f(x): return T[x]"),
    ("def g(x): return 1\ndef f(x): return g(x)", "def g(x): return 2\ndef f(x): return g(x)"),
    ("def g(): return 1\ndef f(x): return [g() for _ in x]", "def g(): return 2\ndef f(x): return [g() for _ in x]"),
    ("def f(x): return (lambda: 1)()", "def f(x): return (lambda: 2)()"),
    ("f = lambda x: x.a", "f = lambda x: x.b"),
    ("class C:\n  def __call__(self, x): return 1\nf = C()", "class C:\n  def __call__(self, x): return 2\nf = C()"),
    (
        "class C:\n  a = 1\n  def __call__(self, x): return self.a\nf = C()",
        "class C:\n  a = 2\n  def __call__(self, x): return self.a\nf = C()",
    ),
    (
        "class B:\n  def go(self): return 1\nclass C(B): pass\nf = C().go",
        "class B:\n  def go(self): return 2\nclass C(B): pass\nf = C().go",
    ),
    (
        "class C:\n  @property\n  def p(self): return 1\n  def go(self): return self.p\nf = C().go",
        "class C:\n  @property\n  def p(self): return 2\n  def go(self): return self.p\nf = C().go",
    ),
    (
        "import functools\n@functools.lru_cache\ndef f(x): return 1",
        "import functools\n@functools.lru_cache\ndef f(x): return 2",
    ),
    (
        "import contextlib\n@contextlib.contextmanager\ndef f(x): yield 1",
        "import contextlib\n@contextlib.contextmanager\ndef f(x): yield 2",
    ),
    ("import numpy as np\ndef f(x): return np.sin(x)", "import numpy as np\ndef f(x): return np.cos(x)"),
]


@pytest.mark.parametrize(("one", "other"), FUNCTIONS)
def test_functions_count_by_their_code_and_what_they_use(one: str, other: str) -> None:
    assert of(module_of(one).f) == of(module_of("\n\n# moved\n" + one).f)
    assert of(module_of(one).f) != of(module_of(other).f)


def test_a_module_of_the_users_counts_by_what_is_used_of_it() -> None:
    inner = module_of("def go(): return 1\nOTHER = 1")
    outer = module_of("def f(x): return inner.go()")
    outer.inner = inner
    before = of(outer.f)
    inner.OTHER = 2
    assert of(outer.f) == before
    inner.go = lambda: 2
    assert of(outer.f) != before


def test_bound_values_and_attributes_count() -> None:
    for one, other in (
        (functools.partial(pow, 2), functools.partial(pow, 3)),
        (functools.partial(int, base=2), functools.partial(int, base=3)),
        (scaling(2), scaling(3)),
        (scaling(Colour.RED), scaling(Colour.BLUE)),  # type: ignore[arg-type]
        (Tokenize(2), Tokenize(3)),
        (Tokenize(2).backwards, Tokenize(3).backwards),
        (functools.partial(look_up, key=[1]), functools.partial(look_up, key=[2])),
        (scaling(torch.ones(2)), scaling(torch.zeros(2))),  # type: ignore[arg-type]
    ):
        assert of(one) != of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2], [1, 3]),
        ([1, 2], [1, 2.0]),
        ([1, 2], (1, 2)),
        ([True], [1]),
        (["ab", "c"], ["a", "bc"]),
        ([["a"], "b"], [["a", "b"]]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1, 2}, frozenset({1, 2})),
        (b"a", bytearray(b"a")),
        (np.zeros(3), np.zeros(4)),
        (np.zeros(3), np.zeros(3, np.float32)),
        (np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2)),
        (np.array([1, None], object), np.array([2, None], object)),
        (torch.zeros(2), torch.ones(2)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float16)),
        (Rows([1]), Rows([2])),
        (Rows([1]), Rows((1,))),
        (range(3), range(4)),
        (Path("a"), Path("b")),
        (None, False),
        (0.0, -0.0),
        (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)),
    ],
)
def test_data_count_by_their_content(one: Any, other: Any) -> None:
    assert of(one) == of(one) != of(other)


def test_it_does_not_matter_what_is_the_same_object() -> None:
    row = ["x", "y"]
    assert of([row, row]) == of([["x", "y"], ["".join("x"), "".join("y")]])
    around: list[Any] = [1]
    around.append(around)
    assert of(around) == of(around)


def test_weights_arguments_and_wiring_count() -> None:
    one, other = IterableWrapper(range(3)), IterableWrapper(range(3, 6))
    contents = {
        content(node)
        for node in (
            one.mix(other, weights=[1, 2]),
            one.mix(other, weights=[2, 1]),
            other.mix(one, weights=[1, 2]),
            one.mix(one, weights=[1, 2]),
            one.batch(2),
            one.batch(3),
            one.shuffle(buffer_size=2),
            one.shuffle(buffer_size=2).set_seed(3),
            one.on_error("skip"),
            one.on_error("raise"),
            SequenceWrapper([1, 2]).to_iter_datapipe(),
            SequenceWrapper([1, 3]).to_iter_datapipe(),
            Node(source=TorchRows(2)),
            Node(source=TorchRows(3)),
        )
    }
    assert len(contents) == 14
    assert content(one.prefetch(2).retry(3)) == content(one)  # makes the same items


def line_of(pair: Any) -> Any:
    return pair[1]


def test_files_count_by_path_size_and_time(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("1\n2\n")

    def all_of() -> list[str]:
        paths = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
        return [
            content(PathList(paths).read_lines()),
            content(PathList(str(tmp_path / "*.txt")).shuffle().sharding_filter().read_lines()),
            content(IterableWrapper(paths).read_lines()),
            content(IterableWrapper(paths).filter(str.isascii).open_files().flatmap(line_of)),
            content(PathList(str(tmp_path / "*.txt")).open_files()),
            content(IterableWrapper([(path, 1) for path in paths]).map(len)),
            content(SequenceWrapper([{"path": Path(path)} for path in paths]).to_iter_datapipe()),
        ]

    before = all_of()
    assert all_of() == before
    os.utime(tmp_path / "b.txt", ns=(1, 1))
    touched = all_of()
    (tmp_path / "b.txt").write_text("1\n2\n3\n")
    os.utime(tmp_path / "b.txt", ns=(1, 1))
    grown = all_of()
    assert all(len({*versions}) == 3 for versions in zip(before, touched, grown))
    (tmp_path / "c.txt").write_text("")
    assert [one == other for one, other in zip(all_of(), grown)] == [True, False, True, True, False, True, True]


@pytest.mark.parametrize(
    ("node", "where"),
    [
        (lambda: IterableWrapper(item for item in ()), r"iterable of IterableWrapper \(a generator"),
        (lambda: IterableWrapper([1]).map(functools.partial(print, file=sys.__stderr__)), r"fn of Mapper.*TextIOWr"),
        (
            lambda: IterableWrapper([1]).map(scaling(sys._getframe())),
            r"'factor', which <lambda>\(\) holds of fn of Map",
        ),
        (lambda: IterableWrapper([1]).map(lambda item: item).open_files(), r"files of FileOpener .*named by Mapper"),
        (lambda: PathList("s3://bucket/a.txt").read_lines(), r"files of PathList .*s3://bucket/a.txt"),
        (lambda: IterableWrapper(["s3://bucket/a.txt"]).read_lines(), r"files of TextLineReader .*s3://bucket/a.txt"),
        (lambda: IterableWrapper(["http://host/a"]).read_from_http(), r"HttpReader .*web server"),
        (lambda: IterableWrapper(["x"]).open_files_by_fsspec(), r"FSSpecFileOpener .*unseen"),
    ],
)
def test_what_cannot_be_seen_is_refused_by_name(node: Callable[[], Any], where: str) -> None:
    with pytest.raises(Unseen, match=where):
        content(node())
    assert content(node(), lenient=True) == content(node(), lenient=True)


def test_locks_and_loggers_do_not_count() -> None:
    assert of(locked) == of(locked) != of(look_up)


def test_a_cache_keeps_its_items_under_another_number_of_threads() -> None:
    made = [IterableWrapper(range(3)).parallel_map(str, num_threads=count) for count in (2, 3)]
    assert describe_content(made[0], lenient=False) == describe_content(made[1], lenient=False)
    other = IterableWrapper(range(3)).parallel_map(repr, num_threads=2)
    assert describe_content(made[0], lenient=False) != describe_content(other, lenient=False)
