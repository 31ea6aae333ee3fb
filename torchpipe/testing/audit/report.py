"""The findings of an audit: rows, one for each check, and the likely causes. As text, JSON and HTML.

The options of an audit. Plain data; runs anywhere.

One check's row, made of what its runs gave: the verdict, the numbers, and what there is to say. Runs anywhere.

The differences between the stream that came and the expected one, sample by sample. Pure; runs anywhere.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any, Literal

from torchpipe.testing.audit.processes import Batch, RunResult
from torchpipe.testing.audit.samples import Sample

__all__ = [
    "AuditReport",
    "Difference",
    "Epochs",
    "Judgement",
    "Options",
    "Row",
    "Verdict",
    "count_of",
    "difference",
    "error_of",
    "reached",
    "row_of",
    "verdict_of",
]

Verdict = Literal["ok", "unseeded", "refused", "FAULT", "-"]
_COLUMNS = ("lost", "repeated", "reordered", "changed", "hang", "left over")


@dataclass
class Row:
    """One check. ``verdict``: "unseeded": two whole runs have other orders, as nobody seeds what draws them;
    "refused": the loader raised an error instead of going on; "-": was not checked.

    Numbers are of samples (``left_over``: of processes), None where nothing could be counted; of a run that ended early
    they are of the part before. ``hang``: it gave nothing for the time limit. ``text``: the error, or what else is to
    be said.
    """

    check: str
    verdict: Verdict = "ok"
    lost: int | None = None
    repeated: int | None = None
    reordered: int | None = None
    changed: int | None = None
    hang: bool = False
    left_over: int = 0
    text: str = ""

    @property
    def cells(self) -> list[str]:
        numbers = (self.lost, self.repeated, self.reordered, self.changed)
        counted = ["" if number is None else str(number) for number in numbers]
        nothing = self.verdict == "-"
        return [*counted, "" if nothing else "yes" if self.hang else "0", "" if nothing else str(self.left_over)]


@dataclass
class AuditReport:
    """The findings of :func:`audit`. ``str()`` of it is the table."""

    target: str
    loader: str
    batches: int
    samples: int
    epochs: int
    rows: list[Row] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """True if no check found a fault. What was refused with an error lost nothing unseen, and is none."""
        return not any(row.verdict == "FAULT" for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}

    def head(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return (
            f"{self.target}: {self.loader}\n"
            f"{self.samples} samples in {self.batches} batches, epochs: {self.epochs}; {versions}"
        )

    def __str__(self) -> str:
        table = [["check", "", *_COLUMNS], *([row.check, row.verdict, *row.cells] for row in self.rows)]
        widths = [max(len(line[place]) for line in table) for place in range(len(table[0]))]
        lines = [self.head(), ""]
        for number, line in enumerate(table):
            told = [line[0].ljust(widths[0]), line[1].ljust(widths[1])]
            told += [cell.rjust(width) for cell, width in zip(line[2:], widths[2:])]
            lines.append("  ".join(told).rstrip())
            if number and self.rows[number - 1].text:
                lines.append("    " + self.rows[number - 1].text)
        lines += ["", *(f"- {finding}" for finding in self.findings)] if self.findings else []
        lines += ["", self.verdict()]
        return "\n".join(lines)

    def verdict(self) -> str:
        faults = sum(row.verdict == "FAULT" for row in self.rows)
        refused = sum(row.verdict == "refused" for row in self.rows)
        told = f"{faults} of {len(self.rows)} checks found a fault" if faults else "no check found a fault"
        return told + (f"; {refused} refused with an error" if refused else "")

    def to_html(self) -> str:
        """One page, without scripts or anything to be fetched."""
        colours = {"ok": "#1a7f37", "FAULT": "#cf222e", "refused": "#9a6700", "unseeded": "#9a6700", "-": "#6e7781"}
        rows = "".join(
            f"<tr><th scope=row>{escape(row.check)}</th>"
            f'<td style="color:{colours[row.verdict]};font-weight:600">{row.verdict}</td>'
            f"{_cells(row.cells)}<td class=text>{escape(row.text)}</td></tr>\n"
            for row in self.rows
        )
        findings = "".join(f"<li>{escape(finding)}</li>\n" for finding in self.findings)
        columns = "".join(f"<th scope=col>{name}</th>" for name in _COLUMNS)
        return (
            f'<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">'
            f"<title>Audit of {escape(self.target)}</title><style>:root{{color-scheme:light dark}}"
            "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
            "div{overflow-x:auto}table{border-collapse:collapse}th,td{padding:.3rem .7rem;text-align:right;"
            "border-bottom:1px solid #8886}th[scope=row],td.text{text-align:left}</style>\n"
            f"<h1>Audit of {escape(self.target)}</h1><p>{'<br>'.join(map(escape, self.head().splitlines()))}</p>\n"
            f"<div><table><tr><th></th><th></th>{columns}<th></th></tr>\n{rows}</table></div>\n"
            f"<ul>{findings}</ul><p><b>{escape(self.verdict())}</b></p></html>\n"
        )


def _cells(cells: Sequence[str]) -> str:
    return "".join(f"<td>{escape(cell)}</td>" for cell in cells)


def _ignore(_: Row) -> None:
    """Nobody waits for the rows."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options with which a loader is audited.

    ``identify`` names a function of a batch that gives the ids of its samples; see ``samples_of`` for a run without
    one. ``kills``: how often the run is cut off, at batches drawn by ``seed``. ``workers``: the number to run with,
    then others to resume under. ``batches``: at most so many are read, for streams without an end. ``timeout_s``: a run
    that gives no batch for so long hangs. ``unseeded``: two whole runs may differ. ``on_row`` is called with each row
    as soon as it is there.
    """

    identify: str | None = None
    kills: int = 5
    workers: Sequence[int] = ()
    epochs: int = 2
    batches: int = 10_000
    timeout_s: float = 60.0
    seed: int = 0
    unseeded: bool = False
    on_row: Callable[[Row], None] = _ignore

    def __post_init__(self) -> None:
        for name, least in (("kills", 0), ("epochs", 1), ("batches", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} should be at least {least}")
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s={self.timeout_s} should be above 0")


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


def verdict_of(*, differs: bool, failed: bool, hung: bool, left_over: bool, may_refuse: bool) -> Verdict:
    """The verdict of one check. ``differs``: the stream, in a judged part; ``may_refuse``: an error is no fault."""
    if differs or hung or left_over or (failed and not may_refuse):
        return "FAULT"
    return "refused" if failed else "ok"


def row_of(
    check: str,
    runs: Sequence[RunResult],
    found: Difference | None = None,
    *,
    judged: Judgement,
    excused: bool = False,
    may_refuse: bool = False,
    verdict: Verdict | None = None,
    fault: str = "",
    text: str = "",
) -> Row:
    """A row of what ``runs`` gave together, of which ``found`` says how it differs, in what is ``judged``.

    ``excused``: that it differs is no fault; ``verdict``: the one to give, whatever differs; ``fault``: what is one by
    itself; ``text``: what else there is to say.
    """
    hung_s = max(run.hung_s for run in runs)
    failed = next((run for run in runs if run.failed and not run.hung_s), None)
    left = sum(run.left for run in runs)
    verdict = verdict or verdict_of(
        differs=bool(fault) or (bool(found) and not excused),
        failed=failed is not None,
        hung=bool(hung_s),
        left_over=bool(left),
        may_refuse=may_refuse,
    )
    row = Row(check, verdict, hang=bool(hung_s), left_over=left)
    texts = [fault, text, f"no batch for {hung_s:g} s: it was ended" if hung_s else ""]
    if failed is not None:
        texts.append(("refused: " if verdict == "refused" else "") + error_of(failed))
    if left:
        texts.append(f"{count_of(left, 'process', 'processes')} still there when the run had ended")
    if found is not None:
        row.lost, row.repeated = (found.lost, found.repeated) if judged.ids or judged.number else (None, None)
        row.reordered = found.reordered if judged.order and judged.ids else None
        row.changed = found.changed if judged.content and judged.ids else None
        texts += _remarks(found)
    row.text = "; ".join(filter(None, texts))
    return row


def _remarks(found: Difference) -> Iterator[str]:
    if found.first:
        yield f"from {found.first} on" + (f", {found.since}" if found.since else "")
    if found.fields - {""}:
        yield f"changed: {', '.join(sorted(found.fields))}"
    if found.unjudged:
        yield f"{found.unjudged} have another content, and no id that says which they are: name a function by --id"
    if found.recut:
        yield f"{found.recut} of the reordered ones only because batches are cut at other points"


def error_of(run: RunResult) -> str:
    if run.error is not None:
        kind, text, trace = run.error
        lines = [line for line in trace.strip().splitlines() if line.strip(" ^~")]
        if "Traceback (most recent call last)" in text:  # of a worker
            text = text.strip().splitlines()[-1]
        short = " ".join(text.split()) or " ".join("".join(lines[-2:-1]).split())  # `assert` has no text
        return f"{kind}: {short[:297] + '...' if len(short) > 300 else short}"
    last = run.log.strip().splitlines()[-1:] or [""]
    early = "" if run.finished else " before it was at its end"
    return f"the process ended with code {run.code}{early}" + (f": {last[0]}" if last[0] else "")


def count_of(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
