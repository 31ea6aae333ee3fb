"""Runs torchdata 0.9's own tests, and torch's tests of its nodes, with the imports changed to torchpipe's:

    git clone --depth 1 --branch v0.9.0 https://github.com/pytorch/data
    python -m tools.torchdata_tests data [pytorch/test/test_datapipe.py of torch 2.6]

Needs expecttest and parameterized beside the project's test environment. Each statement of a test counts by itself, so
that one deliberate difference hides nothing behind it. Those in tests/torchdata/torchdata09_differences.txt are known,
each with a kind of which tools/peer_suites.md gives the reason; any other makes this fail, as does a known one that is
gone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tools.torchdata_tests.rewriting import rewritten, with_imports
from tools.torchdata_tests.softly import FOLLOWS

ROOT = Path(__file__).parents[2]
KNOWN = ROOT / "tests" / "torchdata" / "torchdata09_differences.txt"
LEFT_OUT = {
    "test_audio_examples.py": "examples that need torchaudio",
    "test_text_examples.py": "examples that need torchtext and downloads",
    "test_aistore.py": "needs AIStore's old client",
    "test_period.py": "needs Google Drive",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("torchdata", type=Path, help="a clone of pytorch/data at v0.9.0")
    parser.add_argument("torchs", type=Path, nargs="?", help="test/test_datapipe.py of torch 2.6.0")
    parser.add_argument("-k", dest="only", default="", help="only files whose names hold this")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for each file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, serving(options.torchdata) as address:
        there = Path(folder)
        files = prepare(options, there, address)
        records = [record for name in files for record in run(name, there, options.timeout)]
    return report(records, {name.split("/")[-1] for name in files})


class serving:
    """A web server of this machine, which has what the tests would download from GitHub."""

    def __init__(self, clone: Path) -> None:
        self._folder = tempfile.TemporaryDirectory()
        there = Path(self._folder.name) / "pytorch" / "data"
        there.mkdir(parents=True)
        (there / "main").symlink_to(clone.resolve())
        handler = partial(_Quiet, directory=self._folder.name)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)

    def __enter__(self) -> str:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._folder.cleanup()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


def prepare(options: argparse.Namespace, there: Path, address: str) -> list[str]:
    """Rewrites the tests into the folder. Returns their files, relative to it."""
    shutil.copytree(options.torchdata / "test", there, dirs_exist_ok=True)
    chosen = [*there.glob("test_*.py"), *there.glob("dataloader2/test_*.py")]
    sources = {str(file.relative_to(there)): file for file in chosen if file.name not in LEFT_OUT}
    if options.torchs:
        sources["test_datapipe.py"] = options.torchs
    names = sorted(name for name in sources if options.only in name)
    for name in names:
        text = sources[name].read_text().replace("https://raw.githubusercontent.com", address)
        (there / name).write_text(rewritten(Path(name).name, text, torchs=name == "test_datapipe.py"))
    for script in there.glob("bin/*.py"):  # what they start
        script.write_text(with_imports(script.read_text()))
    shared = there / "_utils" / "_common_utils_for_test.py"
    shared.write_text(shared.read_text().replace("torchdata.datapipes.iter", "torchpipe.iter"))
    return names


def run(name: str, there: Path, timeout_s: float) -> list[dict[str, Any]]:
    """Runs one file by pytest. Returns what it noted: statements, and tests with their outcomes."""
    record = there / "record.jsonl"
    record.write_text("")
    path = os.pathsep.join([str(ROOT), str(there), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "SOFTLY_RECORD": str(record)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tools.torchdata_tests.softly", "-p", "no:cacheprovider"]
    command += ["--rootdir", str(there), "-c", os.devnull, name]
    try:
        done = subprocess.run(
            command, cwd=there, env=environment, timeout=timeout_s, check=False, capture_output=True, text=True
        )
        output = done.stdout
    except subprocess.TimeoutExpired as error:
        output = f"not done after {timeout_s:.0f} s\n{(error.stdout or b'').decode(errors='replace')}"
    print(f"{name}: {output.strip().splitlines()[-1] if output.strip() else 'no output'}", flush=True)
    noted = [json.loads(line) for line in record.read_text().splitlines()]
    if not any("test" in entry for entry in noted):
        print(output[-3000:])
        noted.append({"place": f"{name}:0", "error": "the file did not run"})
    return noted


def report(records: list[dict[str, Any]], files: set[str]) -> int:
    errors = {record["place"]: record["error"] for record in records if record.get("error")}
    follows = {place for place, error in errors.items() if error == FOLLOWS}
    errors = {place: error for place, error in errors.items() if place not in follows}
    places = {record["place"] for record in records if "place" in record}
    tests = Counter({record["test"]: record["outcome"] for record in records if "test" in record}.values())
    known = dict(re.findall(r"^(\S+:\d+) (.+)$", KNOWN.read_text(), re.MULTILINE)) if KNOWN.exists() else {}
    known = {place: reason for place, reason in known.items() if place.split(":")[0] in files}
    print(f"\n{sum(tests.values())} tests ran: {dict(tests)}")
    hold = len(places) - len(errors) - len(follows)
    print(f"{len(places)} statements ran: {hold} hold, {len(errors)} differ, {len(follows)} need what these make")
    for reason, number in Counter(known.get(place, "NOT KNOWN") for place in errors).most_common():
        print(f"  {number:3} {reason}")
    unknown, gone = sorted(errors.keys() - known.keys()), sorted(known.keys() - errors.keys())
    for place in unknown:
        print(f"NOT KNOWN: {place} {errors[place]}")
    for place in gone:
        print(f"GONE: {place} {known[place]}: take it off the list")
    return 1 if unknown or gone else 0


if __name__ == "__main__":
    sys.exit(main())
