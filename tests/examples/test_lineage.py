"""The demo's own measuring: it must not call a run exact that is not, nor stumble over what a kill leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from examples.digits.lineage import Run, compare, read_run
from examples.digits.training import Journal

DIGITS = range(6)


def step(number: int, *identities: int, epoch: int = 0) -> dict[str, Any]:
    digest = f"{number}:{identities}"
    return {"step": number, "epoch": epoch, "identities": list(identities), "digest": digest, "loss": 1 / number}


def whole() -> Run:
    return Run(steps=[step(1, 0, 1, 2), step(2, 3, 4, 5), step(3, 5, 4, 3, epoch=1), step(4, 2, 1, 0, epoch=1)])


def test_equal_runs_are_exact() -> None:
    result = compare(whole(), whole(), DIGITS)
    assert result.exact
    assert str(result) == "0 lost, 0 repeated, same order"


def test_what_is_lost_or_repeated_is_counted() -> None:
    run = whole()
    run.steps[1] = step(2, 3, 4, 4)
    result = compare(run, whole(), DIGITS)
    assert not result.exact
    assert (result.lost, result.repeated, result.same_order) == (1, 1, False)


def test_another_order_is_not_exact() -> None:
    run = whole()
    run.steps[0] = step(1, 1, 0, 2)
    result = compare(run, whole(), DIGITS)
    assert not result.exact
    assert str(result) == "0 lost, 0 repeated, ANOTHER ORDER"


def test_a_loss_that_both_runs_share_is_seen() -> None:
    run, reference = whole(), whole()
    run.steps[1] = reference.steps[1] = step(2, 3, 4, 4)
    assert not compare(run, reference, DIGITS).exact


def test_other_pixels_are_not_exact() -> None:
    run = whole()
    run.steps[3]["digest"] = "other"
    assert not compare(run, whole(), DIGITS).exact


def test_steps_behind_the_checkpoint_are_undone(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    events = [{"event": "start", "step": 0}]
    events += [{"event": "step", **item} for item in whole().steps[:3]]
    events += [{"event": "start", "step": 2}]
    events += [{"event": "step", **item} for item in whole().steps[2:]]
    log.write_text("".join(json.dumps(event) + "\n" for event in events))
    run = read_run(log)
    assert [item["step"] for item in run.steps] == [1, 2, 3, 4]
    assert [item["step"] for item in run.undone] == [3]


def test_a_line_that_a_kill_cut_off_spoils_no_other(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    journal = Journal(log)
    journal.write("start", step=0)
    journal.close()
    with log.open("a") as file:
        file.write('{"event": "step", "step": 1, "ident')
    assert len(read_run(log).starts) == 1
    journal = Journal(log)
    journal.write("start", step=0)
    journal.write("end", step=0, accuracy=1.0)
    journal.close()
    run = read_run(log)
    assert len(run.starts) == 2
    assert not run.steps
    assert run.end is not None
