"""Chains of forms: how they are named and built, and few in which each pair of forms occurs."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from tests.pairs.forms import FORMS, NUMBERS, Branches, Kind, fewer

__all__ = [
    "Chain",
    "Step",
    "build",
    "chain_of",
    "chain_with",
    "covering_chains",
    "fits",
    "kinds_of",
    "name_of",
    "pairs",
    "pairs_in",
    "plainest",
]

Step = tuple[str, int]
"""A key of ``FORMS``, and the number that chooses its arguments."""
Chain = tuple[Step, ...]

_DEEPEST = 2  # lists within lists
_LEAST, _MOST = 4, 40  # items of an epoch, as far as one can tell


def name_of(chain: Chain) -> str:
    return " | ".join(f"{key}:{number}" for key, number in chain)


def chain_of(name: str) -> Chain:
    steps = [step.strip().rpartition(":") for step in name.split("|")]
    return tuple((key, int(number)) for key, _, number in steps)


def kinds_of(chain: Chain) -> list[Kind]:
    """Of the items that each step gives. Raises: ValueError for a step that does not take what is there."""
    kinds: list[Kind] = []
    for place, (key, _) in enumerate(chain):
        form = FORMS[key]
        if (place == 0) != (not form.takes) or (place and not form.accepts(kinds[-1])):
            raise ValueError(f"{key} does not take {kinds[-1] if kinds else 'nothing'}")
        given = form.gives(kinds[-1] if place else "")
        kinds.append(fewer(given) if place and "branches" in FORMS[chain[place - 1][0]].traits else given)
    return kinds


def fits(chain: Chain) -> bool:
    try:
        kinds_of(chain)
    except ValueError:
        return False
    return bool(chain)


def finished(chain: Chain) -> Chain:
    """The chain, with what makes its last items comparable."""
    kind = kinds_of(chain)[-1]
    if kind.startswith("map of "):
        return finished((*chain, ("to_iter_datapipe", 0)))
    return (*chain, ("map/content", 0)) if kind.startswith("open ") else chain


def build(chain: Chain) -> Any:
    """The graph. What stands behind a form with several branches stands on each of them."""
    graph: Any = None
    kind = ""
    for (key, number), given in zip(chain, kinds_of(chain)):
        form = FORMS[key]
        if isinstance(graph, Branches):
            made = [form.make(node, number, kind) for node in graph.nodes]
            inner = [node for item in made if isinstance(item, Branches) for node in item.nodes]
            graph = Branches(inner, number) if inner else Branches(made, graph.number).joined()
        else:
            graph = form.make(graph, number, kind)
        kind = given
    return graph.joined() if isinstance(graph, Branches) else graph


def _named(key: str, every_form: bool) -> str:
    return FORMS[key].name if every_form else FORMS[key].family


def pairs_in(chain: Chain, every_form: bool = False) -> set[tuple[str, str]]:
    """The pairs of forms of which one stands directly behind the other; but for ``every_form``, of their families."""
    names = [_named(key, every_form) for key, _ in chain]
    return set(pairwise(names))


@cache
def _from(start: Kind) -> dict[Kind, tuple[str, ...]]:
    """All kinds of items that can be made of these ("": of nothing), and the keys of a shortest way to each."""
    ways: dict[Kind, tuple[str, ...]] = {start: ()} if start else {}
    waiting: list[tuple[Kind, tuple[str, ...]]] = [(start, ())]
    while waiting:
        kind, way = waiting.pop(0)
        for key in _next(kind):
            given = FORMS[key].gives(kind)
            if given not in ways:
                ways[given] = (*way, key)
                waiting.append((given, (*way, key)))
    return ways


@cache
def _next(kind: Kind) -> tuple[str, ...]:
    """The keys of forms that take this kind; of sources for "", nothing."""
    found = (key for key, form in FORMS.items() if (form.accepts(kind) if kind else not form.takes))
    return tuple(key for key in found if FORMS[key].gives(kind).count("list of ") <= _DEEPEST)


@cache
def _ways(every_form: bool) -> dict[tuple[str, str], list[tuple[Kind, str, str]]]:
    """For each pair of names, (a kind that the first takes, the keys of both)."""
    found: dict[tuple[str, str], list[tuple[Kind, str, str]]] = {}
    for kind in ("", *_from("")):
        for first in _next(kind):
            for second in _next(FORMS[first].gives(kind)):
                found.setdefault((_named(first, every_form), _named(second, every_form)), []).append(
                    (kind, first, second)
                )
    return found


def pairs(every_form: bool = False) -> set[tuple[str, str]]:
    """Every pair of forms (or of families) of which the second takes what the first can give."""
    return set(_ways(every_form))


def covering_chains(
    seed: int, *, alone: Callable[[Chain], bool], every_form: bool = False, longest: int = 12
) -> Iterator[Chain]:
    """Chains in which every pair occurs. One that is ``alone`` (refused, say) has a chain to itself, and hides none."""
    chance = random.Random(seed)
    left = pairs(every_form)
    wanted = Counter(first for first, _ in left)
    aims = sorted(left)
    chance.shuffle(aims)
    chain: Chain = ()

    def covered(made: Chain) -> Chain:
        new = pairs_in(made, every_form) & left
        left.difference_update(new)
        wanted.subtract(first for first, _ in new)
        return made

    while aims:
        longer = _following(chance, chain, left, wanted, alone, every_form) if chain and len(chain) < longest else None
        if longer is not None:
            chain = covered(longer)
            continue
        aim = aims[-1]
        if aim not in left:
            aims.pop()
            continue
        kind, *pair = chance.choice(_ways(every_form)[aim])
        longer = None
        if chain and kind in _from(kinds_of(chain)[-1]) and len(chain) + 2 < longest:
            longer = _with(chance, _led(chance, chain, kind), pair, alone)
        if longer is not None and len(longer) <= longest and _size(longer) <= _MOST:
            chain = covered(longer)
            continue
        if chain:
            yield finished(chain)
        begun = _led(chance, (), kind)
        chain = _with(chance, _with_shards(chance, begun, alone), pair, alone) or ()
        if chain:
            covered(chain)
        else:
            yield finished(covered(_with(chance, begun, pair, lambda longer: False) or ()))
    if chain:
        yield finished(chain)


def chain_with(key: str, number: int = 0) -> Chain:
    """A short chain that ends with this form; items within items come to it, where it takes such."""
    nested = (("IterableWrapper", 0), ("map/triple", 0), ("enumerate", 0), (key, number))
    if fits(nested):
        return nested
    kind = next(kind for kind in ("", *_from("")) if key in _next(kind))
    keys = _from("")[kind] if kind else ()
    return (*((before, 0) for before in keys), (key, number))


def simpler(chain: Chain) -> Iterator[Chain]:
    """The chains that have one step less, or the plainest arguments of one."""
    for place in reversed(range(len(chain))):
        shorter = chain[:place] + chain[place + 1 :]
        if fits(shorter) and not kinds_of(shorter)[-1].startswith(("open ", "map of ")):
            yield shorter
    for place, (key, number) in enumerate(chain):
        if number:
            yield (*chain[:place], (key, 0), *chain[place + 1 :])


def plainest(chain: Chain, fails: Callable[[Chain], bool]) -> Chain:
    """A chain that fails as well, as simple as can be."""
    while (found := next(filter(fails, simpler(chain)), None)) is not None:
        chain = found
    return chain


def _size(chain: Chain) -> float:
    """About how many items it gives in an epoch."""
    return math.prod(FORMS[key].grows for key, _ in chain)


def _led(chance: random.Random, chain: Chain, kind: Kind) -> Chain:
    """The chain, led on to items of this kind."""
    if not kind:
        return chain
    keys = _from(kinds_of(chain)[-1] if chain else "")[kind]
    if not chain and chance.random() < 0.5:  # another source, where one does as well
        gives = FORMS[keys[0]].gives("")
        others = [key for key, form in FORMS.items() if not form.takes and form.gives("") == gives]
        keys = (chance.choice(others), *keys[1:])
    return (*chain, *((key, chance.choice(NUMBERS)) for key in keys))


def _with_shards(chance: random.Random, chain: Chain, alone: Callable[[Chain], bool]) -> Chain:
    """Perhaps with a sharding point somewhere."""
    key = chance.choice(["", "sharding_filter", "sharding_filter", "sharding_round_robin_dispatch"])
    place = chance.randint(1, len(chain)) if chain else 0
    longer = (*chain[:place], (key, chance.choice(NUMBERS)), *chain[place:])
    possible = key and place and fits(longer) and kinds_of(longer)[-1] == kinds_of(chain)[-1] and not alone(longer)
    return longer if possible else chain


def _with(chance: random.Random, chain: Chain, keys: Sequence[str], alone: Callable[[Chain], bool]) -> Chain | None:
    """The chain with these steps, whose numbers are such that it is not alone; None if there are no such numbers."""
    for key in keys:
        numbers = chance.sample(NUMBERS, len(NUMBERS))
        longer = ((*chain, (key, number)) for number in numbers)
        found = next((one for one in longer if fits(one) and not alone(one)), None)
        if found is None:
            return None
        chain = found
    return chain


def _following(
    chance: random.Random,
    chain: Chain,
    left: set[tuple[str, str]],
    wanted: Counter[str],
    alone: Callable[[Chain], bool],
    every_form: bool,
) -> Chain | None:
    """The chain with a step that makes a new pair, such a one that there are many others to be made behind it."""
    kind, name = kinds_of(chain)[-1], _named(chain[-1][0], every_form)
    size = _size(chain)
    found: list[tuple[float, str]] = []
    for key in _next(kind):
        pair = name, _named(key, every_form)
        if pair in left and _LEAST <= size * FORMS[key].grows <= _MOST:
            found.append((wanted[pair[1]] * chance.random(), key))
    longer = (_with(chance, chain, [key], alone) for _, key in sorted(found, reverse=True))
    return next((one for one in longer if one is not None), None)
