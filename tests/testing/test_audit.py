"""``torchpipe audit``: good loaders of each kind pass, and bad ones are found out, each by the check that is for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.testing import audited
from torchpipe.observe.cli.main import main
from torchpipe.testing.audit.checks import audit_in
from torchpipe.testing.audit.differences import Judgement, difference
from torchpipe.testing.audit.processes import Runner
from torchpipe.testing.audit.report import AuditReport, Row
from torchpipe.testing.audit.samples import Sample, samples_of

FILE = audited.__file__

Audit = Callable[..., AuditReport]


@pytest.fixture(scope="session")
def audit() -> Iterator[Audit]:
    with Runner(1, grace_s=8) as first, Runner(2, grace_s=8) as second:
        yield lambda name, **options: audit_in((first, second), f"{FILE}:{name}", **{"kills": 2, **options})


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


@pytest.mark.nightly
def test_without_a_seed_the_samples_are_compared_all_the_same(audit: Audit) -> None:
    report = audit("unseeded", kills=1, unseeded=True)
    assert report.passed, str(report)
    found = rows(report)["cut off 1 time, resumed"]
    assert (found.lost, found.repeated, found.reordered) == (0, 0, None)
    assert rows(report)["a second whole run"].reordered


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
        report = audit_in((first, second), f"{FILE}:Leaving", epochs=1, kills=1)
    assert rows(report)["whole run"].left_over == 1, str(report)
    assert rows(report)["cut off 1 time, resumed"].left_over == 2
    assert not report.passed


def test_an_error_of_the_whole_run_is_all_that_is_said(audit: Audit) -> None:
    report = audit("Raising")
    assert [row.check for row in report.rows] == ["whole run"]
    assert report.rows[0].text == "ZeroDivisionError: a bad sample"
    assert not report.passed


@pytest.mark.parametrize(
    ("name", "text"), [("number", "int is not"), ("needs", "give the others defaults"), ("missing", "has no 'missing'")]
)
def test_what_makes_no_loader_is_told(audit: Audit, name: str, text: str) -> None:
    report = audit(name)
    assert text in report.rows[0].text, str(report)


def test_arguments_that_cannot_be(audit: Audit) -> None:
    for options, text in (
        ({"kills": -1}, "kills=-1 should be at least 0"),
        ({"epochs": 0}, "epochs=0"),
        ({"timeout_s": 0}, "timeout_s=0"),
        ({"workers": (2,)}, "takes no num_workers"),
    ):
        with pytest.raises(ValueError, match=text):
            audit("Right", **options)


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


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", f"{FILE}:Right", "--kills", "1", "--workers", "2"]) == 2
    assert "takes no num_workers" in capsys.readouterr().err.splitlines()[-1]


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
    assert samples_of(object())[0].id == samples_of(object())[0].id
    assert len({samples_of(value)[0].id for value in (1, True, 1.0, "1", b"1", torch.tensor(1))}) == 6
