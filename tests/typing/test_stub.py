"""The stub is in step with the nodes, and each rule by which it is made holds."""

from __future__ import annotations

import ast
import textwrap

import pytest

from tools import generate_stubs

HEAD = """
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, overload
from torchpipe.node.datapipe import IterDataPipe, MapDataPipe
from torchpipe.node.functional import functional_datapipe
T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")
"""


def stub_of(*sources: str) -> str:
    """The stub made from modules ``torchpipe.iter.m0``, ``m1`` ..., in one line per method."""
    modules = {}
    for number, source in enumerate(sources):
        name = f"torchpipe.iter.m{number}"
        modules[name] = generate_stubs.Module(name, ast.parse(HEAD + textwrap.dedent(source)))
    tree = ast.parse(generate_stubs.generate(modules))
    lines = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom | ast.Assign)]
    for cls in tree.body:
        for method in cls.body if isinstance(cls, ast.ClassDef) else []:
            if isinstance(method, ast.FunctionDef):
                marks = "".join(f"@{ast.unparse(mark)} " for mark in method.decorator_list)
                signature = (
                    f"{method.name}({ast.unparse(method.args)}) -> {ast.unparse(method.returns or ast.Tuple([]))}"
                )
                lines.append(f"{cls.name}: {marks}{signature} # {ast.get_docstring(method) or ''}")
    return "\n".join(lines)


def test_the_stub_is_in_step_with_the_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate_stubs.main(["--check"]) == 0, capsys.readouterr().out


def test_a_stub_out_of_step_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(generate_stubs, "generate", lambda modules: "class IterMethods: ...\n")
    assert generate_stubs.main(["--check"]) == 1
    shown = capsys.readouterr().out
    assert "+class IterMethods: ..." in shown
    assert "make stubs" in shown


def test_the_input_goes_and_its_variable_becomes_the_class_s() -> None:
    source = '''
        @functional_datapipe("map")
        class Mapper(IterDataPipe[R]):
            """Applies ``fn`` to items 1, 2 ... in order. More is said here."""
            def __init__(self, datapipe: IterDataPipe[T], fn: Callable[[T], R], *, size: int = 3) -> None: ...
    '''
    expected = "IterMethods: map(self, fn: Callable[[T_co], R], *, size: int=3) -> IterDataPipe[R]"
    assert f"{expected} # Applies ``fn`` to items 1, 2 ... in order." in stub_of(source)


def test_a_class_may_ask_for_particular_items() -> None:
    source = """
        @functional_datapipe("unbatch")
        class UnBatcher(IterDataPipe[T]):
            def __init__(self, datapipe: IterDataPipe[Sequence[T]], level: int = 1) -> None: ...
    """
    expected = "IterMethods: unbatch(self: IterMethods[Sequence[T]], level: int=1) -> IterDataPipe[T]"
    assert expected in stub_of(source)


def test_a_value_of_the_item_s_type_makes_the_method_generic() -> None:
    source = """
        @functional_datapipe("pad")
        class Padder(IterDataPipe[T]):
            def __init__(self, datapipe: IterDataPipe[T], value: T | None = None) -> None: ...
    """
    assert "IterMethods: pad(self: IterMethods[T], value: T | None=None) -> IterDataPipe[T]" in stub_of(source)


def test_the_default_of_the_input_goes_with_it() -> None:
    source = """
        @functional_datapipe("list_files")
        class FileLister(IterDataPipe[str]):
            def __init__(self, root: str | IterDataPipe[str] = ".", masks: str = "") -> None: ...
    """
    assert "IterMethods: list_files(self, masks: str='') -> IterDataPipe[str]" in stub_of(source)


def test_overloads_may_say_what_comes_back_by_their_self() -> None:
    source = """
        @functional_datapipe("zip")
        class Zipper(IterDataPipe[R]):
            @overload
            def __init__(self: Zipper[tuple[T, A]], first: IterDataPipe[T], second: IterDataPipe[A], /) -> None: ...
            @overload
            def __init__(self: Zipper[tuple[Any, ...]], *datapipes: IterDataPipe[Any]) -> None: ...
            def __init__(self, *datapipes: IterDataPipe[Any]) -> None: ...
    """
    made = stub_of(source)
    assert "@overload zip(self, second: IterDataPipe[A], /) -> IterDataPipe[tuple[T_co, A]]" in made
    assert "@overload zip(self, *datapipes: IterDataPipe[Any]) -> IterDataPipe[tuple[Any, ...]]" in made
    assert "from typing import Any, Generic, TypeVar, overload" in made


def test_a_form_may_return_several_nodes() -> None:
    source = """
        @functional_datapipe("fork")
        class Forker(IterDataPipe[T]):
            def __new__(cls, datapipe: IterDataPipe[T], count: int) -> list[IterDataPipe[T]]: ...
    """
    assert "IterMethods: fork(self, count: int) -> list[IterDataPipe[T_co]]" in stub_of(source)


def test_bases_and_constructors_may_be_inherited_from_another_module() -> None:
    base = """
        class _Bounded(IterDataPipe[T], Generic[T]):
            def __init__(self, datapipe: IterDataPipe[T], limit: int = 10) -> None: ...
    """
    derived = """
        from torchpipe.iter.m0 import _Bounded
        @functional_datapipe("header")
        class Header(_Bounded[A]): ...
    """
    assert "IterMethods: header(self, limit: int=10) -> IterDataPipe[T_co]" in stub_of(base, derived)


def test_a_form_may_stand_on_map_style_nodes() -> None:
    source = """
        @functional_datapipe("to_iter_datapipe", on="map")
        class MapToIterConverter(IterDataPipe[T]):
            def __init__(self, datapipe: MapDataPipe[T]) -> None: ...
    """
    assert "MapMethods: to_iter_datapipe(self) -> IterDataPipe[T_co]" in stub_of(source)


def test_a_built_in_that_has_the_name_of_a_form_is_meant_as_such() -> None:
    source = """
        @functional_datapipe("slice")
        class Slicer(IterDataPipe[T]):
            def __init__(self, datapipe: IterDataPipe[T], index: int | slice) -> None: ...
    """
    made = stub_of(source)
    assert "slice(self, index: int | builtins.slice) -> IterDataPipe[T_co]" in made
    assert "import builtins" in made


def test_types_that_a_module_defines_are_imported_from_it() -> None:
    source = """
        Key = Callable[[Any], Any]
        @functional_datapipe("groupby")
        class Grouper(IterDataPipe[list[T]]):
            def __init__(self, datapipe: IterDataPipe[T], key: Key = Key()) -> None: ...
    """
    made = stub_of(source)
    assert "groupby(self, key: Key=...) -> IterDataPipe[list[T_co]]" in made
    assert "from torchpipe.iter.m0 import Key" in made


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('@functional_datapipe("f")\nclass F: ...', "neither an IterDataPipe"),
        ("@functional_datapipe(NAME)\nclass F(IterDataPipe[T]): ...", "literal string"),
        ('@functional_datapipe("f")\nclass F(IterDataPipe[T]): ...', "no __init__"),
        (
            '@functional_datapipe("f")\nclass F(IterDataPipe[T]):\n def __init__(self, d: IterDataPipe[T], q: Q): pass',
            "uses Q, which is unknown",
        ),
        (
            '@functional_datapipe("f")\nclass F(IterDataPipe[R]):\n'
            " def __init__(self, d: IterDataPipe[T], fn: Callable[..., Any]): pass",
            r"no argument of f says what R is, so that it returns IterDataPipe\[Never\]",
        ),
    ],
)
def test_what_no_method_can_be_made_from_is_refused(source: str, message: str) -> None:
    with pytest.raises(generate_stubs.StubError, match=message):
        stub_of(source)
