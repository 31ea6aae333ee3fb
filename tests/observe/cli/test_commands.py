"""The command line on real graphs, checkpoints and this machine: what it says, as text and JSON, and its exit codes."""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from tests.sources import wait_until
from tests.warm import Warm
from torchpipe import DataLoader, DataLoader2
from torchpipe.errors import OpaqueStateWarning
from torchpipe.integrations.dcp import SavedLoader
from torchpipe.iter import IterableWrapper
from torchpipe.observe.cli import doctor
from torchpipe.observe.cli.main import main

Run = Callable[..., tuple[int, str, str]]

MODULE = """
from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper

def make():
    return IterableWrapper(range(10)).sharding_filter().map(abs)

def needs(argument):
    return make()

graph = make()
number = 3
loader = DataLoader2(make())
"""


RANKED = """
from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper

def same(rank, world_size):
    assert (rank, world_size) == (0, 1)
    return DataLoader2(IterableWrapper(range(20)).shuffle(buffer_size=5).sharding_filter().batch(2).map(len))

def other():
    return IterableWrapper(range(20)).shuffle(buffer_size=6).sharding_filter().enumerate().batch(2).map(len)

number = 3
"""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        try:
            code = main(arguments)
        except SystemExit as error:  # of argparse
            code = int(error.code or 0)
        told = capsys.readouterr()
        return code, told.out, told.err

    return call


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "path", [*sys.path])
    name = f"pipeline_{tmp_path.name}".replace("-", "_")
    file = tmp_path / f"{name}.py"
    file.write_text(MODULE)
    yield str(file)  # type: ignore[misc]
    sys.modules.pop(name, None)


def loader_at(items: int, *, graph: Any = None, seed: int = 1) -> DataLoader2[Any]:
    loader = DataLoader2(IterableWrapper(range(20)).shuffle() if graph is None else graph)
    loader.seed(seed)
    stream = iter(loader)
    for _ in range(items):
        next(stream)
    return loader


ODD = """
from torchpipe.iter import IterableWrapper

class Ma\u00df:
    def __call__(self, number):
        if number == 3:
            raise ValueError("d\u00fcnn")
        return number

graph = IterableWrapper(range(10)).sharding_filter().map(Ma\u00df())
"""


def test_names_that_a_terminal_lacks_are_escaped_and_a_failing_item_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd.py").write_text(ODD, encoding="utf-8")
    for name, value in (("PYTHONIOENCODING", "ascii"), ("LC_ALL", "C"), ("PYTHONUTF8", "0")):
        monkeypatch.setenv(name, value)  # which Python looks at when it starts

    with Warm() as python:

        def call(*arguments: str) -> subprocess.CompletedProcess[str]:
            return python.run(["-m", "torchpipe", *arguments], cwd=tmp_path)

        explained = call("explain", "odd.py:graph")
        assert (explained.returncode, explained.stderr) == (0, "")
        assert "Mapper(Ma\\xdf)" in explained.stdout
        watched = call("watch", "odd.py:graph")
        assert watched.returncode == 2
        assert "ValueError: d\\xfcnn (raised in Mapper(Ma\\xdf) for item 3" in watched.stderr.splitlines()[-1]
        assert "is no number" in call("watch", "odd.py:graph", "--items", "ten").stderr


SLOW = """
import time
from pathlib import Path
from torchpipe.iter import IterableWrapper

def slow(number):
    time.sleep(0.01)
    if number == 3:
        Path("begun").touch()
    return number

graph = IterableWrapper(range(100_000)).sharding_filter().map(slow)
"""


@pytest.mark.parametrize("more", [[], ["--workers", "2"]], ids=["here", "workers"])
def test_ctrl_c_ends_a_watch_that_tells_what_it_has_seen(warm: Warm, tmp_path: Path, more: list[str]) -> None:
    (tmp_path / "slow.py").write_text(SLOW)

    def interrupt(pid: int, said: Path) -> None:
        wait_until((tmp_path / "begun").exists)
        os.kill(pid, signal.SIGINT)

    command = ["-m", "torchpipe", "watch", "slow.py:graph", "--json", "--report", "r.html", *more]
    done = warm.run(command, cwd=tmp_path, meanwhile=interrupt)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    told = json.loads(done.stdout)
    assert told["state"] == "closed"
    assert told["delivered"] < 100_000
    assert "Mapper(slow)" in (tmp_path / "r.html").read_text()


def test_explain_says_where_each_node_runs(run: Run, module: str) -> None:
    code, text, _ = run("explain", f"{module}:make", "--workers", "2")
    assert code == 0
    assert "2 shards in 2 worker processes" in text
    sys.modules.pop(Path(module).stem)
    code, text, _ = run("explain", f"{module}:graph", "--json")
    assert code == 0
    assert [node["name"] for node in json.loads(text)["nodes"]] == ["IterableWrapper", "ShardingFilter", "Mapper(abs)"]
    sys.modules.pop(Path(module).stem)
    assert run("explain", f"{module}:loader", "--format", "svg")[1].startswith("<svg")


def test_watch_iterates_and_says_who_is_slow(run: Run, module: str, tmp_path: Path) -> None:
    code, out, err = run("watch", f"{module}:graph", "--items", "7", "--report", str(tmp_path / "r.html"))
    assert code == 0
    assert "7 of 10" in (tmp_path / "r.html").read_text()
    assert "7 of 10 items delivered" in out
    assert "Mapper(abs)" in out
    assert err.startswith("torchpipe: epoch 0, 7 of 10 (70 %) items")
    sys.modules.pop(Path(module).stem)
    assert json.loads(run("watch", f"{module}:loader", "--json")[1])["state"] == "finished"


def test_profile_says_what_each_node_could_do(run: Run, module: str) -> None:
    code, text, _ = run("profile", f"{module}:make", "--seconds", "0.01")
    assert code == 0
    assert "Mapper(abs)" in text
    sys.modules.pop(Path(module).stem)
    told = json.loads(run("profile", f"{module}:loader", "--seconds", "0.01", "--json")[1])
    assert [node["name"] for node in told["nodes"]] == ["IterableWrapper", "ShardingFilter", "Mapper(abs)"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("explain", "nothing"), "should be MODULE:NAME"),
        (("explain", "no_such_module_at_all:graph"), "No module named"),
        (("explain", "{}:number"), "is int"),
        (("explain", "{}:missing"), "it has DataLoader2"),
        (("explain", "{}:needs"), "it is told nothing; give the others defaults"),
        (("explain", "{}:loader", "--workers", "2"), "workers of its own"),
        (("explain", "{}:make", "--workers", "-1"), "--workers"),
        (("explain", "{}:make", "--format", "png"), "invalid choice"),
        (("explain", "no/such/file.py:graph"), "there is no file"),
        (("watch", "{}:graph", "--items", "-1"), "--items"),
        (("profile", "{}:graph", "--seconds", "0"), "positive number"),
        (("state", "show", "no_such_file.pt"), "no_such_file.pt"),
        (("state", "show", "."), "is a folder"),
        (("state",), "required"),
        ((), "required"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(run: Run, module: str, arguments: tuple[str, ...], says: str) -> None:
    code, out, err = run(*(argument.format(module) for argument in arguments))
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert says in err


def test_state_show_finds_states_wherever_they_stand(run: Run, tmp_path: Path) -> None:
    file, others = str(tmp_path / "checkpoint.pt"), tmp_path / "loader.json"
    torch.save({"model": {"weight": torch.ones(2)}, "loaders": [loader_at(5).state_dict()]}, file)
    code, text, _ = run("state", "show", file)
    assert code == 0
    assert text.startswith("loaders[0]\n")
    assert "5 items delivered" in text
    told = json.loads(run("state", "show", file, "--json")[1])
    assert told["loaders[0]"]["delivered"] == 5
    assert "IterableWrapper" in told["loaders[0]"]["payload"]["graph"]
    loader: DataLoader[Any] = DataLoader(torch.arange(8), batch_size=2, shuffle=True)  # type: ignore[arg-type]
    next(iter(loader))
    others.write_text(json.dumps({"data": loader.state_dict()}))
    assert json.loads(run("state", "show", str(others), "--json")[1])["data"]["delivered"] == 1


def test_state_show_reads_a_distributed_checkpoint(run: Run, tmp_path: Path) -> None:
    mark, folder = tmp_path / "it ran", tmp_path / "checkpoint"
    loader: DataLoader[Any] = DataLoader(torch.arange(8), batch_size=2, shuffle=True)  # type: ignore[arg-type]
    saved = SavedLoader(loader)
    next(iter(saved))
    graphs = {"graphs": [loader_at(5).state_dict()], "odd": _Runs(mark)}
    parts = {"model": {"weight": torch.ones(2)}, "data": saved, "more": graphs}
    with pytest.warns(UserWarning, match="single process"):
        dcp.save(parts, checkpoint_id=folder)
    code, text, _ = run("state", "show", str(folder))
    assert code == 0
    assert "data.state\n  epoch 0, 1 batches delivered" in text
    assert "\nmore.graphs" in text
    assert "5 items delivered" in text
    assert not mark.exists()
    metadata = (folder / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(pickle.dumps(_Runs(mark)))
    code, _, err = run("state", "show", str(folder))
    assert code == 2
    assert "damaged" in err
    assert not mark.exists()
    (folder / ".metadata").write_bytes(metadata[: len(metadata) // 2])
    assert "damaged" in run("state", "show", str(folder))[2]
    (folder / ".metadata").unlink()
    assert "without .metadata" in run("state", "show", str(folder))[2]


def test_state_show_says_whether_a_loader_takes_it_or_which_nodes_differ(run: Run, tmp_path: Path, module: str) -> None:
    Path(module).write_text(RANKED)
    file = str(tmp_path / "checkpoint.pt")
    graph = IterableWrapper(range(20)).shuffle(buffer_size=5).sharding_filter().batch(2).map(len)
    torch.save({"loader": loader_at(1, graph=graph).state_dict()}, file)
    code, text, _ = run("state", "show", file, f"{module}:same")
    assert (code, text.splitlines()[-1].strip()) == (0, f"loads into {module}:same")
    code, text, _ = run("state", "show", file, f"{module}:other")
    assert code == 1
    assert "StateMismatchError: the state belongs to another graph" in text
    differ = [line.strip() for line in text.splitlines() if line.strip()[:2] in ("- ", "+ ")]
    assert [line.split("(")[0] for line in differ] == ["- 1 Shuffler", "+ 1 Shuffler", "+ 3 Enumerator"]
    code, text, _ = run("state", "show", file, f"{module}:other", "--json")
    assert code == 1
    assert "buffer_size" in json.loads(text)["refused"]["loader"]
    assert run("state", "show", file, f"{module}:number")[0] == 2


def test_state_diff_shows_each_difference(run: Run, tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("a", "b", "c")]
    torch.save(loader_at(5).state_dict(), files[0])
    torch.save({"loader": loader_at(5).state_dict()}, files[1])
    torch.save(loader_at(7, seed=2).state_dict(), files[2])
    assert run("state", "diff", files[0], files[1]) == (0, "no difference\n", "")
    code, text, _ = run("state", "diff", files[0], files[2])
    assert code == 1
    assert "state.delivered: 5 -> 7" in text.splitlines()
    assert "state.seed: 1 -> 2" in text.splitlines()
    code, text, _ = run("state", "diff", files[0], files[2], "--json")
    assert {"where": "state.delivered", "first": "5", "second": "7"} in json.loads(text)


class _Runs:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def test_L8_state_show_runs_nothing_that_is_in_a_file(run: Run, tmp_path: Path) -> None:
    mark, file = tmp_path / "it ran", str(tmp_path / "evil.pt")
    with pytest.warns(OpaqueStateWarning):
        state = loader_at(
            3, graph=IterableWrapper(range(9)).map(lambda _: _Runs(mark)).shuffle(buffer_size=4)
        ).state_dict()
    torch.save({"loader": state}, file)
    code, text, _ = run("state", "show", file)
    assert code == 0
    assert "opaque" in text
    assert run("state", "show", file, "--json")[0] == 0
    torch.save({"loader": state, "other": _Runs(mark)}, file)
    code, _, err = run("state", "show", file)
    assert code == 2
    assert "only running code" in err
    assert not mark.exists()


def test_a_damaged_state_is_an_error(run: Run, tmp_path: Path) -> None:
    file, state = str(tmp_path / "damaged.pt"), loader_at(3).state_dict()
    state["payload"] = state["payload"][:-3] + b"\0\0\0"
    torch.save(state, file)
    for command in (("show", file), ("show", file, "--json"), ("diff", file, file)):
        code, _, err = run("state", *command)
        assert code == 2
        assert "damaged" in err
    torch.save({"model": torch.ones(2)}, file)
    assert "no state of a torchpipe loader" in run("state", "show", file)[2]


def test_doctor_waits_for_no_worker_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_PATIENCE_S", 0.001)  # less than it takes to start Python
    monkeypatch.setattr(torch.multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    (finding,) = doctor._start_methods()
    assert (finding.about, finding.level) == ("start method spawn", "problem")
    assert "timed out" in finding.text


@pytest.mark.nightly
def test_doctor_examines_this_machine(run: Run) -> None:
    """With few descriptors, and by starting a worker in each way."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        code, text, _ = run("doctor", "--json")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    found = {item["about"]: item for item in json.loads(text)}
    assert {"versions", "memory", "CPU", "/dev/shm", "processes"} <= found.keys()
    assert code == any(item["level"] == "problem" for item in found.values())
    assert torch.__version__ in found["versions"]["text"]
    assert found["open files"]["text"].startswith("512 at a time")
    assert "ulimit -n" in found["open files"]["mend"]
    for method in torch.multiprocessing.get_all_start_methods():
        assert found[f"start method {method}"]["level"] == "ok"
    assert all(item["mend"] for item in found.values() if item["level"] != "ok")
    quick = run("doctor", "--quick")[1]
    assert "open files: " in quick
    assert "start method" not in quick


LOUD = """
import os, sys
from torchpipe.iter import IterableWrapper
print("imported")

def loud(number):
    print("printed", number)
    os.write(1, b"written\\n")
    return number

def make():
    print("made")
    return IterableWrapper(range(4)).sharding_filter().map(loud)

def broken(number):
    raise BrokenPipeError("of another pipe \\x1b[31m")

breaking = IterableWrapper(range(4)).map(broken)

def ends():
    sys.exit()
"""


@pytest.fixture
def loud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / f"loud_{tmp_path.name}.py"
    file.write_text(LOUD)
    yield str(file)  # type: ignore[misc]
    sys.modules.pop(file.stem, None)


def test_json_is_all_there_is_on_stdout_whatever_modules_and_workers_print(
    warm: Warm, loud: str, tmp_path: Path
) -> None:
    done = warm.run(["-m", "torchpipe", "watch", f"{loud}:make", "--workers", "1", "--json"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["delivered"] == 4
    for kind in ("imported", "made", "printed 3", "written"):
        assert kind in done.stderr


def test_what_modules_print_stays_apart_where_stdout_is_no_file(run: Run, loud: str) -> None:
    code, out, err = run("explain", f"{loud}:make", "--json")
    assert (code, json.loads(out)["total"]) == (0, 4)
    assert "made" in err


def test_code_that_ends_the_program_is_a_mistake(run: Run, loud: str, tmp_path: Path) -> None:
    code, _, err = run("explain", f"{loud}:ends")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "your code ended the program (0)" in err
    script = tmp_path / f"script_{tmp_path.name}.py"
    script.write_text("import sys; sys.exit('bad arguments')")
    code, out, err = run("explain", f"{script}:graph", "--json")
    assert (code, out) == (2, "")
    assert "your code ended the program (bad arguments)" in err


def test_a_broken_pipe_of_the_users_is_an_error_and_commands_no_terminal(run: Run, loud: str) -> None:
    code, _, err = run("watch", f"{loud}:breaking")
    assert code == 2
    assert "BrokenPipeError: of another pipe" in err
    assert "\x1b" not in err


def test_a_report_that_cannot_be_written_is_told_before_anything_runs(run: Run, loud: str) -> None:
    code, out, err = run("watch", f"{loud}:make", "--report", "/nowhere/report.html")
    assert (code, out) == (2, "")
    assert "the folder /nowhere does not exist" in err


def test_keys_of_a_checkpoint_command_no_terminal(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "state.pt"
    torch.save({"a\x1b[2Jb": loader_at(2).state_dict()}, file)
    assert "\x1b" not in run("state", "show", str(file))[1]


def test_nested_too_deeply_is_no_state(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "deep.json"
    file.write_text("[" * 100_000 + "]" * 100_000)
    code, _, err = run("state", "show", str(file))
    assert code == 2
    assert "StateError" in err
