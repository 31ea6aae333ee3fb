"""Forms by what items they take and give: the registry from which chains are composed. ``forms.py`` fills it, and
``forms`` of each ring's folder.

A form is made with a number from 0 to 3, which chooses its arguments. A key of the registry and a number say all: they
give the same items in the same folder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from tests.pairs import form_material as user
from tests.pairs.form_material import FORMATS
from tests.test_replay import Shuffles
from torchpipe.iter import (
    FilePieces,
    IterableWrapper,
    PathList,
)
from torchpipe.map import TokenFile

__all__ = [
    "FAMILIES",
    "FORMS",
    "ITEMS",
    "LEFT_OUT",
    "LISTS",
    "MAPS",
    "MIXED",
    "MORE_KINDS",
    "NUMBERS",
    "OR_STREAMS",
    "SAME",
    "WITH_ANOTHER",
    "Branches",
    "Form",
    "Kind",
    "Model",
    "add_form",
    "add_source",
    "batches",
    "each",
    "fewer",
    "list_of",
    "of_list",
    "of_map",
    "opened",
    "other",
    "same",
]

Kind = str
"""Of items: "int", "list of int", "path csv", "open csv" (a pair of a path and a stream), "map of int" (map-style) ...
"""

NUMBERS = range(4)


@dataclass(frozen=True)
class Branches:
    """What a form makes that gives several nodes. The next step of a chain stands on each; then they are joined."""

    nodes: list[Any]
    number: int

    def joined(self) -> Any:
        first, *rest = self.nodes
        return first.concat(*rest) if self.number % 2 else first.mux_longest(*rest)


@dataclass(frozen=True)
class Model:
    """What a form does to a list of items, in plain Python. Their order "matters"; or it is "free", as each is treated
    alone; or it is "lost", as the same items come in another one.
    """

    does: Callable[[list[Any], int], list[Any]]
    order: str = "matters"


def each(does: Callable[[Any, int], list[Any]]) -> Model:
    return Model(lambda items, number: [made for item in items for made in does(item, number)], "free")


SAME = Model(lambda items, number: items, "free")
MIXED = Model(lambda items, number: items, "lost")


@dataclass(frozen=True, kw_only=True)
class Form:
    """``make(graph, number, kind)`` puts it behind ``graph``, whose items are of ``kind``.

    ``takes`` are patterns of kinds; a source has none. ``grows``: about how many items it gives for each. ``draws``:
    the numbers with which it draws from the global random states. ``traits``: what the rules ask for, see form_rules.
    """

    key: str
    takes: tuple[str, ...]
    gives: Callable[[Kind], Kind]
    make: Callable[[Any, int, Kind], Any]
    grows: float = 1.0
    draws: frozenset[int] = frozenset()
    traits: frozenset[str] = frozenset()
    model: Model | None = None

    def traits_of(self, number: int) -> frozenset[str]:
        return self.traits | {"seeded"} if number == 1 and "joins" in self.traits else self.traits

    @cached_property
    def name(self) -> str:
        return self.key.partition("/")[0]

    @cached_property
    def family(self) -> str:
        return FAMILIES.get(self.name, self.name)

    def accepts(self, kind: Kind) -> bool:
        return any(fnmatchcase(kind, pattern) for pattern in self.takes)


FORMS: dict[str, Form] = {}
"""By a key: the form's name (of a source, its class's), and, of a second way to use it, that after a stroke."""

LEFT_OUT: dict[str, str] = {}
"""Forms and sources without an entry in the registry, and why."""

FAMILIES: dict[str, str] = {}
"""Forms over the same code: in ``make test``, one of them counts for all. ``make pairs`` makes the pairs of each."""

ITEMS = ("[!mo]*", "o[!p]*", "m[!a]*")  # all but streams ("open ...") and what is map-style ("map of ...")
OR_STREAMS = ("[!m]*", "m[!a]*")
LISTS = ("list of *",)
MAPS = ("map of *",)


def same(kind: Kind) -> Kind:
    return kind


def fewer(kind: Kind) -> Kind:
    """What is left of numbered items has gaps."""
    return "tuple" if kind == "numbered" else kind


def list_of(kind: Kind) -> Kind:
    return f"list of {kind}"


def of_list(kind: Kind) -> Kind:
    return kind.removeprefix("list of ")


def of_map(kind: Kind) -> Kind:
    return kind.removeprefix("map of ")


def opened(kind: Kind) -> Kind:
    return kind.replace("path", "open")


def add_form(
    key: str,
    takes: tuple[str, ...] | str,
    gives: Callable[[Kind], Kind] | Kind,
    make: Callable[..., Any],
    grows: float = 1.0,
    *,
    traits: str = "",
    draws: tuple[int, ...] = (),
    model: Model | None = None,
) -> None:
    FORMS[key] = Form(
        key=key,
        takes=(takes,) if isinstance(takes, str) else takes,
        gives=gives if callable(gives) else lambda kind: gives,
        make=make,
        grows=grows,
        draws=frozenset(draws),
        traits=frozenset(traits.split()),
        model=model,
    )


def add_source(
    key: str, gives: Kind, make: Callable[[int], Any], items: float, *, draws: tuple[int, ...] = (), traits: str = ""
) -> None:
    add_form(key, (), gives, lambda graph, number, kind: make(number), items, draws=draws, traits=traits)


def other(kind: Kind, number: int) -> Any:
    """Another source of the same kind of items: plain, shuffled, opened late by a node that draws, or replayed."""
    source = _another(kind)
    if kind.startswith(("open ", "map of ")):
        return source
    return (source, source.shuffle(buffer_size=3), Shuffles(source), user.Passing(source))[number]


WITH_ANOTHER = {"draws": (2,), "traits": "joins"}  # of a form with such a source


MORE_KINDS: dict[str, Callable[[], Any]] = {}
"""By the first word of a kind, sources of what only rings' forms give."""


def _another(kind: Kind) -> Any:
    first, _, rest = kind.partition(" ")
    numbers = IterableWrapper(range(100, 104))
    made: dict[str, Callable[[], Any]] = {
        "int": lambda: numbers,
        "dict": lambda: numbers.map(user.as_dict),
        "triple": lambda: numbers.map(user.as_triple),
        "named": lambda: numbers.map(user.as_named),
        "tensor": lambda: numbers.map(user.as_tensor),
        "text": lambda: IterableWrapper(["one", "two{3..4}", "five"]),
        "pair": lambda: IterableWrapper([("some", "line"), ("some", "")]),
        "folder": lambda: IterableWrapper(["csv"]),
        "path": lambda: PathList(f"{rest}/*" if rest in FORMATS else "txt/*"),
        "open": lambda: PathList(f"{rest}/*" if rest in FORMATS else "txt/*").open_files("b"),
        "piece": lambda: FilePieces("txt/*", "lines", piece_bytes=9),
        "row": lambda: PathList("parquet/0*").list_row_groups(),
        "array": lambda: TokenFile("tokens.npy", 20).to_iter_datapipe(),
        "content": lambda: PathList("zip/*").read_zip(),
        "list": lambda: _another(of_list(kind)).batch(2, wrapper_class=list),
    }
    if kind == "dict of text":
        return PathList("csv/0*").read_csv()
    return (made | MORE_KINDS).get(first, lambda: IterableWrapper([(100, 101), (102, 103)]))()


def batches(items: list[Any], n: int, last: bool) -> list[Any]:
    made = [items[i : i + n + 1] for i in range(0, len(items), n + 1)]
    return [batch for batch in made if last or len(batch) == n + 1]
