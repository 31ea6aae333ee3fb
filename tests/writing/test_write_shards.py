"""Shards are whole or not there, whenever a run is killed; the run that goes on writes what one without kills does."""

from __future__ import annotations

import hashlib
import io
import json
import math
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from reading_services import MultiProcessingReadingService
from torchpipe import write_shards
from torchpipe.errors import StateError, StateMismatchError
from torchpipe.iter import IterableWrapper, JsonlReader, ParquetReader, TextLineReader, WebDatasetReader
from torchpipe.map import TokenFile
from torchpipe.writing.manifest import WrittenShards

FORK = multiprocessing.get_context("fork")
SAMPLES = 60
MANIFEST = "out-manifest.jsonl.ndjson"
KINDS = ("tar", "parquet", "jsonl", "jsonl.zst", "bin")


def drawn(number: int) -> dict[str, Any]:
    """Draws from every process-wide generator, and changes what it was given."""
    numbers = [number, random.randrange(1000), int(np.random.randint(1000)), int(torch.randint(1000, ()))]
    return {"n": numbers, "text": f"text {number} é\n"}


def as_tar(row: dict[str, Any]) -> dict[str, Any]:
    row["text"] += "!"
    return {"__key__": f"{row['n'][0]:06d}", "json": row, "cls": np.int64(row["n"][1]), "npy": np.array(row["n"])}


def as_tokens(row: dict[str, Any]) -> list[int]:
    return list(row["n"][: row["n"][0] % 5])


def graph(kind: str, pause: float = 0.0) -> Any:
    def slow(row: dict[str, Any]) -> dict[str, Any]:
        time.sleep(pause)
        return row

    made = IterableWrapper(range(SAMPLES)).shuffle(buffer_size=7).sharding_filter().map(drawn)
    if pause:
        made = made.map(slow)
    return made.map({"tar": as_tar, "bin": as_tokens}.get(kind, dict))


def write(kind: str, folder: Path, **options: Any) -> WrittenShards:
    pause = options.pop("pause", 0.0)
    if kind == "bin":
        options["dtype"] = "uint16"
    return write_shards(graph(kind, pause), folder / f"out-{{:03d}}.{kind}", max_samples=16, seed=3, **options)


def contents(folder: Path) -> dict[str, bytes]:
    """The files that have a shard's name."""
    return {path.name: path.read_bytes() for path in folder.glob("out-[0-9]*")}


def forked(work: Callable[[], Any]) -> multiprocessing.process.BaseProcess:
    process = FORK.Process(target=work)
    process.start()
    return process


def killed_at(point: int, folder: Path, work: Callable[[], Any]) -> None:
    """Runs ``work``, and dies where it is about to open, rename or remove a file in ``folder`` for the n-th time."""
    seen = [0]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "os.rename", "os.remove") and str(arguments[0]).startswith(str(folder)):
            seen[0] += 1
            if seen[0] > point:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    work()


def cut_off_at(number: int, kind: str, folder: Path) -> None:
    """A run that was killed when it began shard ``number``."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and f".out-{number:03d}" in str(arguments[0]):
            os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        sys.addaudithook(hook)
        write(kind, folder)

    child = forked(work)
    child.join()
    assert child.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_every_step_of_the_files(kind: str, tmp_path: Path) -> None:
    write(kind, tmp_path / "whole")
    expected = contents(tmp_path / "whole")
    assert len(expected) == (8 if kind == "bin" else 4)
    deaths = 0
    while True:
        folder = tmp_path / f"killed {deaths}"
        folder.mkdir()
        child = forked(partial(killed_at, deaths, folder, partial(write, kind, folder)))
        child.join()
        there = contents(folder)
        assert there.items() <= expected.items()
        assert kind != "bin" or all(name.replace("bin", "idx") in there for name in there)
        done = write(kind, folder)
        assert contents(folder) == expected
        assert done.samples == SAMPLES
        assert len(list(folder.iterdir())) == len(expected) + 1, "the manifest, and nothing half-written"
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
        deaths += 1
    assert deaths >= 4 * 3


@pytest.mark.parametrize("kind", ["tar", "parquet", "bin"])
def test_killed_at_random_under_other_numbers_of_workers(kind: str, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    write(kind, whole, reading_service=MultiProcessingReadingService(2))
    expected = contents(whole)
    first = [2]  # the number of shards of the stream is that of the first run's workers
    for _ in range(8):
        workers = first.pop() if first else chance.choice([1, 2])
        work = partial(
            write, kind, folder, reading_service=MultiProcessingReadingService(workers, num_shards=2), pause=0.01
        )
        child = forked(work)
        child.join(timeout=chance.uniform(0.1, 1.0))
        child.kill()
        child.join()
        assert contents(folder).items() <= expected.items()
    paused = write(kind, tmp_path / "paused", reading_service=MultiProcessingReadingService(2), pause=0.01)
    assert contents(tmp_path / "paused") == expected
    assert paused.new == 4
    write(kind, folder, reading_service=MultiProcessingReadingService(1, num_shards=2), pause=0.01)
    assert contents(folder) == expected


def read_back(kind: str, paths: list[str]) -> list[Any]:
    if kind == "tar":
        return [{name: value for name, value in row.items() if name != "__url__"} for row in WebDatasetReader(paths)]
    if kind == "bin":
        return [tokens.tolist() for tokens in TokenFile(paths)]  # type: ignore[attr-defined]
    return list(ParquetReader(paths) if kind == "parquet" else JsonlReader(paths))


@pytest.mark.parametrize("kind", KINDS)
def test_readers_read_what_was_written(kind: str, tmp_path: Path) -> None:
    done = write(kind, tmp_path)
    from torchpipe import DataLoader2

    with DataLoader2(graph(kind)) as loader:
        loader.seed(3)
        expected = list(loader)
    got = read_back(kind, done.paths)
    assert [plain(row) for row in got] == [plain(row) for row in expected]
    assert [shard.samples for shard in done.shards] == [16, 16, 16, 12]
    for shard in done.shards:
        for file in shard.files:
            data = (tmp_path / file.name).read_bytes()
            assert (len(data), hashlib.sha256(data).hexdigest()) == (file.bytes, file.sha256)


def plain(row: Any) -> Any:
    return (
        {name: value.tolist() if hasattr(value, "tolist") else value for name, value in row.items()}
        if isinstance(row, dict)
        else row
    )


def test_a_run_that_is_finished_does_nothing_and_says_so(tmp_path: Path) -> None:
    first = write("tar", tmp_path)
    assert str(first).endswith("MB, written")
    times = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = write("tar", tmp_path)
    assert str(again).endswith("were all there: nothing was done")
    assert (again.new, again.shards) == (0, first.shards)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == times


def test_nothing_to_write(tmp_path: Path) -> None:
    assert write_shards(IterableWrapper([]), tmp_path / "out-{}.jsonl").shards == ()
    assert contents(tmp_path) == {}
    assert write_shards(IterableWrapper([]), tmp_path / "out-{}.jsonl").new == 0


def test_max_bytes_ends_a_shard_with_the_sample_that_reaches_it(tmp_path: Path) -> None:
    done = write_shards(IterableWrapper(["x" * 7] * 10), tmp_path / "out-{}.jsonl", max_bytes=25)
    assert [(shard.samples, shard.bytes) for shard in done.shards] == [(3, 30), (3, 30), (3, 30), (1, 10)]
    assert list(TextLineReader(done.paths)) == ['"xxxxxxx"'] * 10


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 4}, "seed was 3 there, and is 4 here"),
        ({"max_samples": 17}, "max_samples was 16 there, and is 17 here"),
        ({"max_bytes": 100}, "max_bytes was 1073741824 there, and is 100 here"),
        ({"graph": IterableWrapper(range(3)).map(drawn).map(as_tar)}, "the state belongs to another graph"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_the_folder_of_another_run_is_refused(
    change: dict[str, Any], named: str, finished: bool, tmp_path: Path
) -> None:
    if finished:
        write("tar", tmp_path)
    else:
        cut_off_at(2, "tar", tmp_path)
        (tmp_path / ".out-manifest.tar.lock").unlink()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    options: dict[str, Any] = {"graph": graph("tar"), "seed": 3, "max_samples": 16, **change}
    with pytest.raises(StateMismatchError, match="holds the shards of another run") as caught:
        write_shards(path=tmp_path / "out-{:03d}.tar", **options)
    assert named in str(caught.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_run_that_wrote_nothing_is_no_other_run(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no sample"):
        write_shards(graph("tar").map(refuse), tmp_path / "out-{:03d}.tar", max_samples=16, seed=3)
    assert (tmp_path / "out-manifest.tar.ndjson").exists()
    write("tar", tmp_path)
    write("tar", tmp_path / "fresh")
    assert contents(tmp_path) == contents(tmp_path / "fresh")
    assert listed(tmp_path) == listed(tmp_path / "fresh")


def listed(folder: Path) -> list[dict[str, Any]]:
    """What the manifest says, without states: how far back a state's last snapshot lies depends on time."""
    text = (folder / "out-manifest.tar.ndjson").read_text()
    return [{key: of for key, of in json.loads(line).items() if key != "state"} for line in text.splitlines()]


def refuse(sample: Any) -> Any:
    raise ValueError("no sample")


def test_another_dtype_and_schema_are_another_run(tmp_path: Path) -> None:
    write("bin", tmp_path)
    with pytest.raises(StateMismatchError, match="dtype was '<u2' there, and is '<i4' here"):
        write_shards(graph("bin"), tmp_path / "out-{:03d}.bin", max_samples=16, seed=3, dtype="int32")
    write("parquet", tmp_path / "table")
    schema = pa.schema([("n", pa.list_(pa.int64())), ("text", pa.string())])
    with pytest.raises(StateMismatchError, match="schema was None there, and is"):
        write_shards(graph("parquet"), tmp_path / "table" / "out-{:03d}.parquet", max_samples=16, seed=3, schema=schema)


def test_shards_that_no_manifest_lists_are_refused(tmp_path: Path) -> None:
    (tmp_path / "out-007.tar").write_bytes(b"somebody's")
    with pytest.raises(ValueError, match=r"out-007\.tar, and no manifest that lists it"):
        write("tar", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["out-007.tar"]
    (tmp_path / "out-007.tar").unlink()
    write("tar", tmp_path)
    (tmp_path / "out-004.tar").write_bytes(b"somebody's")
    with pytest.raises(ValueError, match=r"out-004\.tar, which it does not list"):
        write("tar", tmp_path)


def test_an_index_that_no_manifest_lists_is_somebodys(tmp_path: Path) -> None:
    (tmp_path / "out-000.idx").write_bytes(b"somebody's")
    with pytest.raises(ValueError, match=r"out-000\.idx, and no manifest that lists it"):
        write("bin", tmp_path)
    assert (tmp_path / "out-000.idx").read_bytes() == b"somebody's"


@pytest.mark.parametrize("change", ["missing", "cut off"])
def test_a_shard_that_has_changed_is_told_and_the_advice_helps(change: str, tmp_path: Path) -> None:
    write("tar", tmp_path)
    expected = contents(tmp_path)
    shard = tmp_path / "out-001.tar"
    if change == "missing":
        shard.unlink()
    else:
        os.truncate(shard, 512)
    with pytest.raises(StateError, match=r"out-001\.tar is .* put it back \(a run into another folder writes the same"):
        write("tar", tmp_path)
    write("tar", tmp_path / "other")
    shutil.copy(tmp_path / "other" / "out-001.tar", shard)
    assert write("tar", tmp_path).new == 0
    assert contents(tmp_path) == expected
    shard.unlink()
    with pytest.raises(StateError, match="or remove .*, and call write_shards again, which begins anew"):
        write("tar", tmp_path)
    for path in tmp_path.glob("out-*"):
        path.unlink()
    assert write("tar", tmp_path).new == 4
    assert contents(tmp_path) == expected


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_the_last_line_of_the_manifest_is_cut_off_anywhere(shards: int, tmp_path: Path) -> None:
    """As by a crash while it was written; with one that stands for another state, nothing goes on."""
    write("jsonl", tmp_path / "whole")
    expected, lines = contents(tmp_path / "whole"), (tmp_path / "whole" / MANIFEST).read_bytes().splitlines()
    cut_off_at(shards, "jsonl", tmp_path / "cut")
    *before, last = (tmp_path / "cut" / MANIFEST).read_bytes().splitlines(keepends=True)
    for cut in (0, 1, len(last) // 2, len(last) - 1, len(last)):
        folder = tmp_path / f"cut {cut}"
        shutil.copytree(tmp_path / "cut", folder)
        (folder / MANIFEST).write_bytes(b"".join([*before, last[:cut]]))
        write("jsonl", folder)
        assert contents(folder) == expected
        assert list(map(without_state, (folder / MANIFEST).read_bytes().splitlines())) == list(
            map(without_state, lines)
        )
    if shards == 3:
        (tmp_path / "cut" / MANIFEST).write_bytes(b"".join(before[:-1]))
        (tmp_path / "cut" / "out-002.jsonl").unlink()
        with pytest.raises(StateError, match="state1 is not the state behind the 1 shards .* begins anew"):
            write("jsonl", tmp_path / "cut")


def without_state(line: bytes) -> Any:
    """Two states of one position may differ in what was noted on the way to it."""
    return {name: value for name, value in json.loads(line).items() if name != "state"}


def test_a_manifest_that_is_damaged(tmp_path: Path) -> None:
    write("jsonl", tmp_path)
    manifest = tmp_path / "out-manifest.jsonl.ndjson"
    lines = manifest.read_bytes().splitlines(keepends=True)
    for number in range(len(lines)):
        manifest.write_bytes(b"".join([*lines[:number], b'{"x": 1}\n', *lines[number + 1 :]]))
        with pytest.raises(StateError, match=f"damaged in line {number + 1}"):
            write("jsonl", tmp_path)
    manifest.write_bytes(lines[0].replace(b'"torchpipe_shards": 2', b'"torchpipe_shards": 99'))
    with pytest.raises(StateError, match="is of version 99, and 2 is known here"):
        write("jsonl", tmp_path)


@pytest.mark.parametrize("finished", [True, False])
def test_a_manifest_without_one_of_its_lines_or_with_one_twice(finished: bool, tmp_path: Path) -> None:
    """As an editor may leave it: it is refused, or the run goes on; no sample is written twice or left out."""
    write("jsonl", tmp_path / "whole")
    expected = contents(tmp_path / "whole")
    if finished:
        shutil.copytree(tmp_path / "whole", tmp_path / "run")
    else:
        cut_off_at(3, "jsonl", tmp_path / "run")
    lines = (tmp_path / "run" / MANIFEST).read_bytes().splitlines(keepends=True)
    end = lines[-1] if finished else b'{"finished": true, "shards": 4, "samples": 60}\n'
    changed = [lines[:n] + lines[n + 1 :] for n in range(len(lines))]
    changed += [lines[: n + 1] + lines[n:] for n in range(len(lines))]
    changed += [[*lines[:n], end] for n in range(len(lines))]
    for number, some in enumerate(changed):
        folder = tmp_path / f"changed {number}"
        shutil.copytree(tmp_path / "run", folder)
        (folder / MANIFEST).write_bytes(b"".join(some))
        try:
            write("jsonl", folder)
        except (StateError, ValueError):
            expected_here = {name: data for name, data in expected.items() if name in contents(folder)}
            assert contents(folder) == expected_here
        else:
            assert contents(folder) == expected


def failing(row: dict[str, Any]) -> dict[str, Any]:
    if row["n"][0] == 40:
        raise ArithmeticError("no 40")
    return row


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_the_graph_leaves_whole_shards_alone(workers: int, tmp_path: Path) -> None:
    service = MultiProcessingReadingService(workers) if workers else None
    with pytest.raises(ArithmeticError, match="no 40"):
        write_shards(
            IterableWrapper(range(SAMPLES)).sharding_filter().map(drawn).map(failing),
            tmp_path / "out-{}.jsonl",
            max_samples=16,
            reading_service=service,
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".out-manifest.jsonl.state0",
        ".out-manifest.jsonl.state1",
        "out-0.jsonl",
        "out-1.jsonl",
        "out-manifest.jsonl.ndjson",
    ]


def limited(folder: Path, size: int, kind: str) -> None:
    """Files end at ``size`` bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        write(kind, folder)
    except OSError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        (folder / "error.txt").write_text(f"{type(error).__name__} {error}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [200, 600, 2000, 9000])
def test_a_disk_that_is_full(kind: str, size: int, tmp_path: Path) -> None:
    write(kind, tmp_path / "whole")
    expected, folder = contents(tmp_path / "whole"), tmp_path / "full"
    folder.mkdir()
    child = forked(partial(limited, folder, size, kind))
    child.join()
    assert child.exitcode == 0
    assert contents(folder).items() <= expected.items()
    left = {path.name for path in folder.iterdir()} - {"error.txt", f"out-manifest.{kind}.ndjson", *expected}
    assert not left
    if (error := folder / "error.txt").exists():
        assert "make room, and call write_shards again" in error.read_text()
    write(kind, folder)
    assert contents(folder) == expected


def as_a_guest(folder: Path, said: Any) -> None:
    """Root may write anywhere: as another user."""
    if os.geteuid() == 0:
        os.setuid(65534)
    try:
        said.write(str(write("tar", folder)))
    except OSError as error:
        said.write(f"{type(error).__name__} {error}")
    said.flush()


@pytest.mark.parametrize(
    ("shards", "says"),
    [
        (0, "PermissionError .*Permission denied.* can be written to, and call write_sh"),
        (2, "PermissionError .*Permission denied.* can be written to, and call write_sh"),
        (4, ".* were all there: nothing was done"),
    ],
)
def test_a_folder_that_cannot_be_written_to(shards: int, says: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="call write_shards again"):
        write("tar", tmp_path / "file" / "folder")
    with tempfile.TemporaryDirectory() as name, open(tmp_path / "said", "w+") as said:
        folder = Path(name)
        if shards == 4:
            write("tar", folder)
        elif shards:
            cut_off_at(shards, "tar", folder)
            (folder / ".out-manifest.tar.lock").unlink()
        before = sorted(os.listdir(folder))
        os.chmod(folder, 0o555)
        child = forked(partial(as_a_guest, folder, said))
        child.join()
        said.seek(0)
        assert re.match(says, said.read())
        assert sorted(os.listdir(folder)) == before


def test_two_runs_at_once(tmp_path: Path) -> None:
    first = forked(partial(write, "jsonl", tmp_path, pause=0.3))
    while not (tmp_path / "out-manifest.jsonl.ndjson").exists():
        time.sleep(0.01)
    with pytest.raises(RuntimeError, match=f"process {first.pid} on .* writes"):
        write("jsonl", tmp_path)
    first.kill()
    first.join()


def sample(**files: Any) -> dict[str, Any]:
    return {"__key__": "a", **{name.replace("_", "."): value for name, value in files.items()}}


BAD_SAMPLES: list[tuple[Any, str]] = [
    ([1, 2], "must be a dict with '__key__'"),
    ({"txt": "x"}, "must have a text as '__key__', got None"),
    ({"__key__": 3, "txt": "x"}, "must have a text as '__key__', got 3"),
    ({"__key__": "a"}, "no files beside its '__key__'"),
    ({"__key__": "a", "__url__": "x"}, "no files beside its '__key__'"),
    ({"__key__": "v1.0/a.b", "txt": "x"}, "no dots there"),
    ({"__key__": "", "txt": "x"}, "no reader finds"),
    ({"__key__": "a/", "txt": "x"}, "no reader finds"),
    ({"__key__": "/a", "txt": "x"}, "no reader finds"),
    ({"__key__": "a\0", "txt": "x"}, "no reader finds"),
    ({"__key__": "\ud800", "txt": "x"}, "no reader finds"),
    ({"__key__": "__a__", "txt": "x"}, "no reader finds"),
    ({"__key__": "a", "TXT": "x"}, "lower case"),
    ({"__key__": "a", 3: "x"}, "no reader finds"),
    ({"__key__": "a", "": b"x"}, "no reader finds"),
    ({"__key__": "a", "x/y": b"x"}, "no reader finds"),
    ({"__key__": "a", **{f"e{n}": b"" for n in range(61)}}, "more than 60 files"),
    (sample(txt=3), "it holds text, and got 3 of type int"),
    (sample(txt=None), "it holds text, and got None"),
    (sample(cls=1.5), "a whole number, and got 1.5"),
    (sample(cls="cat"), "a whole number, and got 'cat'"),
    (sample(json={1: 2}), "texts as keys alone, got 1"),
    (sample(json=float("nan")), "not JSON compliant"),
    (sample(json={"x": np.ones(3)}), "no form for ndarray"),
    (sample(json="\ud800"), "no Unicode"),
    (sample(npy=[1, 2]), "an array or a tensor, and got"),
    (sample(npy=np.array([object()])), "Object arrays cannot be saved"),
    (sample(npy=torch.ones(2, dtype=torch.bfloat16)), "name it .pt"),
    (sample(npz=np.ones(2)), "a dict of arrays"),
    (sample(npz={"x": np.array([None])}), "no arrays of objects"),
    (sample(npz={"allow_pickle": np.ones(2)}), "choose others"),
    (sample(npz={"file": np.ones(2)}), "choose others"),
    (sample(npz={"x": np.ones(2), "x.npy": np.ones(3)}), "choose others"),
    (sample(npy=np.ma.masked_array([1, 2], mask=[0, 1])), "an array or a tensor, and got"),
    (sample(png=Image.new("CMYK", (2, 2))), "convert it in the graph"),
    (sample(pt={"x": object()}), "it holds tensors"),
    (sample(xyz=3), "it holds bytes, and got 3"),
    (sample(jpg=Image.new("RGB", (2, 2))), "encode it in the graph"),
    (sample(left_jpg=np.zeros((2, 2, 3), np.uint8)), "encode it in the graph"),
    (sample(png=np.zeros((2, 2, 3), np.uint8)), "PIL.Image.fromarray"),
]


@pytest.mark.parametrize(("bad", "says"), BAD_SAMPLES)
def test_samples_that_no_tar_shard_holds(bad: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        write_shards(IterableWrapper([bad]), tmp_path / "out-{}.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["out-manifest.tar.ndjson"]


def animated() -> Any:
    buffer = io.BytesIO()
    frames = [Image.new("L", (2, 2), color) for color in (0, 99, 200)]
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    return Image.open(buffer)


def test_pictures_of_several_frames_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds one picture, and .* has 3"):
        write_shards(IterableWrapper("a").map(lambda key: sample(png=animated())), tmp_path / "out-{}.tar")


def test_samples_that_a_tar_shard_holds(tmp_path: Path) -> None:
    image = Image.new("RGB", (3, 2), (1, 2, 3))
    given = {
        "__key__": "folder.d/" + "long " * 60 + "é",
        "__url__": "elsewhere.tar",
        "txt": "é\n",
        "caption.txt": "",
        "cls": np.uint8(3),
        "id": torch.tensor(7),
        "json": {"a": [np.float32(0.5), True, None, np.bool_(False)]},
        "npy": np.float64(2.5),
        "left.npy": torch.arange(6).reshape(2, 3).t(),
        "npz": {"x": np.ones((2, 0)), "y": torch.ones(2, requires_grad=True)},
        "pt": {"x": [torch.ones(2, dtype=torch.bfloat16)], "y": (1, "text")},
        "png": image,
        "jpg": b"\xff\xd8 any bytes",
        "bin": bytearray(b"\0" * 1025),
        "raw": memoryview(b"abc"),
    }
    done = write_shards(IterableWrapper([given]), tmp_path / "out-{}.tar")
    (got,) = WebDatasetReader(done.paths, handlers={"jpg": bytes})
    assert got.pop("__url__") == done.paths[0]
    assert set(got) == set(given) - {"__url__"}
    for name in ("__key__", "txt", "caption.txt", "cls", "id", "json", "npy", "jpg", "bin", "raw"):
        assert got[name] == given[name], name
    assert got["png"].tobytes() == image.tobytes()
    assert (got["left.npy"] == np.arange(6).reshape(2, 3).T).all()
    assert got["npz"]["x"].shape == (2, 0)
    assert got["pt"]["y"] == (1, "text")
    assert got["pt"]["x"][0].dtype == torch.bfloat16


def test_views_are_written_without_what_they_are_views_of(tmp_path: Path) -> None:
    whole = torch.arange(1 << 18)
    views = {
        "row": whole[5:7],
        "own": torch.ones(3),
        "turned": whole.view(2, -1).t()[:2],
        "all": torch.ones(1).expand(9),
    }
    given = {**views, "deep": [(whole[3], 1)], "learned": torch.ones(9, requires_grad=True)[2:]}
    made = write_shards(IterableWrapper([sample(pt=given)]), tmp_path / "s-{}.tar")
    assert os.path.getsize(made.paths[0]) < 20_000
    (got,) = WebDatasetReader(made.paths)
    for name, tensor in views.items():
        assert torch.equal(got["pt"][name], tensor)
    assert got["pt"]["deep"] == [(torch.tensor(3), 1)]
    assert got["pt"]["learned"].requires_grad


def test_two_samples_of_one_key(tmp_path: Path) -> None:
    samples = [{"__key__": f"{number % 3}", "txt": "x"} for number in range(6)]
    with pytest.raises(ValueError, match="two samples of .*out-0.tar have the key '0'"):
        write_shards(IterableWrapper(samples), tmp_path / "a" / "out-{}.tar")
    done = write_shards(IterableWrapper(samples), tmp_path / "b" / "out-{}.tar", max_samples=3)
    assert [row["__key__"] for row in WebDatasetReader(done.paths)] == ["0", "1", "2"] * 2


BAD_ROWS: list[tuple[list[Any], str]] = [
    ([[1]], "must be a dict of values"),
    ([{}], "must have columns"),
    ([{1: 2}], "must be a dict of values"),
    ([{"a": 1}, {"a": 1, "b": 2}], "all rows of a run have the same"),
    ([{"a": 1, "b": 2}, {"a": 1}], "all rows of a run have the same"),
    ([{"a": 1}, {"a": "x"}], "column 'a' cannot be written"),
    ([{"a": 1}] * 4 + [{"a": 1.5}], "column 'a' cannot be written as int64"),
    ([{"a": 1}] * 4 + [{"a": True}], "column 'a' cannot be written as int64"),
    ([{"a": "x"}] * 4 + [{"a": 3}], "column 'a' cannot be written as string"),
    ([{"a": [1]}] * 4 + [{"a": [1.5]}], "column 'a' cannot be written as list"),
    ([{"a": {"b": 1}}] * 4 + [{"a": {"c": 1}}], "would come back as"),
    ([{"a": Image.new("RGB", (2, 2))}], "images are encoded to bytes"),
    ([{"a": np.ones((2, 2))}], "column 'a' cannot be written"),
    ([{"a": None}], "column 'a' is empty in the first"),
    ([{"a": []}], "column 'a' is empty in the first"),
]


@pytest.mark.parametrize(("rows", "says"), BAD_ROWS)
def test_rows_that_no_parquet_shard_holds(rows: list[Any], says: str, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        write_shards(IterableWrapper(rows), tmp_path / "out-{}.parquet", max_samples=4)
    assert not list(tmp_path.glob(".*.part")), "nothing half-written"


def test_rows_of_a_schema(tmp_path: Path) -> None:
    rows = [
        {"a": np.int8(1), "b": torch.arange(3), "c": None, "d": {"x": b"1"}},
        {"d": {"x": None}, "c": [], "b": [4], "a": None},
    ]
    schema = pa.schema(
        [
            ("a", pa.int8()),
            ("b", pa.list_(pa.int32())),
            ("c", pa.list_(pa.string())),
            ("d", pa.struct([("x", pa.binary())])),
        ]
    )
    done = write_shards(IterableWrapper(rows), tmp_path / "out-{}.parquet", schema=schema)
    assert list(ParquetReader(done.paths)) == [
        {"a": 1, "b": [0, 1, 2], "c": None, "d": {"x": b"1"}},
        {"a": None, "b": [4], "c": [], "d": {"x": None}},
    ]


def test_a_schema_says_how_floats_are_kept_and_nothing_else_does(tmp_path: Path) -> None:
    schema = pa.schema([("x", pa.float32()), ("many", pa.list_(pa.float16()))])
    rows = [
        {"x": 0.1, "many": [0.1, math.nan]},
        {"x": np.float64(1e-9), "many": np.array([0.3, 2.0])},
        {"x": math.inf, "many": np.array([0.5])},
    ]
    done = write_shards(IterableWrapper(rows), tmp_path / "out-{}.parquet", schema=schema)
    got = list(ParquetReader(done.paths))
    assert [row["x"] for row in got] == [float(np.float32(row["x"])) for row in rows]
    assert [row["many"] for row in got[1:]] == [[float(np.float16(0.3)), 2.0], [0.5]]
    for wrong in ({"x": 1e300, "many": []}, {"x": 1.0, "many": [1e9]}, {"x": 1, "many": []}, {"x": 1.0, "many": [1]}):
        with pytest.raises(ValueError, match="would come back as"):
            write_shards(IterableWrapper([wrong]), tmp_path / "wrong" / "{}.parquet", schema=schema)
    unlike = ((np.float32(1), 0.1), (np.ones(2, np.float32), np.full(2, 0.1)), (np.arange(2), [1, True]))
    for number, (first, later) in enumerate(unlike):
        with pytest.raises(ValueError, match="would come back as|cannot be written as"):
            graph = IterableWrapper([{"x": first}] * 2 + [{"x": later}])
            write_shards(graph, tmp_path / f"{number}" / "{}.parquet", max_samples=2)


def test_row_groups_end_by_bytes(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    rows = IterableWrapper(range(10)).map(lambda number: {"a": bytes(5_000_000), "n": number})
    done = write_shards(rows, tmp_path / "out-{}.parquet")
    metadata = pq.ParquetFile(done.paths[0]).metadata
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [4, 4, 2]


BAD_DOCUMENTS: list[tuple[Any, str]] = [
    ("text", "one row of integers, got 'text'"),
    ({"tokens": [1]}, "one row of integers"),
    ([1.5], "one row of integers"),
    ([True], "one row of integers"),
    ([[1, 2], [3, 4]], "one row of integers"),
    ([[1, 2], [3]], "must be a sequence of tokens"),
    (3, "one row of integers"),
    (None, "one row of integers"),
    ([65536], "from 65536 to 65536, which <u2 cannot hold"),
    ([-1], "from -1 to -1"),
    ([1 << 70], "one row of integers"),
]


@pytest.mark.parametrize(("bad", "says"), BAD_DOCUMENTS)
def test_documents_that_no_token_file_holds(bad: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        write_shards(IterableWrapper([bad]), tmp_path / "out-{}.bin", dtype="uint16")
    assert [path.name for path in tmp_path.iterdir()] == ["out-manifest.bin.ndjson"]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64", "uint16", np.int32, ">i4"])
def test_documents_that_a_token_file_holds(dtype: Any, tmp_path: Path) -> None:
    given: list[Any] = [[1, 2], [], np.array([3], np.int64), torch.tensor([4, 5]), (6,), range(3), np.uint8([7])]
    if dtype == ">i4":
        with pytest.raises(ValueError, match="dtype must be one of"):
            write_shards(IterableWrapper(given), tmp_path / "out-{}.bin", dtype=dtype)
        return
    done = write_shards(IterableWrapper(given), tmp_path / "out-{}.bin", dtype=dtype, max_samples=4)
    assert [row.tolist() for row in TokenFile(done.paths)] == [list(map(int, each)) for each in given]  # type: ignore[attr-defined]
    windows = TokenFile(done.paths, length=2)
    assert windows[0].tolist() == [1, 2]


@pytest.mark.parametrize("value", [1, None, "x", [], {"a": [1, {"b": None}]}, 2**70, True, "é\u2028\n"])
def test_values_that_a_line_holds(value: Any, tmp_path: Path) -> None:
    done = write_shards(IterableWrapper([value, [value]]), tmp_path / "out-{}.jsonl.zst")
    assert list(JsonlReader(done.paths)) == [value, [value]]


@pytest.mark.parametrize("value", [b"x", {1: 2}, {None: 2}, float("inf"), torch.ones(1), {"a": [{2: 3}]}, {1, 2}])
def test_values_that_no_line_holds(value: Any, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match="JSON"):
        write_shards(IterableWrapper([value]), tmp_path / "out-{}.jsonl")


@pytest.mark.parametrize(
    ("path", "options", "says"),
    [
        ("out.tar", {}, "one field for the shard's number"),
        ("{}/out.tar", {}, "one field for the shard's number"),
        ("{}-{}.tar", {}, "one field for the shard's number"),
        ("{name}.tar", {}, "one field for the shard's number"),
        ("{0}.tar", {}, "one field for the shard's number"),
        ("{:x>q}.tar", {}, "one field for the shard's number"),
        ("{.tar", {}, "one field for the shard's number"),
        ("s3://bucket/{}.tar", {}, "to a local folder"),
        ("{}.zip", {}, "must end in .tar"),
        ("{}.bin", {}, "dtype must be one of"),
        ("{}.bin", {"dtype": "float32"}, "dtype must be one of"),
        ("{}.bin", {"dtype": "uint32"}, "dtype must be one of"),
        ("{}.tar", {"dtype": "uint16"}, "of tokens in .bin files"),
        ("{}.tar", {"schema": pa.schema([])}, "of .parquet files"),
        ("{}.parquet", {"schema": {"a": int}}, "must be a pyarrow.Schema"),
        ("{}.tar", {"max_bytes": 0}, "max_bytes must be at least 1"),
        ("{}.tar", {"max_samples": 0}, "max_samples must be at least 1"),
        ("{}.tar", {"seed": -1}, "seed must be at least 0"),
        (3, {}, "path must be a path"),
    ],
)
def test_wrong_arguments(path: Any, options: dict[str, Any], says: str, tmp_path: Path) -> None:
    path = path if path == 3 or path.startswith("s3") else tmp_path / path
    with pytest.raises((TypeError, ValueError), match=says):
        write_shards(IterableWrapper([1]), path, **options)
    assert list(tmp_path.iterdir()) == []


def test_the_manifest_is_json_and_knows_every_shard(tmp_path: Path) -> None:
    write("tar", tmp_path)
    run, *shards, end = map(json.loads, (tmp_path / "out-manifest.tar.ndjson").read_text().splitlines())
    assert run["run"] == {
        "path": "out-{:03d}.tar", "max_bytes": 1 << 30, "max_samples": 16, "seed": 3,
    }  # fmt: skip
    assert [shard["files"][0]["name"] for shard in shards] == [f"out-00{number}.tar" for number in range(4)]
    assert all(re.fullmatch("[0-9a-f]{64}", shard["state"]) for shard in shards)
    assert end == {"finished": True, "shards": 4, "samples": 60}


def test_the_folder_may_move(tmp_path: Path) -> None:
    write("tar", tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    assert write("tar", tmp_path / "there").new == 0


def test_kinds_of_one_name_have_a_folder_in_common(tmp_path: Path) -> None:
    for kind in KINDS:
        write(kind, tmp_path)
    for kind in KINDS:
        assert write(kind, tmp_path).new == 0
    assert len(list(WebDatasetReader(tmp_path / "out-*.tar"))) == SAMPLES
    assert len(list(JsonlReader(tmp_path / "out-*.jsonl"))) == SAMPLES


def test_parquet_holds_a_row_as_it_was_when_it_was_given(tmp_path: Path) -> None:
    def refilled() -> Any:
        array, grown = np.zeros(2, np.int64), []
        for number in range(3):
            array[:] = number
            grown.append(number)
            yield {"array": array, "grown": grown}

    done = write_shards(IterableWrapper(refilled(), deepcopy=False), tmp_path / "out-{}.parquet")
    assert [list(row["array"]) for row in ParquetReader(done.paths)] == [[0, 0], [1, 1], [2, 2]]
    assert [list(row["grown"]) for row in ParquetReader(done.paths)] == [[0], [0, 1], [0, 1, 2]]


@pytest.mark.parametrize(
    "values",
    [[1, 1.5], ["a", b"a"], [1.0, True], [{"a": 1}, {"b": 1}], [{1, 2}], [np.ma.array([1], mask=[1])]],
)
def test_parquet_refuses_what_would_come_back_as_something_else(values: list[Any], tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError)):
        write_shards(IterableWrapper([{"x": value} for value in values]), tmp_path / "out-{}.parquet")


@pytest.mark.parametrize("field", ["{:.1f}", "{:x}", "{:+d}", "{:>5}", "{!r}", "{:1.0e}"])
def test_only_plain_fields_name_shards(field: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one field for the shard's number"):
        write_shards(IterableWrapper([1]), tmp_path / f"out-{field}.jsonl")
