"""The differences between the stream that came and the expected one, sample by sample. Pure; runs anywhere."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torchpipe.testing.audit.orders import Batch
from torchpipe.testing.audit.samples import Sample

__all__ = ["Difference", "Epochs", "Judgement", "difference", "reached"]

Epochs = Mapping[int, Sequence[Batch]]


@dataclass(frozen=True)
class Judgement:
    """The parts in which two whole runs agreed, so that they can be judged: order, content, which samples, how many."""

    order: bool = True
    content: bool = True
    ids: bool = True
    number: bool = True


@dataclass
class Difference:
    """Numbers of samples, over all epochs. ``fields``: names of what changed; ``first`` and ``since`` say where.

    ``unjudged``: samples without ids that have a content which nobody expected, where the content is not judged.
    """

    lost: int = 0
    repeated: int = 0
    reordered: int = 0
    changed: int = 0
    fields: set[str] = field(default_factory=set)
    first: str = ""
    since: str = ""
    recut: int = 0
    unjudged: int = 0
    examples: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.lost or self.repeated or self.reordered or self.changed)

    def __str__(self) -> str:
        """In a few words; empty if there is none."""
        return ", ".join(
            f"{number} {name}"
            for name, number in (
                ("lost", self.lost),
                ("repeated", self.repeated),
                ("reordered", self.reordered),
                ("changed", self.changed),
            )
            if number
        )


def difference(expected: Epochs, got: Epochs, judged: Judgement | None = None) -> Difference:
    """Compare epoch by epoch: each sample is expected once for each time it came in ``expected``.

    What has ``changed`` has the same id and another content. A sample whose id nobody expected is one too, in place of
    one that is missing: without ids a changed sample cannot be told from another one. What is ``reordered`` came, and
    was expected, in another order; or the same order was cut into other batches.
    """
    judged = judged or Judgement()
    found = Difference()
    for epoch in sorted({*expected, *got}):
        _compare(epoch, expected.get(epoch, []), got.get(epoch, []), judged, found)
    return found


def reached(expected: Epochs, got: Epochs, judged: Judgement) -> dict[int, list[Batch]]:
    """The part of ``expected`` that a stream which ended early should have given: up to the last sample that came.

    Where the order is not judged, that is what has come of it: nothing counts as lost then.
    """
    last = max((epoch for epoch, batches in got.items() if batches), default=-1)
    part = {epoch: list(batches) for epoch, batches in expected.items() if epoch < last}
    came = Counter(one.id for batch in got.get(last, ()) for one in batch)
    if not judged.ids:
        part[last], left = [], came.total()
        for batch in expected.get(last, ()):
            part[last].append(batch[:left])
            left -= len(part[last][-1])
        return part
    ordered = [one for batch in expected.get(last, ()) for one in batch]
    new = (came - Counter(one.id for one in ordered)).keys() - {one.id for one in ordered}
    matched = []
    for place, one in enumerate(ordered):
        if came[one.id]:
            came[one.id] -= 1
            matched.append(place)
    end = max(matched[-1] + 1 if matched else 0, len(matched) + sum(came[one] for one in new))
    kept = set(range(end) if judged.order else matched)
    places = iter(range(len(ordered)))
    batches = [[one for one in batch if next(places) in kept] for batch in expected.get(last, ())]
    return {**part, last: [batch for batch in batches if batch]}


def _compare(epoch: int, expected: Sequence[Batch], got: Sequence[Batch], judged: Judgement, found: Difference) -> None:
    ours, theirs = [one for batch in expected for one in batch], [one for batch in got for one in batch]
    if not judged.ids:  # their number is all that is known, if that
        found.lost += max(0, len(ours) - len(theirs)) if judged.number else 0
        found.repeated += max(0, len(theirs) - len(ours)) if judged.number else 0
        return
    before = str(found)
    wanted, came = Counter(one.id for one in ours), Counter(one.id for one in theirs)
    missing, surplus = wanted - came, came - wanted
    unknown = sum(number for one, number in surplus.items() if one not in wanted)
    replaced = min(unknown, missing.total())
    if judged.content:
        found.changed += replaced
        found.fields |= _fields_of(ours, theirs, missing, surplus) if replaced else set()
    else:
        found.unjudged += replaced
    found.lost += missing.total() - replaced
    found.repeated += surplus.total() - replaced
    found.examples += [f"lost {one}" for one in list(missing)[:3] if missing.total() > replaced]
    found.examples += [f"repeated {one}" for one in list(surplus)[:3] if surplus.total() > replaced]
    if judged.content:
        _content(ours, theirs, found)
    if judged.order:
        _order(expected, got, wanted & came, found)
    if str(found) != before and not found.first:
        found.first = _first(epoch, expected, got)


def _fields_of(ours: list[Sample], theirs: list[Sample], missing: Counter[str], surplus: Counter[str]) -> set[str]:
    """Names of fields that differ, of samples without ids that stand at one place."""
    names = set()
    for one, other in zip(ours, theirs):
        if one.id in missing and other.id in surplus:
            differing = {name for name in one.fields if one.fields[name] != other.fields.get(name)}
            if len(differing) < len(one.fields):
                names |= differing
    return names


def _content(ours: list[Sample], theirs: list[Sample], found: Difference) -> None:
    """The nth sample of an id against the nth of that id."""
    of_id: dict[str, list[Sample]] = defaultdict(list)
    for one in ours:
        of_id[one.id].append(one)
    seen: Counter[str] = Counter()
    for other in theirs:
        same = of_id.get(other.id, [])
        if seen[other.id] < len(same):
            one = same[seen[other.id]]
            names = {name for name in {*one.fields, *other.fields} if one.fields.get(name) != other.fields.get(name)}
            if names:
                found.changed += 1
                found.fields |= names
        seen[other.id] += 1


def _order(expected: Sequence[Batch], got: Sequence[Batch], common: Counter[str], found: Difference) -> None:
    ours, theirs = _common(expected, common), _common(got, common)
    moved = sum(one != other for one, other in zip(ours, theirs))
    found.reordered += moved
    if moved or sum(map(len, expected)) != sum(map(len, got)):
        return
    cut = [len(batch) for batch in got]
    recut = sum(size for place, size in enumerate(cut) if place >= len(expected) or len(expected[place]) != size)
    found.reordered += recut
    found.recut += recut


def _common(batches: Sequence[Batch], common: Counter[str]) -> list[str]:
    """Ids in their order, each as often as both sides have it."""
    seen: Counter[str] = Counter()
    kept = []
    for one in (one for batch in batches for one in batch):
        seen[one.id] += 1
        if seen[one.id] <= common[one.id]:
            kept.append(one.id)
    return kept


def _first(epoch: int, expected: Sequence[Batch], got: Sequence[Batch]) -> str:
    for number in range(max(len(expected), len(got))):
        if number >= len(expected) or number >= len(got) or expected[number] != got[number]:
            return f"batch {number} of epoch {epoch}"
    return f"epoch {epoch}"
