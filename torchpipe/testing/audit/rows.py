"""One check's row, made of what its runs gave: the verdict, the numbers, and what there is to say. Runs anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchpipe.testing.audit.differences import Difference, Judgement
from torchpipe.testing.audit.orders import RunResult
from torchpipe.testing.audit.report import Row, Verdict

__all__ = ["count_of", "error_of", "row_of", "verdict_of"]


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
