"""Scripts of a warm Python behave as if a process had been started for each."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.sources import wait_until
from tests.warm import Warm

SCRIPTS = {
    "return": ("print('said'); raise SystemExit(3)", 3, "said\n", ""),
    "say why": ("raise SystemExit('because')", 1, "", "because\n"),
    "ctrl-c": (
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)",
        -signal.SIGINT,
        "",
        "KeyboardInterrupt",
    ),
    "a generator left": (
        "def left():\n    try:\n        yield\n    finally:\n        print('closed')\nkept = left()\nnext(kept)",
        0,
        "closed\n",
        "",
    ),
    "an object that cannot be let go": (
        "class Held:\n    def __del__(self):\n        raise KeyError('mine')\nheld = Held()\nheld.own = held",
        0,
        "",
        "Exception ignored in: <function Held.__del__",
    ),
    "a thread": (
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), print('said'))).start()",
        0,
        "said\n",
        "",
    ),
    "raise": ("print('said')\nraise KeyError('mine')", 1, "said\n", "KeyError: 'mine'"),
    "killed": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, "", ""),
    "imports": (
        "torchpipe",
        1,
        "",
        "NameError: name 'torchpipe' is not defined",
    ),
    "atexit": (
        "import atexit\natexit.register(lambda: print(Here))\nclass Here: pass",
        0,
        "<class '__main__.Here'>\n",
        "",
    ),
    "beside": (
        "import os, sys\nprint(sys.path[0] == os.getcwd() == os.path.dirname(__file__), *sys.argv[1:])",
        0,
        "True one\n",
        "",
    ),
    "spawn": (
        "import multiprocessing\n"
        "def say(): print(__name__)\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=say)\n"
        "    process.start()\n"
        "    process.join()\n",
        0,
        "__mp_main__\n",
        "",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_ends_as_in_a_process_of_its_own(name: str, warm: Warm, tmp_path: Path) -> None:
    text, code, said, error = SCRIPTS[name]
    script = tmp_path / "script.py"
    script.write_text(text)
    done = warm.run([str(script), "one"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, said)
    assert error in done.stderr
    assert bool(done.stderr) == bool(error)


def test_a_script_is_seen_while_it_runs(warm: Warm, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import time\nprint('here', flush=True)\ntime.sleep(1000)")

    def kill(pid: int, said: Path) -> None:
        wait_until(lambda: said.exists() and said.read_text() == "here\n")
        os.kill(pid, signal.SIGKILL)

    done = warm.run([str(script)], cwd=tmp_path, meanwhile=kill)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "here\n")


def test_no_two_scripts_draw_the_same(warm: Warm, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import random, numpy, torch\nprint(random.random(), numpy.random.rand(), torch.rand(()).item())")
    one, other = warm.run_together([[str(script)]] * 2, cwd=tmp_path)
    assert not set(one.stdout.split()) & set(other.stdout.split())
    assert len(one.stdout.split()) == 3


def test_scripts_of_one_call_run_at_the_same_time(warm: Warm, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_text("print(open('pipe').read())")
    second.write_text("import os\nopen('pipe', 'w').write(os.environ['TOLD'])")
    done = warm.run_together([[str(first)], [str(second)]], cwd=tmp_path, env={"TOLD": "both"})
    assert [(one.returncode, one.stdout) for one in done] == [(0, "both\n"), (0, "")]


def test_scripts_that_hang_are_killed_and_show_their_stacks(
    warm: Warm, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a test's limit: a group of ranks that had hung had to be found again with a debugger."""
    os.mkfifo(tmp_path / "pipe")
    hanging, ended = tmp_path / "hanging.py", tmp_path / "ended.py"
    hanging.write_text(
        "import os, sys, threading\n"
        "def waits_for_ever():\n"
        "    print('so far', file=sys.stderr, flush=True)\n"
        "    open('pid', 'w').write(str(os.getpid()))\n"
        "    open('pipe', 'w').close()\n"  # from here on it may be asked
        "    lock = threading.Lock()\n"
        "    lock.acquire()\n"
        "    lock.acquire()\n"
        "waits_for_ever()\n"
    )
    ended.write_text("")

    answer, calls = warm._answer, 0

    def struck() -> Any:
        """The answer after the first is waited for, and a test's limit comes."""
        nonlocal calls
        calls += 1
        if calls == 2:
            (tmp_path / "pipe").read_text()  # once it is there
            raise KeyboardInterrupt
        return answer()

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(warm, "_answer", struck)
        warm.run_together([[str(hanging)], [str(ended)]], cwd=tmp_path)
    said = capsys.readouterr().err
    assert "so far" in said
    assert "in waits_for_ever" in said
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    ended.write_text("print('still at your service')")
    assert warm.run([str(ended)], cwd=tmp_path).stdout == "still at your service\n"
