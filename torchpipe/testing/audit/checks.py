"""``audit``: which runs there are, and what each one should have given. Runs in the process of the one who asks."""

from __future__ import annotations

import random
import socket
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from torchpipe.testing.audit.processes import Batch, Order, Runner, RunResult
from torchpipe.testing.audit.report import (
    AuditReport,
    Difference,
    Epochs,
    Judgement,
    Options,
    Row,
    Verdict,
    count_of,
    difference,
    error_of,
    reached,
    row_of,
)
from torchpipe.testing.audit.samples import Sample, UnidentifiedError

__all__ = ["audit", "kill_points"]

_RANKS = 2
_PACKAGES = {"torchpipe": "torchpipe-data"}


def audit(target: str, *, runners: Sequence[Runner] = (), **options: Any) -> AuditReport:
    """Run the loader that ``target`` makes, whole and cut off, and compare. Takes some twenty runs of it.

    ``target``: ``module:name`` or ``file.py:name`` of a function that makes anything that is iterable; it may take
    ``num_workers`` (or ``workers``), ``rank``, ``world_size`` and ``epoch``. ``options``: the fields of
    :class:`Options`. ``runners``: two that are there already.

    Each run is a process with a session of its own; what it leaves behind is found, counted and ended. Linux only.
    Raises: ValueError for options that cannot be, a target that makes no loader, or batches in which no sample can be
    told from another.
    """
    told = Options(**options)
    with ExitStack() as stack:
        # Sets of texts have another order in the second one: what rests on it is found.
        runners = runners or [stack.enter_context(Runner(hash_seed)) for hash_seed in (1, 2)]
        folder = Path(tempfile.mkdtemp(dir=runners[0].folder))
        base = Order(
            target=target,
            records="",
            log="",
            identify=told.identify,
            epochs=told.epochs,
            limit=told.batches,
            arguments={"workers": told.workers[0]} if told.workers else {},
        )
        return _Audit(base, told, folder, runners).report()


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
    options: Options
    folder: Path
    runners: Sequence[Runner]
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
        return self.runners[runner].finish(self.options.timeout_s)

    def found(
        self, came: Epochs, run: RunResult, *, expected: Epochs | None = None, judged: Judgement | None = None
    ) -> Difference:
        """The difference between ``came`` and the whole run; of a ``run`` that failed, the part before is compared."""
        expected, judged = self.whole.epochs if expected is None else expected, judged or self.judged
        return difference(reached(expected, came, judged) if run.failed else expected, came, judged)

    def row(self, check: str, runs: Sequence[RunResult], found: Difference | None = None, **more: Any) -> None:
        self.add(row_of(check, runs, found, **{"judged": self.judged, **more}))

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self.options.on_row(row)

    def left_out(self, check: str, why: str) -> None:
        self.add(Row(check, "-", text=why))

    # --- all of them

    def report(self) -> AuditReport:
        self.whole = self.run()
        self._check_audited()
        if self._whole_is_usable():
            for check in (self.again, self.asked_twice, self.cut_off, self.twice, self.end, self.worker_dies):
                check()
            for number in self.options.workers[1:]:
                self.other_workers(number)
            self.ranks()
            self.strict()
            self.conclude()
        whole, name = self.whole, self.whole.made["name"]
        return AuditReport(
            target=self.base.target,
            loader=name,
            batches=whole.count,
            samples=len(_samples(whole)),
            epochs=len(whole.epochs),
            rows=self.rows,
            findings=self.findings,
            versions=_versions(name),
        )

    def _check_audited(self) -> None:
        """Raises: ValueError if there is nothing to audit."""
        whole, target = self.whole, self.base.target
        if not whole.made:
            raise ValueError(
                f"{target} made no loader in {whole.hung_s:g} s" if whole.hung_s else f"{target}: {error_of(whole)}"
            )
        if self.base.arguments and "workers" not in whole.made["takes"]:
            raise ValueError(f"workers were given, and {target} takes no num_workers or workers")
        if whole.error is not None and whole.error[0] == UnidentifiedError.__name__:
            raise ValueError(whole.error[1])
        samples = _samples(whole)
        if len(samples) > len(whole.epochs) and len({one.id for one in samples}) == 1:
            raise ValueError(
                f"all {len(samples)} samples have the same id or content, so that none can be missed: name a function "
                "that tells them apart by --id"
            )

    def _whole_is_usable(self) -> bool:
        whole = self.whole
        empty = [epoch for epoch, batches in whole.epochs.items() if not batches]
        fault = "no batch came" if not whole.count else ""
        if whole.count and empty and not whole.failed:
            fault = f"epoch {empty[0]} is empty: is it an iterator, which gives its items once?"
        self.row("whole run", [whole], Difference(), fault=fault)
        if whole.finished == "limit":
            self.findings.append(f"only its first {whole.count} batches were read (--batches)")
        if whole.error is not None:
            self.findings.append(whole.error[2].strip().splitlines()[-1])
        hidden = {name for one in _samples(whole) for name, digest in one.fields.items() if not digest}
        if hidden:
            self.findings.append(
                f"fields without a content that could be compared, which are not: {', '.join(sorted(hidden))}"
            )
        return bool(whole.count) and not whole.failed

    def again(self) -> None:
        """Two whole runs, in processes whose sets have other orders: what of it can be compared at all?"""
        everything, seeded = Judgement(), not self.options.unseeded
        self.judged = replace(everything, order=seeded, content=seeded)
        again = self.run(1)
        found = self.found(again.epochs, again, judged=everything)
        unseeded = seeded and not again.failed and str(found) == f"{found.reordered} reordered" and self._is_drawn()
        verdict: Verdict | None = "unseeded" if unseeded else None
        self.row("a second whole run", [again], found, judged=everything, excused=not seeded, verdict=verdict)
        if again.failed:  # it says nothing of what a good run gives
            return
        new = not {one.id for one in _samples(again)} <= {one.id for one in _samples(self.whole)}
        ids = not (found.lost or found.repeated or new)
        self.judged = Judgement(
            order=seeded and ids and not found.reordered,
            content=seeded and not found.changed,
            ids=ids,
            number=_numbers(self.whole) == _numbers(again),
        )
        if not found:
            return
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

    def _is_drawn(self) -> bool:
        """True if the order is another one where sets have the same: it is drawn, and nobody seeds that."""
        third = self.run()
        return bool(self.found(third.epochs, third, judged=Judgement()).reordered)

    def _unjudged(self) -> str:
        if not self.judged.ids:
            return "which samples come, only how many" if self.judged.number else "which samples come, nor how many"
        judged = {"order": self.judged.order, "content": self.judged.content}
        return " and ".join(name for name, is_judged in judged.items() if not is_judged)

    def asked_twice(self) -> None:
        probed = self.run(probe=True)
        check = "one sample, asked for twice"
        if probed.probed:
            self.row(check, [probed], fault=probed.probed)
        elif probed.hung_s:
            self.left_out(check, f"it did not come in {probed.hung_s:g} s")

    def cut_off(self) -> None:
        """Cut off again and again, each time resumed in a new process, from what the one before it saved."""
        points = self._cut_points()
        runs: list[RunResult] = []
        cut = _Cut(defaultdict(list), "", 0, False)
        first = ""
        for step, point in enumerate([*points, None]):
            stop = None if point is None else point - (points[step - 1] if step else 0)
            state = self.state()
            rest = self._rest(cut) if step else {"limit": self._limit()}
            run = self.run(step % 2, stop=stop, save=state, by_kill=bool(step % 2), **rest)
            runs.append(run)
            cut = self._after(cut, run, state)
            if run.failed or run.finished != "stop":
                break
            self.cuts.append(cut)
            first = first or self._first_after(cut)
        text = "" if self.has_state else "no state_dict: a run that is cut off begins anew"
        found = self.found(cut.came, runs[-1])
        if found and first:
            found.since = first
        self.row(f"cut off {count_of(len(self.cuts), 'time')}, resumed", runs, found, text=text)
        self.cut_found = found

    @property
    def has_state(self) -> bool:
        return self.whole.has_state

    def _limit(self) -> int:
        return self.whole.count if self.whole.finished == "limit" else self.base.limit

    def _cut_points(self) -> list[int]:
        draws = random.Random(self.options.seed)
        count = self.whole.count
        return sorted(draws.sample(range(1, count), min(self.options.kills, count - 1)))

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
        """The cut behind which the stream first differs from the whole run, as text; empty if it does not."""
        found = difference(reached(self.whole.epochs, cut.came, self.judged), cut.came, self.judged)
        return f"first seen behind cut {len(self.cuts)}" if found else ""

    def twice(self) -> None:
        check = "resumed twice from one state"
        if not self._resumable(check):
            return
        cut = self.cuts[0]
        runs = [self.run(runner, **self._rest(cut)) for runner in (0, 1)]
        streams = [self._after(cut, run, "").came for run in runs]
        found = self.found(streams[0], runs[0])
        second = Difference() if runs[0].failed else self.found(streams[1], runs[1], expected=streams[0])
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
        limit = max(1, self._limit() - done)
        return {"load": cut.state, "epoch": cut.epoch, "at_end": cut.at_end, "limit": limit}

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
            if first.finished != "stop":
                found = self.found(first.epochs, first)
                break
            arguments = {**self.base.arguments, "epoch": made_for}
            cut = _Cut(first.epochs, state, 0, True)
            run = self.run(1, **{**self._rest(cut), "arguments": arguments})
            runs.append(run)
            one = self.found(self._after(cut, run, "").came, run)
            if one and not found:
                found = one
                found.since = f"with the state saved behind the {name} of epoch 0"
        self.row(check, runs, found)

    def worker_dies(self) -> None:
        run = self.run(kill=kill_points([len(batches) for batches in self.whole.epochs.values()]))
        if not run.killed and not run.failed:
            self.left_out("a worker is killed", "it has no worker processes")
            return
        check = f"a worker is killed ({count_of(run.killed, 'time')})"
        self.row(check, [run], self.found(run.epochs, run), may_refuse=True)

    def other_workers(self, number: int) -> None:
        check = f"{self.base.arguments['workers']} workers, resumed under {number}"
        if not self._resumable(check):
            return
        cut = self.cuts[0]
        run = self.run(1, **self._rest(cut), arguments={"workers": number})
        found, judged, text = self.found(self._after(cut, run, "").came, run), self.judged, ""
        if found and not run.failed and self._order_differs(number):
            judged, text = replace(judged, order=False), "the order of the samples depends on the number of workers"
            found = self.found(self._after(cut, run, "").came, run, judged=judged)
        self.row(check, [run], found, judged=judged, may_refuse=True, text=text)

    def _order_differs(self, number: int) -> bool:
        """True if a whole run under this number of workers gives another order than the whole run before."""
        whole = self.run(arguments={"workers": number})
        return bool(self.found(whole.epochs, whole).reordered)

    def ranks(self) -> None:
        if not {"rank", "world_size"} <= set(self.whole.made["takes"]):
            return
        whole = self._ranks()
        together: dict[int, list[Batch]] = defaultdict(list)
        for run in whole:
            for epoch, batches in run.epochs.items():
                together[epoch] += batches
        # What a sample's augmentation draws may rest on the rank, and the order does.
        judged = replace(self.judged, order=False, content=False)
        found = self.found(together, max(whole, key=lambda run: run.failed), judged=judged)
        found.first = ""
        levelled = bool(found) and self._is_levelled(whole, found)
        text = "which makes the ranks equally long: less than a batch for each of them" if levelled else ""
        self.row(f"{_RANKS} ranks together", whole, found, judged=judged, excused=levelled, may_refuse=True, text=text)
        check = f"{_RANKS} ranks, cut off and resumed"
        stop = max(1, min(run.count for run in whole) // 2)
        if not self.has_state or any(run.count < 2 or run.failed for run in whole):
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
        parts = [
            self.found(self._after(cut, run, "").came, run, expected=one.epochs)
            for one, cut, run in zip(whole, cuts, after)
        ]
        self.row(check, [*before, *after], next(filter(None, parts), parts[0]), may_refuse=True)

    def _is_levelled(self, whole: Sequence[RunResult], found: Difference) -> bool:
        """True if no more is dropped or padded than makes all ranks equally long, as DistributedSampler does."""
        batch = max(len(batch) for run in whole for batches in run.epochs.values() for batch in batches)
        most = (_RANKS * batch - 1) * len(self.whole.epochs)
        return all(_numbers(run) == _numbers(whole[0]) for run in whole) and max(found.lost, found.repeated) <= most

    def _ranks(self, *changes: Mapping[str, Any]) -> list[RunResult]:
        """Both at the same time, since they may speak with each other."""
        port = str(_free_port())
        for rank, (runner, change) in enumerate(zip(self.runners, changes or ({}, {}))):
            world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": _RANKS, "LOCAL_WORLD_SIZE": _RANKS}
            environment = {name: str(value) for name, value in world.items()}
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            arguments = {**self.base.arguments, "rank": rank, "world_size": _RANKS}
            runner.begin(self.order(**{**change, "arguments": arguments, "environment": environment}))
        return [runner.finish(self.options.timeout_s) for runner in self.runners]

    def strict(self) -> None:
        """torchpipe's own loaders, in the mode that looks for objects which several hold."""
        if not self.whole.made["ours"]:
            return
        run = self.run(strict=True)
        self.row("strict mode", [run], self.found(run.epochs, run))
        remembering = [text for text in run.warnings if text not in self.whole.warnings]
        if run.error is not None:
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


def kill_points(lengths: Sequence[int]) -> tuple[int, ...]:
    """Behind how many batches a worker is killed, of epochs of so many: early in the first, in the middle of the last.

    Never behind the last batch of an epoch, if it has several: there would be nothing left to do.
    """
    early, middle = lengths[0] // 4, sum(lengths) - (lengths[-1] + 1) // 2
    return tuple(sorted({max(1, early), max(1, middle)}))


def _samples(run: RunResult) -> list[Sample]:
    return [one for batches in run.epochs.values() for batch in batches for one in batch]


def _numbers(run: RunResult) -> dict[int, int]:
    """The number of samples of each epoch."""
    return {epoch: sum(map(len, batches)) for epoch, batches in run.epochs.items()}


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
