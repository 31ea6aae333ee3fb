"""``torchpipe audit``: good loaders of each kind pass, and bad ones are found out, each by the check that is for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.audit import audited
from torchpipe.observe.cli.main import main
from torchpipe.testing.audit import audit as audit_loader
from torchpipe.testing.audit.checks import kill_points
from torchpipe.testing.audit.processes import Runner
from torchpipe.testing.audit.report import AuditReport, Judgement, Row, difference, reached, verdict_of
from torchpipe.testing.audit.samples import Sample, UnidentifiedError, samples_of

FILE = audited.__file__

Audit = Callable[..., AuditReport]


@pytest.fixture(scope="session")
def audit() -> Iterator[Audit]:
    with Runner(1, grace_s=8) as first, Runner(2, grace_s=8) as second:
        runners = (first, second)
        yield lambda name, **options: audit_loader(f"{FILE}:{name}", runners=runners, **{"kills": 2, **options})


def rows(report: AuditReport) -> dict[str, Row]:
    return {row.check.partition(" (")[0]: row for row in report.rows}


def faults(report: AuditReport) -> set[str]:
    return {name for name, row in rows(report).items() if row.verdict == "FAULT"}


CUT = "cut off 2 times, resumed"


# --- good ones


def test_torchpipes_loader_passes_with_ranks_and_workers(audit: Audit) -> None:
    report = audit("map_style", workers=(2, 1), kills=1)
    assert report.passed, str(report)
    found = rows(report)
    assert {row.verdict for row in report.rows} == {"ok"}
    assert "2 workers, resumed under 1" in found
    assert "2 ranks together" in found
    assert "2 ranks, cut off and resumed" in found
    assert "strict mode" in found
    assert found["a worker is killed"].check.endswith("(2 times)")
    assert (report.samples, report.batches, report.epochs) == (48, 16, 2)


@pytest.mark.nightly
def test_a_graph_with_worker_processes_passes(audit: Audit) -> None:
    report = audit("graph", workers=(2, 3))
    assert {row.verdict for row in report.rows} == {"ok"}, str(report)


def test_stateful_dataloader_passes_and_refuses_what_it_cannot(audit: Audit) -> None:
    report = audit("stateful", workers=(2, 1), kills=1)
    assert report.passed, str(report)
    found = rows(report)
    assert found["a worker is killed"].verdict == "refused"
    assert found["a worker is killed"].text.startswith("refused: ")  # in torch's words, or a connection's
    assert found["2 workers, resumed under 1"].verdict == "refused"


@pytest.mark.parametrize("name", [pytest.param("Right", marks=pytest.mark.nightly), "OfIterator"])
def test_a_class_of_the_users_passes(audit: Audit, name: str) -> None:
    report = audit(name, epochs=2)
    assert report.passed, str(report)
    assert rows(report)[CUT].verdict == "ok"
    assert rows(report)["a worker is killed"].verdict == "-"


def test_a_stream_without_an_end_is_cut(audit: Audit) -> None:
    report = audit("Endless", batches=9)
    assert report.passed, str(report)
    assert report.batches == 9
    assert "only its first 9 batches" in report.findings[0]


# --- bad ones


def test_no_state_begins_anew(audit: Audit) -> None:
    report = audit("plain_torch")
    row = rows(report)[CUT]
    assert faults(report) == {CUT}, str(report)
    assert "no state_dict: a run that is cut off begins anew" in row.text
    assert row.lost == 0
    assert row.repeated


@pytest.mark.sample
def test_a_state_that_is_off_by_one_loses_a_batch_at_each_cut(audit: Audit) -> None:
    report = audit("OffByOne")
    row = rows(report)[CUT]
    assert (row.verdict, row.lost, row.repeated, row.reordered, row.changed) == ("FAULT", 4, 0, 0, 0), str(report)
    assert "first seen behind cut 2" in row.text
    assert any(finding.startswith("after a resume: lost") for finding in report.findings)


@pytest.mark.parametrize(
    ("name", "changed"), [("counting", "calls"), pytest.param("changing", "x", marks=pytest.mark.nightly)]
)
def test_a_dataset_that_remembers_is_named(audit: Audit, name: str, changed: str) -> None:
    report = audit(name)
    found = rows(report)
    assert faults(report) >= {CUT, "one sample, asked for twice"}, str(report)
    assert found["a second whole run"].verdict == "ok"
    assert found[CUT].lost == found[CUT].repeated == 0
    assert found[CUT].changed
    assert f"changed: {changed}" in found[CUT].text
    assert name.capitalize() in found["one sample, asked for twice"].text
    assert any("something remembers" in finding for finding in report.findings)


def test_numbers_from_the_clock_are_told(audit: Audit) -> None:
    report = audit("clock", kills=1)
    found = rows(report)
    assert found["a second whole run"].verdict == "FAULT", str(report)
    assert "changed: noise" in found["a second whole run"].text
    assert "Clock[0]" in found["one sample, asked for twice"].text
    assert any("the clock" in finding and "judge content" in finding for finding in report.findings)
    assert found["cut off 1 time, resumed"].verdict == "ok"


@pytest.mark.parametrize(
    ("name", "told"),
    [("graph_that_counts", "Mapper(_Counts), asked twice"), ("graph_with_the_clock", "Mapper(timed), asked twice")],
)
def test_a_function_of_a_graph_that_remembers_is_named(audit: Audit, name: str, told: str) -> None:
    report = audit(name, kills=1, epochs=1)
    assert rows(report)["one sample, asked for twice"].text.startswith(told), str(report)


def test_a_function_that_changes_what_others_hold_is_named(audit: Audit) -> None:
    report = audit("graph_that_changes", kills=1, epochs=1)
    assert "strict mode" in faults(report), str(report)
    assert any("add_in_place in Mapper(add_in_place) has changed" in finding for finding in report.findings)


@pytest.mark.nightly
def test_without_a_seed_the_samples_are_compared_all_the_same(audit: Audit) -> None:
    report = audit("unseeded", kills=1, unseeded=True)
    assert report.passed, str(report)
    found = rows(report)["cut off 1 time, resumed"]
    assert (found.lost, found.repeated, found.reordered) == (0, 0, None)
    assert rows(report)["a second whole run"].reordered


def test_an_order_that_nobody_seeds_is_no_fault(audit: Audit) -> None:
    report = audit("unseeded", kills=1, epochs=1)
    assert report.passed, str(report)
    assert rows(report)["a second whole run"].verdict == "unseeded"
    assert any("random numbers that nobody seeds" in finding for finding in report.findings)


@pytest.mark.nightly
def test_an_order_that_rests_on_a_set_is_told(audit: Audit) -> None:
    report = audit("FromASet", epochs=1)
    assert "a second whole run" in faults(report), str(report)
    assert any("the order of a set" in finding for finding in report.findings)


def test_one_that_hangs_when_a_worker_dies_is_ended(audit: Audit) -> None:
    report = audit("Hanging", epochs=1, kills=1, timeout_s=8)
    row = rows(report)["a worker is killed"]
    assert (row.verdict, row.hang) == ("FAULT", True), str(report)
    assert "no batch for 8 s" in row.text


def test_processes_that_are_left_are_counted_and_ended() -> None:
    with Runner(1, grace_s=0.2) as first, Runner(2, grace_s=0.2) as second:
        report = audit_loader(f"{FILE}:Leaving", runners=(first, second), epochs=1, kills=1)
    assert rows(report)["whole run"].left_over == 1, str(report)
    assert rows(report)["cut off 1 time, resumed"].left_over == 2
    assert not report.passed


def test_an_error_of_the_whole_run_is_all_that_is_said(audit: Audit) -> None:
    report = audit("Raising")
    assert [row.check for row in report.rows] == ["whole run"]
    assert report.rows[0].text == "ZeroDivisionError: a bad sample"
    assert not report.passed


def test_a_second_run_that_dies_turns_no_check_off(audit: Audit) -> None:
    report = audit("DyingInTheSecondRun", kills=1)
    found = rows(report)
    assert found["a second whole run"].text == "ZeroDivisionError: only here"
    assert found["a second whole run"].lost == 0
    assert found["cut off 1 time, resumed"].lost, str(report)
    assert found["cut off 1 time, resumed"].changed == 0
    assert "a second whole run" in faults(audit("DyingInTheSecondRun", kills=0, epochs=1, unseeded=True))


def test_a_process_that_ends_in_the_middle_is_not_whole(audit: Audit) -> None:
    report = audit("Exiting")
    assert [row.check for row in report.rows] == ["whole run"]
    assert report.rows[0].text == "the process ended with code 0 before it was at its end"
    assert not report.passed


def test_an_iterator_that_gives_its_items_once_is_told(audit: Audit) -> None:
    report = audit("one_pass", kills=0)
    assert "whole run" in faults(report)
    assert "epoch 1 is empty" in report.rows[0].text


def test_a_crash_behind_a_save_is_a_fault(audit: Audit) -> None:
    report = audit("CrashingBehindASave")
    assert "resumed at an epoch's end" in faults(report), str(report)
    assert any(row.check.startswith("cut off") and "ended with code 7" in row.text for row in report.rows)


def test_what_is_lost_before_an_error_is_counted(audit: Audit) -> None:
    report = audit("LosingBeforeItRefuses", workers=(2, 4), kills=1, epochs=1, seed=3)
    row = rows(report)["2 workers, resumed under 4"]
    assert (row.verdict, row.lost, row.repeated) == ("FAULT", 4, 0), str(report)
    assert "RuntimeError: other workers" in row.text


def test_an_order_that_depends_on_the_workers_is_said_to(audit: Audit) -> None:
    report = audit("OrderedByWorkers", workers=(2, 4), kills=1, epochs=1)
    row = rows(report)["2 workers, resumed under 4"]
    assert (row.verdict, row.reordered) == ("FAULT", None), str(report)
    assert row.text.startswith("the order of the samples depends on the number of workers"), str(report)


def test_what_is_drawn_is_not_blamed_if_it_is_meant(audit: Audit) -> None:
    for name in ("Lengths", "Noise"):
        report = audit(name, unseeded=True)
        assert report.passed, str(report)
    assert not audit("Lengths", kills=0, epochs=1).passed


def test_ranks_that_are_made_equally_long_are_no_fault(audit: Audit) -> None:
    row = rows(audit("distributed", kills=1))["2 ranks together"]
    assert (row.verdict, row.lost, row.repeated) == ("ok", 2, 0), row
    assert "equally long" in row.text
    row = rows(audit("overlapping", kills=0, epochs=1))["2 ranks together"]
    assert (row.verdict, row.repeated) == ("FAULT", 6), row


def test_ids_may_come_from_a_generator(audit: Audit) -> None:
    report = audit("OffByOne", kills=1, identify=f"{FILE}:lazy_ids")
    assert rows(report)["cut off 1 time, resumed"].lost == 2, str(report)


def test_a_field_without_content_is_told(audit: Audit) -> None:
    report = audit("WithLocks", kills=1)
    assert report.passed, str(report)
    assert report.findings == ["fields without a content that could be compared, which are not: lock"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("number", "int is not"),
        ("needs", "give the others defaults"),
        ("missing", "has no 'missing'"),
        ("Locks", "a sample is lock, which has no content to be told by"),
        ("Alike", "all 48 samples have the same id or content"),
    ],
)
def test_what_cannot_be_audited_is_told(audit: Audit, name: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        audit(name)


def test_arguments_that_cannot_be(audit: Audit) -> None:
    for options, text in (
        ({"kills": -1}, "kills=-1 should be at least 0"),
        ({"epochs": 0}, "epochs=0"),
        ({"timeout_s": 0}, "timeout_s=0"),
        ({"workers": (2,)}, "takes no num_workers"),
        ({"identify": f"{FILE}:number"}, "is int: name a function of a batch"),
        ({"identify": f"{FILE}:wrong_ids"}, "the function of the ids: TypeError"),
    ):
        with pytest.raises(ValueError, match=text):
            audit("Right", **options)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_audit_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    told, temporary = tmp_path / "told", tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "AUDITED_TELLS": str(told), "TMPDIR": str(temporary)}
    command = [sys.executable, "-c", f"from torchpipe.testing.audit import audit; audit('{FILE}:Waiting')"]
    auditing = subprocess.Popen(command, env=environment)
    try:
        until(told.exists)
        pids = [int(pid) for pid in told.read_text().split()]
        assert len(list(temporary.iterdir())) == 2  # a folder of each of the two processes that fork
        auditing.send_signal(number)
        auditing.wait()
        until(lambda: not any(is_there(pid) for pid in pids))
        until(lambda: not list(temporary.iterdir()))
    finally:
        auditing.kill()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- the command


def test_the_command_writes_json_and_a_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    arguments = ["--kills", "1", "--epochs", "1", "--id", f"{FILE}:ids", "--json", "--html", str(page)]
    code = main(["audit", f"{FILE}:stateful", "--workers", "0", *arguments])
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert code == 0, told
    assert found["passed"]
    assert found["rows"][0]["check"] == "whole run"
    assert "StatefulDataLoader" in page.read_text()
    assert "<script" not in page.read_text()
    assert "ok       whole run" in told.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("{}:Right", "--workers", "2"), "takes no num_workers"),
        (("no_such_file.py:Right",), "there is no file no_such_file.py"),
        (("no_such_module_at_all:Right",), "No module named"),
        (("{}:Wrong",), "has no 'Wrong'"),
        (("{}:Right", "--id", "{}:no_ids"), "has no 'no_ids'"),
        (("{}:Right", "--batches", "1"), "batches=1 should be at least 2"),
        (("{}:Right", "--timeout", "nan"), "timeout_s=nan should be above 0"),
        (("{}:Right", "--html", "no/such/folder/page.html"), "does not exist"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    assert main(["audit", *(argument.format(FILE) for argument in arguments)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert len(told.err.splitlines()) == 1
    assert says in told.err


# --- parts


def stream(*ids: str, of: int = 2, content: str = "") -> list[list[Sample]]:
    samples = [Sample(one, {"x": content or one}) for one in ids]
    return [samples[place : place + of] for place in range(0, len(samples), of)]


@pytest.mark.parametrize(
    ("got", "told"),
    [
        (stream(*"abcdef"), ""),
        (stream(*"abef"), "2 lost"),
        (stream(*"abcdabcdef"), "4 repeated"),
        (stream(*"abdcef"), "2 reordered"),
        (stream(*"abccef"), "1 lost, 1 repeated"),
        (stream(*"abXdef"), "1 changed"),
        (stream(*"abcdef", content="other"), "6 changed"),
        (stream(*"abcdef", of=3), "6 reordered"),
    ],
)
def test_differences(got: list[Any], told: str) -> None:
    assert str(difference({0: stream(*"abcdef")}, {0: got})) == told


def test_only_what_is_known_is_judged() -> None:
    ours, theirs = {0: stream(*"abcd")}, {0: stream(*"dcXY", content="other")}
    assert str(difference(ours, theirs, Judgement(ids=False))) == ""
    assert str(difference(ours, {0: stream(*"dcba", content="other")}, Judgement(order=False, content=False))) == ""


@pytest.mark.parametrize(
    ("got", "judged", "told"),
    [
        (stream(*"abc", of=1), Judgement(), ""),
        (stream(*"abd", of=1), Judgement(), "1 lost"),
        (stream(*"abdc", of=1), Judgement(), "2 reordered"),
        (stream(*"ababc", of=1), Judgement(), "2 repeated"),
        (stream(*"abXY", of=1), Judgement(), "2 changed"),
        (stream(*"fd", of=1), Judgement(order=False), ""),
        (stream(*"fdd", of=1), Judgement(order=False), "1 repeated"),
        (stream(*"XYZ", of=1), Judgement(order=False, content=False, ids=False), ""),
        ([], Judgement(), ""),
    ],
)
def test_of_a_stream_that_ended_early_the_part_before_is_compared(got: Any, judged: Judgement, told: str) -> None:
    expected = {0: stream(*"mnop", of=1), 1: stream(*"abcdef", of=1), 2: stream(*"ghijkl", of=1)}
    came = {0: expected[0], 1: got}
    assert str(difference(reached(expected, came, judged), came, judged)) == told


def test_a_verdict_is_a_fault_if_anything_is() -> None:
    good = {"differs": False, "failed": False, "hung": False, "left_over": False, "may_refuse": False}
    assert verdict_of(**good) == "ok"
    assert verdict_of(**{**good, "may_refuse": True, "failed": True}) == "refused"
    for bad in ("differs", "failed", "hung", "left_over"):
        assert verdict_of(**{**good, bad: True}) == "FAULT"
    for bad in ("differs", "hung", "left_over"):
        assert verdict_of(**{**good, "may_refuse": True, "failed": True, bad: True}) == "FAULT"


@pytest.mark.parametrize("lengths", [[2], [3], [100], [2, 2], [12, 12], [7, 1, 30], [40, 3]])
def test_a_worker_is_killed_while_there_is_something_to_do(lengths: list[int]) -> None:
    ends = {sum(lengths[: number + 1]) for number, length in enumerate(lengths) if length > 1}
    points = kill_points(lengths)
    assert points
    assert not ends & set(points)
    assert all(0 < point < sum(lengths) for point in points)
    assert kill_points([1]) == (1,)


def test_ids_are_any_iterable() -> None:
    import torch

    for ids in ([7, 8], (7, 8), range(7, 9), iter([7, 8]), {7: 0, 8: 0}.keys(), torch.tensor([7, 8])):
        assert [one.id for one in samples_of(torch.ones(2, 2), lambda batch, ids=ids: ids)] == ["7", "8"]


@pytest.mark.parametrize("ids", [{1, 2}, [None, 1], None, [], [threading.Lock(), 1], [(one for one in "a"), 1]])
def test_what_is_no_id_is_told(ids: Any) -> None:
    import torch

    with pytest.raises(UnidentifiedError):
        samples_of(torch.ones(2, 2), lambda batch: ids)


def test_batches_are_taken_apart() -> None:
    import numpy as np
    import torch

    rows = samples_of({"id": torch.tensor([7, 8]), "x": torch.ones(2, 3), "name": ["a", "b"]})
    assert [row.id for row in rows] == ["7", "8"]
    assert list(rows[0].fields) == ["id", "x", "name"]
    assert len(samples_of([torch.ones(4, 2), torch.zeros(4)])) == 4
    assert len(samples_of(np.zeros((5, 2)))) == 5
    assert len(samples_of(["a", "b", "c"])) == 3
    assert len(samples_of((3, "a"))) == 1
    assert len(samples_of("text")) == 1
    assert samples_of({"key": "k", "x": 1})[0].id == "k"
    assert [row.id for row in samples_of(torch.ones(2, 2), lambda batch: [np.int64(1), 2])] == ["1", "2"]
    assert samples_of(torch.ones(3, 2), lambda batch: "all") == [Sample("all", {})]


def test_digests_are_of_content_and_the_same_elsewhere() -> None:
    import torch

    pillow = pytest.importorskip("PIL.Image")
    red, blue = pillow.new("RGB", (2, 2), "red"), pillow.new("RGB", (2, 2), "blue")
    digests = [samples_of(value)[0].id for value in (red, blue, pillow.new("RGB", (2, 2), "red"))]
    assert digests[0] == digests[2] != digests[1]
    assert samples_of([{"id": 1, "lock": threading.Lock()}])[0].fields["lock"] == ""
    sparse = [samples_of(factor * torch.eye(2).to_sparse())[0].id for factor in (1, 2)]
    assert sparse[0] != sparse[1]
    assert len({samples_of(value)[0].id for value in (1, True, 1.0, "1", b"1", torch.tensor(1))}) == 6
