"""``audit``: which runs there are, and what each one should have given. Runs in the process of the one who asks."""

from __future__ import annotations

import random
import socket
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from torchpipe.testing.audit.differences import Difference, Judgement, difference
from torchpipe.testing.audit.orders import Batch, Order, RunResult
from torchpipe.testing.audit.processes import Runner
from torchpipe.testing.audit.report import AuditReport, Row, Verdict

__all__ = ["audit", "audit_in"]

_RANKS = 2
_PACKAGES = {"torchpipe": "torchpipe-data"}


def audit(
    target: str,
    *,
    identify: str | None = None,
    kills: int = 5,
    workers: Sequence[int] = (),
    epochs: int = 2,
    batches: int = 10_000,
    timeout_s: float = 60.0,
    seed: int = 0,
    unseeded: bool = False,
    on_row: Callable[[Row], None] = lambda _: None,
) -> AuditReport:
    """Run the loader that ``target`` makes, whole and cut off, and compare. Takes some twenty runs of it.

    ``target``: ``module:name`` or ``file.py:name`` of a function that makes anything that is iterable; it may take
    ``num_workers`` (or ``workers``), ``rank``, ``world_size`` and ``epoch``. ``identify`` names a function of a batch
    that gives the ids of its samples; see ``samples_of`` for what happens without. ``kills``: how often the run is cut
    off, at batches drawn by ``seed``. ``workers``: the number to run with, then others to resume under. ``batches``: at
    most so many are read, for streams without an end. ``timeout_s``: a run that gives no batch for so long hangs.
    ``unseeded``: two whole runs may differ. ``on_row`` is called with each row as soon as it is there.

    Each run is a process with a session of its own; what it leaves behind is found, counted and ended. Linux only.
    Raises: ValueError for arguments that cannot be, or ``workers`` that the function does not take.
    """
    # Sets of texts have another order in the second one: what rests on it is found.
    with Runner(1) as first, Runner(2) as second:
        return audit_in(
            (first, second),
            target,
            identify=identify,
            kills=kills,
            workers=workers,
            epochs=epochs,
            batches=batches,
            timeout_s=timeout_s,
            seed=seed,
            unseeded=unseeded,
            on_row=on_row,
        )


def audit_in(
    runners: Sequence[Runner],
    target: str,
    *,
    identify: str | None = None,
    kills: int = 5,
    workers: Sequence[int] = (),
    epochs: int = 2,
    batches: int = 10_000,
    timeout_s: float = 60.0,
    seed: int = 0,
    unseeded: bool = False,
    on_row: Callable[[Row], None] = lambda _: None,
) -> AuditReport:
    """:func:`audit` by two runners that are there already."""
    for name, number, least in (("kills", kills, 0), ("epochs", epochs, 1), ("batches", batches, 2)):
        if number < least:
            raise ValueError(f"{name}={number} should be at least {least}")
    if not timeout_s > 0:
        raise ValueError(f"timeout_s={timeout_s} should be above 0")
    with tempfile.TemporaryDirectory(prefix="torchpipe-audit-") as folder:
        base = Order(
            target=target,
            records="",
            log="",
            identify=identify,
            epochs=epochs,
            limit=batches,
            arguments={"workers": workers[0]} if workers else {},
        )
        others = list(workers[1:])
        return _Audit(base, Path(folder), runners, kills, others, timeout_s, seed, unseeded, on_row).report()


@dataclass
class _Cut:
    """A run that was cut off: what came before, where its state is, and where a training would go on."""

    came: dict[int, list[Batch]]
    state: str
    epoch: int
    at_end: bool


@dataclass
class _Audit:
    base: Order
    folder: Path
    runners: Sequence[Runner]
    kills: int
    others: list[int]
    timeout_s: float
    seed: int
    unseeded: bool
    on_row: Callable[[Row], None]
    rows: list[Row] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    judged: Judgement = field(default_factory=Judgement)
    whole: RunResult = field(default_factory=RunResult)
    number: int = 0
    cuts: list[_Cut] = field(default_factory=list)
    cut_found: Difference = field(default_factory=Difference)

    # --- one run

    def order(self, **changes: Any) -> Order:
        self.number += 1
        here = self.folder / str(self.number)
        return replace(self.base, records=f"{here}.jsonl", log=f"{here}.log", **changes)

    def state(self) -> str:
        self.number += 1
        return str(self.folder / f"{self.number}.pt")

    def run(self, runner: int = 0, **changes: Any) -> RunResult:
        self.runners[runner].begin(self.order(**changes))
        return self.runners[runner].finish(self.timeout_s)

    def row(self, check: str, runs: Iterable[RunResult], found: Difference | None, **more: Any) -> Row:
        """A row of what ``runs`` gave together; ``loud``: an error is a refusal here, and no fault."""
        runs, loud = list(runs), more.pop("loud", False)
        hung = [run.hung_s for run in runs if run.hung_s]
        errors = [run for run in runs if run.error is not None or _died(run)]
        left = sum(run.left for run in runs)
        texts: list[str] = [more["text"]] if more.get("text") else []
        verdict: Verdict = "FAULT" if found or left or hung else "ok"
        if hung:
            texts.append(f"no batch for {hung[0]:g} s: it was ended")
        elif errors:
            texts.append(("refused: " if loud else "") + _error_of(errors[0]))
            verdict = "refused" if loud and not left else "FAULT"
        if left:
            texts.append(f"{_count(left, 'process', 'processes')} still there when the run had ended")
        counted = None if errors or hung else found  # of a run that did not end there is nothing to count
        row = Row(check, verdict, hang=bool(hung), left_over=left)
        if counted is not None:
            row.lost, row.repeated = counted.lost, counted.repeated
            row.reordered = counted.reordered if self.judged.order and self.judged.ids else None
            row.changed = counted.changed if self.judged.content and self.judged.ids else None
            texts += _remarks(counted)
        row.text = "; ".join(texts)
        return self.add(row)

    def add(self, row: Row) -> Row:
        self.rows.append(row)
        self.on_row(row)
        return row

    def left_out(self, check: str, why: str) -> None:
        self.add(Row(check, "-", text=why))

    # --- all of them

    def report(self) -> AuditReport:
        self.whole = self.run()
        if self._whole_is_usable():
            for check in (self.again, self.asked_twice, self.cut_off, self.twice, self.end, self.worker_dies):
                check()
            for number in self.others:
                self.other_workers(number)
            self.ranks()
            self.strict()
            self.conclude()
        whole, made = self.whole, self.whole.made
        return AuditReport(
            target=self.base.target,
            loader=made.get("name", "not made"),
            batches=whole.count,
            samples=sum(len(batch) for batches in whole.epochs.values() for batch in batches),
            epochs=len(whole.epochs),
            rows=self.rows,
            findings=self.findings,
            versions=_versions(made.get("name", "")),
        )

    def _whole_is_usable(self) -> bool:
        whole = self.whole
        takes = whole.made.get("takes", [])
        if self.base.arguments and whole.made and "workers" not in takes:
            raise ValueError(f"workers were given, and {self.base.target} takes no num_workers or workers")
        none = "" if whole.count else "no batch came"
        row = self.row("whole run", [whole], Difference(), text=none)
        if none and row.verdict == "ok":
            row.verdict = "FAULT"
        if whole.limited:
            self.findings.append(f"only its first {whole.count} batches were read (--batches)")
        if whole.error is not None:
            self.findings.append(whole.error[2].strip().splitlines()[-1])
        return bool(whole.count) and whole.error is None and not whole.hung_s and not _died(whole)

    def again(self) -> None:
        """Two whole runs, in processes whose sets have other orders: what of it can be compared at all?"""
        again = self.run(1)
        found = difference(self.whole.epochs, again.epochs)
        verdict_of = self.row("a second whole run", [again], found)
        if not found or again.error is not None:
            return
        known = {one.id for batches in self.whole.epochs.values() for batch in batches for one in batch}
        new = any(one.id not in known for batches in again.epochs.values() for batch in batches for one in batch)
        ids = not (found.lost or found.repeated or new)
        self.judged = Judgement(order=ids and not found.reordered, content=not found.changed, ids=ids)
        if self.unseeded:
            verdict_of.verdict = "ok"
        what = "content" if found.changed else "order" if not found.lost and not found.repeated else "samples"
        fields = f" (fields: {', '.join(sorted(found.fields))})" if found.fields - {""} else ""
        self.findings.append(
            f"two whole runs differ from {found.first} on, in their {what}{fields}: random numbers that nobody seeds, "
            "the clock, or the order of a set. Where that is meant, seed in the function that makes the loader, as "
            f"your script does, or say --unseeded. The other checks do not judge {self._unjudged()}"
        )
        if new and self.base.identify is None:
            self.findings.append(
                "without ids, a sample with another content is another sample: name a function by --id"
            )

    def _unjudged(self) -> str:
        if not self.judged.ids:
            return "which samples come, only how many"
        judged = {"order": self.judged.order, "content": self.judged.content}
        return " and ".join(name for name, is_judged in judged.items() if not is_judged)

    def asked_twice(self) -> None:
        probed = self.run(probe=True)
        if probed.probed:
            self.add(Row("one sample, asked for twice", "FAULT", text=probed.probed[0]))

    def cut_off(self) -> None:
        """Cut off again and again, each time resumed in a new process, from what the one before it saved."""
        points = self._cut_points()
        runs: list[RunResult] = []
        cut = _Cut(defaultdict(list), "", 0, False)
        first = ""
        for step, point in enumerate([*points, None]):
            done = sum(map(len, cut.came.values()))
            stop = None if point is None else point - (points[step - 1] if step else 0)
            state = self.state()
            changes = _resumed(cut) if step else {}
            run = self.run(
                step % 2, stop=stop, save=state, by_kill=bool(step % 2), limit=max(1, self._limit() - done), **changes
            )
            runs.append(run)
            cut = self._after(cut, run, state)
            if point is None or not run.saved:
                break
            self.cuts.append(cut)
            first = first or self._first_after(cut)
        text = "" if self.has_state else "no state_dict: a run that is cut off begins anew"
        found = difference(self.whole.epochs, cut.came, self.judged)
        if found and first:
            found.since = first
        self.row(f"cut off {_count(len(self.cuts), 'time')}, resumed", runs, found, text=text)
        self.cut_found = found

    @property
    def has_state(self) -> bool:
        return self.whole.has_state

    def _limit(self) -> int:
        return self.whole.count if self.whole.limited else self.base.limit

    def _cut_points(self) -> list[int]:
        draws = random.Random(self.seed)
        count = self.whole.count
        return sorted(draws.sample(range(1, count), min(self.kills, count - 1)))

    def _after(self, before: _Cut, run: RunResult, state: str) -> _Cut:
        came: dict[int, list[Batch]] = defaultdict(list)
        for part in (before.came, run.epochs):
            for epoch, batches in part.items():
                came[epoch] += batches
        epoch = max(came, default=0)
        # A loader without a state is at an epoch's end if this run has read all of it.
        here = came if self.has_state else run.epochs
        return _Cut(came, state, epoch, len(here.get(epoch, ())) >= len(self.whole.epochs.get(epoch, ())))

    def _first_after(self, cut: _Cut) -> str:
        """Where what has come until now differs from what should have; empty if it does not."""
        found = difference(_until(self.whole.epochs, cut.came), cut.came, self.judged)
        return f"first seen behind cut {len(self.cuts)}" if found else ""

    def twice(self) -> None:
        check = "resumed twice from one state"
        if not self._resumable(check):
            return
        cut = self.cuts[0]
        runs = [self.run(runner, **self._rest(cut)) for runner in (0, 1)]
        streams = [self._after(cut, run, "").came for run in runs]
        found = difference(self.whole.epochs, streams[0], self.judged)
        second = difference(streams[0], streams[1])
        text = f"the second resume differs from the first: {second}" if second else ""
        self.row(check, runs, found or second, text=text)

    def _resumable(self, check: str) -> bool:
        if not self.has_state:
            self.left_out(check, "no state_dict")
        elif not self.cuts:
            self.left_out(check, "no state was saved")
        return self.has_state and bool(self.cuts)

    def _rest(self, cut: _Cut) -> dict[str, Any]:
        done = sum(map(len, cut.came.values()))
        return {**_resumed(cut), "limit": max(1, self._limit() - done)}

    def end(self) -> None:
        """States behind an epoch's last batch, and behind the end of its loop."""
        check = "resumed at an epoch's end"
        length = len(self.whole.epochs.get(0, ()))
        if not self.has_state:
            self.left_out(check, "no state_dict")
            return
        if self.base.epochs < 2 or len(self.whole.epochs) < 2 or not length:
            self.left_out(check, "there is one epoch only")
            return
        files = (self.state(), self.state())
        first = self.run(ends=length, save_ends=files)
        runs, found = [first], Difference()
        for name, state, made_for in zip(("last batch", "end"), files, (0, 1)):
            if not first.saved:
                break
            arguments = {**self.base.arguments, "epoch": made_for}
            cut = _Cut(first.epochs, state, 0, True)
            run = self.run(1, **{**self._rest(cut), "arguments": arguments})
            runs.append(run)
            one = difference(self.whole.epochs, self._after(cut, run, "").came, self.judged)
            if one and not found:
                found = one
                found.since = f"with the state saved behind the {name} of epoch 0"
        self.row(check, runs, found)

    def worker_dies(self) -> None:
        count = self.whole.count
        run = self.run(kill=tuple(sorted({min(2, count), max(1, count // 2)})))
        if run.no_worker and not run.killed:
            self.left_out("a worker is killed", "it has no worker processes")
            return
        found = difference(self.whole.epochs, run.epochs, self.judged)
        self.row(f"a worker is killed ({_count(run.killed, 'time')})", [run], found, loud=True)

    def other_workers(self, number: int) -> None:
        check = f"{self.base.arguments['workers']} workers, resumed under {number}"
        if not self._resumable(check):
            return
        cut = self.cuts[0]
        run = self.run(1, **self._rest(cut), arguments={"workers": number})
        found = difference(self.whole.epochs, self._after(cut, run, "").came, self.judged)
        self.row(check, [run], found, loud=True)

    def ranks(self) -> None:
        if not {"rank", "world_size"} <= set(self.whole.made["takes"]):
            return
        whole = self._ranks()
        together: dict[int, list[Batch]] = defaultdict(list)
        for run in whole:
            for epoch, batches in run.epochs.items():
                together[epoch] += batches
        # What a sample's augmentation draws may rest on the rank, and the order does.
        found = difference(self.whole.epochs, together, replace(self.judged, order=False, content=False))
        found.first = ""
        row = self.row(f"{_RANKS} ranks together", whole, found, loud=True)
        row.reordered = row.changed = None
        check = f"{_RANKS} ranks, cut off and resumed"
        stop = max(1, min(run.count for run in whole) // 2)
        if not self.has_state or any(run.count < 2 or run.error for run in whole):
            self.left_out(check, "no state_dict" if not self.has_state else "the ranks give too little to be cut off")
            return
        states = [self.state() for _ in whole]
        before = self._ranks(*[{"stop": stop, "save": state} for state in states])
        cuts = [
            replace(
                self._after(_Cut({}, "", 0, False), run, state),
                at_end=len(run.epochs[max(run.epochs, default=0)]) >= len(one.epochs[max(run.epochs, default=0)]),
            )
            for run, one, state in zip(before, whole, states)
        ]
        after = self._ranks(*[self._rest(cut) for cut in cuts])
        total = Difference()
        for one, cut, run in zip(whole, cuts, after):
            part = difference(one.epochs, self._after(cut, run, "").came, self.judged)
            total = part if part and not total else total
        self.row(check, [*before, *after], total, loud=True)

    def _ranks(self, *changes: Mapping[str, Any]) -> list[RunResult]:
        """Both at the same time, since they may speak with each other."""
        port = str(_free_port())
        for rank, (runner, change) in enumerate(zip(self.runners, changes or ({}, {}))):
            world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": _RANKS, "LOCAL_WORLD_SIZE": _RANKS}
            environment = {name: str(value) for name, value in world.items()}
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            arguments = {**self.base.arguments, "rank": rank, "world_size": _RANKS}
            runner.begin(self.order(**{**change, "arguments": arguments, "environment": environment}))
        return [runner.finish(self.timeout_s) for runner in self.runners]

    def strict(self) -> None:
        """torchpipe's own loaders, in the mode that looks for objects which several hold."""
        if not self.whole.made["ours"]:
            return
        run = self.run(strict=True)
        row = self.row("strict mode", [run], difference(self.whole.epochs, run.epochs, self.judged))
        remembering = [text for text in run.warnings if text not in self.whole.warnings]
        if row.verdict == "FAULT" and run.error is not None:
            self.findings.append(f"strict mode says which: {run.error[1]}")
        self.findings += dict.fromkeys(remembering)

    def conclude(self) -> None:
        found = self.cut_found
        if found.changed and self.judged.content:
            fields = f" in {', '.join(sorted(found.fields))}" if found.fields - {""} else ""
            self.findings.append(
                f"two whole runs are alike, and after a resume the content is another one{fields}: something remembers "
                "what came before, and no state holds it: random generators of the workers, a dataset that counts its "
                "calls, a function that changes its argument"
            )
        if found.examples and self.has_state:
            self.findings.append(f"after a resume: {', '.join(found.examples[:6])}")


def _resumed(cut: _Cut) -> dict[str, Any]:
    return {"load": cut.state, "epoch": cut.epoch, "at_end": cut.at_end}


def _until(expected: Mapping[int, Sequence[Batch]], came: Mapping[int, Sequence[Batch]]) -> dict[int, list[Batch]]:
    return {epoch: list(expected.get(epoch, ()))[: len(batches)] for epoch, batches in came.items()}


def _remarks(found: Difference) -> Iterator[str]:
    if found.first:
        yield f"from {found.first} on" + (f", {found.since}" if found.since else "")
    if found.fields - {""}:
        yield f"changed: {', '.join(sorted(found.fields))}"
    if found.unjudged:
        yield f"{found.unjudged} have another content, and no id that says which they are: name a function by --id"
    if found.recut:
        yield f"{found.recut} of the reordered ones only because batches are cut at other points"


def _died(run: RunResult) -> bool:
    """True if it neither ended nor said why, and was not meant to be killed."""
    return not run.hung_s and run.error is None and run.code not in (0, None) and not run.saved


def _error_of(run: RunResult) -> str:
    if run.error is not None:
        kind, text, trace = run.error
        lines = [line for line in trace.strip().splitlines() if line.strip(" ^~")]
        if "Traceback (most recent call last)" in text:  # of a worker
            text = text.strip().splitlines()[-1]
        short = " ".join(text.split()) or " ".join("".join(lines[-2:-1]).split())  # `assert` has no text
        return f"{kind}: {short[:297] + '...' if len(short) > 300 else short}"
    last = run.log.strip().splitlines()[-1:] or [""]
    return f"the process ended with code {run.code} {last[0]}".strip()


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _versions(name: str) -> dict[str, str]:
    found = {}
    for module in dict.fromkeys([name.partition(".")[0], "torch"]):
        try:
            found[module] = metadata.version(_PACKAGES.get(module, module))
        except (metadata.PackageNotFoundError, ValueError):
            continue
    return found
