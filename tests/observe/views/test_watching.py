"""``loader.watch()``: on a terminal (a real one, and a model of its screen), in logs, in ranks and workers."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pyte
import pytest

from reading_services import MultiProcessingReadingService
from tests.observe.views.figures import BUSY
from tests.warm import Warm
from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import IterableWrapper
from torchpipe.observe.views import screen as screens
from torchpipe.observe.views.screen import Pace, drawn, page, progress_line

COLUMNS, ROWS = 90, 24


ON_TERMINAL = """
import os, sys
for number in range(3):
    os.dup2(os.open(sys.argv[1], os.O_RDWR), number)
sys.stdout.reconfigure(line_buffering=True, write_through=False)
"""


class Shown:
    """A program on a terminal, and what is on its screen. ``warm``: what it runs in, else a Python of its own."""

    def __init__(
        self,
        script: str,
        folder: Path,
        *,
        warm: Warm | None = None,
        columns: int = COLUMNS,
        rows: int = ROWS,
        **environment: str,
    ) -> None:
        main, other = pty.openpty()
        self.columns = columns
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        file = folder / "script.py"
        # Unbuffered, print() writes in pieces, between which others may write
        env = {**os.environ, "TERM": "xterm", "PYTHONUNBUFFERED": "", **environment}
        self.screen = pyte.HistoryScreen(columns, rows, history=1000, ratio=0.5)
        self.frames: list[list[str]] = []
        reader = threading.Thread(target=self._read, args=[main])
        reader.start()
        try:
            if warm is None:
                file.write_text(script)
                streams = {"stdin": other, "stdout": other, "stderr": other}
                self.code = subprocess.run([sys.executable, str(file)], env=env, check=False, **streams).returncode
            else:
                file.write_text(ON_TERMINAL + script)
                self.code = warm.run([str(file), os.ttyname(other)], cwd=folder, env=env).returncode
        finally:
            os.close(other)
            reader.join()
            os.close(main)

    def _read(self, main: int) -> None:
        stream = pyte.ByteStream(self.screen)
        while True:
            try:
                data = os.read(main, 1 << 16)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            stream.feed(data)
            self.frames.append([line.rstrip() for line in self.screen.display])

    @property
    def lines(self) -> list[str]:
        """All there was on it, top to bottom, as one would scroll."""
        above = ["".join(line[column].data for column in range(self.columns)) for line in self.screen.history.top]
        return [line.rstrip() for line in [*above, *self.screen.display]]


WRITES_IN_EVERY_WAY = """
import logging, os, sys, time
logging.basicConfig(format="logged %(message)s")  # its handler has stderr as it is now
from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper
from reading_services import MultiProcessingReadingService

def loud(number):
    if number % 10 == 0:
        os.write(2, f"worker {number}\\n".encode())
    time.sleep(0.004)
    return number

if __name__ == "__main__":
    graph = IterableWrapper(range(120)).sharding_filter().map(loud)
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(num_workers=1)) as loader:
        print("partly ", end="", flush=True)
        with loader.watch(every_s=0.02) as watch:
            print("written")
            for number in loader:
                if number % 10 == 5:
                    print("printed", number)
                    logging.warning(number)
                time.sleep(0.002)
            assert watch.open
        assert not watch.open
    print("the end")
"""


def test_whatever_the_program_writes_goes_on_above_the_table(warm: Warm, tmp_path: Path) -> None:
    shown = Shown(WRITES_IN_EVERY_WAY, tmp_path, warm=warm)
    assert shown.code == 0, shown.lines
    lines = shown.lines
    assert lines[0] == "partly written"
    for kind, numbers in (("printed", range(5, 120, 10)), ("logged", range(5, 120, 10)), ("worker", range(0, 120, 10))):
        assert [line for line in lines if line.startswith(kind)] == [f"{kind} {number}" for number in numbers]
    live = [frame for frame in shown.frames if any("epoch 0 |" in line and "of 120" in line for line in frame[-12:])]
    assert len(live) > 3
    assert any(" left" in line for frame in live for line in frame)
    assert any("Mapper(loud)" in line for frame in live for line in frame[-12:])
    assert shown.screen.margins is None, "the terminal is left with a part that does not scroll"
    end = lines.index("the end")
    assert any("120 of 120 (100 %) items" in line for line in lines[end - 8 : end])
    assert sum("epoch 0 |" in line for line in lines) == 1, "what was drawn before is gone"
    assert not any(lines[end + 1 :])


ENDS_BADLY = """
import sys
from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper
sys.modules["rich"] = None  # as if it were not installed
with DataLoader2(IterableWrapper(range(4))) as loader, loader.watch():
    print(list(loader))
del sys.modules["rich"]
loader = DataLoader2(IterableWrapper(range(9)))
loader.watch(every_s=0.05)
for item in loader:
    raise SystemError("of the program")
"""


def test_without_rich_there_are_lines_and_an_error_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    shown = Shown(ENDS_BADLY, tmp_path)
    assert shown.code == 1
    assert shown.lines[0] == "[0, 1, 2, 3]"
    assert shown.lines[1].startswith("torchpipe: epoch 0, 4 of 4 (100 %) items")
    assert shown.screen.margins is None
    assert any("SystemError: of the program" in line for line in shown.lines)
    assert any("epoch 0 |" in line for line in shown.lines)


WITH_A_NAME = """
from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper

class N\u00e4me:
    def __call__(self, number): return number

with DataLoader2(IterableWrapper(range(60)).map(N\u00e4me())) as loader, loader.watch(every_s=0.02):
    for number in loader:
        if number % 20 == 0:
            print("printed", number)
print("the end")
"""


def test_a_terminal_without_the_characters_shows_what_it_can(tmp_path: Path) -> None:
    shown = Shown(WITH_A_NAME, tmp_path, PYTHONIOENCODING="ascii", LC_ALL="C", PYTHONUTF8="0")
    assert shown.code == 0, shown.lines
    lines = shown.lines
    assert any("60 of 60 (100 %) items" in line for line in lines)
    assert any("Mapper(N?me)" in line for line in lines)
    assert any(line.startswith("---") for line in lines)  # the bar
    assert shown.screen.margins is None


@pytest.mark.parametrize(("columns", "rows"), [(12, 6), (24, 10), (400, 60)])
def test_a_terminal_of_any_size_keeps_what_the_program_writes(
    columns: int, rows: int, warm: Warm, tmp_path: Path
) -> None:
    shown = Shown(WITH_A_NAME, tmp_path, warm=warm, columns=columns, rows=rows)
    assert shown.code == 0, shown.lines
    assert [line for line in shown.lines if line.startswith("printed")] == ["printed 0", "printed 20", "printed 40"]
    assert "the end" in shown.lines
    assert shown.screen.margins is None


ALL_BY_ITSELF = """
import os
import torchpipe, torch
from torchpipe.iter import IterableWrapper
from reading_services import MultiProcessingReadingService

class Inner(torch.utils.data.Dataset):
    def __len__(self): return 6
    def __getitem__(self, index):
        return sum(torchpipe.DataLoader2(IterableWrapper(range(3))))

if __name__ == "__main__":
    for loader in (
        torchpipe.DataLoader2(IterableWrapper(range(5))),
        torchpipe.DataLoader(Inner(), num_workers=1),
    ):
        print(sum(1 for _ in loader))
    print(sum(1 for _ in torchpipe.DataLoader2(IterableWrapper(range(8)))))  # of which nobody keeps the loader
    os.environ["LOCAL_RANK"] = "1"
    print(sum(1 for _ in torchpipe.DataLoader2(IterableWrapper(range(7)))))
"""


def test_the_environment_watches_every_loader_in_lines_where_there_is_no_terminal(warm: Warm, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ALL_BY_ITSELF)
    done = warm.run([str(script)], cwd=tmp_path, env={**os.environ, "TORCHPIPE_WATCH": "1"})
    assert (done.returncode, done.stdout) == (0, "5\n6\n8\n7\n"), done.stderr
    assert [line.partition(" items")[0] for line in done.stderr.splitlines()] == [
        "torchpipe: epoch 0, 5 of 5 (100 %)",
        "torchpipe: epoch 0, 6 of 6 (100 %)",
        "torchpipe: epoch 0, 8 of 8 (100 %)",
    ]


DROPPED = """
import itertools
import torchpipe
from torchpipe.iter import IterableWrapper

class Numbers:
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return index

def make(kind):
    if kind == "graph":
        return torchpipe.DataLoader2(IterableWrapper(range(6)).batch(2))
    return torchpipe.DataLoader(Numbers(), batch_size=2)

for kind in ("graph", "dataset"):
    loader = make(kind)
    for epoch in range(2):
        for item in loader:
            pass
    del loader
    for item in make(kind):
        pass
    for item in itertools.islice(make(kind), 2):
        pass
    loader = make(kind)
    for item in loader:
        break
    del loader
"""


def test_what_a_loader_came_to_is_shown_where_it_has_been_dropped(warm: Warm, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(DROPPED)
    done = warm.run([str(script)], cwd=tmp_path, env={**os.environ, "TORCHPIPE_WATCH": "1"})
    assert done.returncode == 0, done.stderr
    shown = [
        re.match(r"torchpipe: (epoch \d, \d) of 3 .* items, .*, (ended|stopped)\.", line)
        for line in done.stderr.splitlines()
    ]
    ends = [found and found.groups() for found in shown]
    # Who looks between the two epochs of a loader shows that the first one has ended, too.
    between = [("epoch 0, 3", "ended"), ("epoch 1, 3", "ended")]
    assert [end for end, after in zip(ends, [*ends[1:], None]) if [end, after] != between] == [
        ("epoch 1, 3", "ended"),
        ("epoch 0, 3", "ended"),
        ("epoch 0, 2", "stopped"),
        ("epoch 0, 1", "stopped"),
    ] * 2


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_a_watch_ends_with_its_block_and_there_is_one_of_a_loader(capsys: pytest.CaptureFixture[str]) -> None:
    with DataLoader2(IterableWrapper(range(6))) as loader, DataLoader2(IterableWrapper(range(3))) as other:
        assert not loader.measuring
        with loader.watch(0.01) as watch:
            with pytest.raises(RuntimeError, match="watched already"):
                loader.watch()
            with other.watch(0.01):
                assert list(other) == [0, 1, 2]
            assert loader.measuring
            assert list(loader) == list(range(6))
            assert "torchpipe-watch" in threads()
            watch.close()
            watch.close()
        assert "torchpipe-watch" not in threads()
        assert not loader.measuring
        assert "6 of 6 (100 %) items" in capsys.readouterr().err
    with loader.watch():  # one that has been shut down shows what it has done, and does not begin anew
        pass
    assert "6 of 6 (100 %) items" in capsys.readouterr().err


def watch_inside(number: int) -> str:
    try:
        DataLoader2(IterableWrapper(range(2))).watch()
    except RuntimeError as error:
        return str(error)
    return "it could"


def test_L1_a_watch_changes_nothing_in_the_stream_and_is_refused_in_a_worker(
    capfd: pytest.CaptureFixture[str],
) -> None:
    graph = IterableWrapper(range(4)).sharding_filter().map(watch_inside).shuffle()
    service = MultiProcessingReadingService(num_workers=2, multiprocessing_context="fork")
    with DataLoader2(graph, reading_service=service) as loader, loader.watch(0.01):
        loader.seed(3)
        assert all("in a worker process" in text for text in loader)
    with DataLoader(range(64), batch_size=4, shuffle=True, num_workers=2, worker_method="thread") as plain:  # type: ignore[arg-type]
        plain.set_epoch(0)
        state = plain.state_dict()
        before = [batch.tolist() for batch in plain]
        plain.load_state_dict(state)
        with plain.watch(0.01):
            assert [batch.tolist() for batch in plain] == before
    assert "16 of 16" in capfd.readouterr().err


def test_lines_fit_and_names_cannot_break_them() -> None:
    for width in (30, 80, 200):
        lines = drawn(BUSY, 100.0, width, color=False)
        assert max(map(len, lines)) <= width
        assert len(lines) <= 12
        assert "\x1b" not in "".join(lines)
    text = "\n".join(drawn(BUSY, 100.0, 120, color=False))
    for part in ("201 of 750 (27 %) items", "100/s", "5.49 s left", "1 restart", "Mapper(decode)", "restart: died by"):
        assert part in text
    assert progress_line(BUSY, 100.0).startswith(
        "epoch 1, 201 of 750 (27 %) items, 100/s, 5.49 s left, 1 restart. You waited"
    )
    html = page(BUSY, 100.0)
    assert "<script" not in html
    assert "&lt;lambda&gt;" in html


def test_the_pace_is_that_of_late() -> None:
    import dataclasses

    pace = Pace()
    for second in range(40):
        quick = max(0, second - 10) * 10 + second
        pace.rate(dataclasses.replace(BUSY, delivered=quick), float(second))
    assert pace.rate(dataclasses.replace(BUSY, delivered=340), 40.0) == pytest.approx(11.0)
    assert pace.rate(dataclasses.replace(BUSY, epoch=2, delivered=3), 41.0) == BUSY.consumer.items_per_s


def test_without_any_stream_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(sys, "stdout", None)
    here = screens.screen_here()
    assert isinstance(here, screens.Lines)
    here.leave(["nowhere to say it"])
