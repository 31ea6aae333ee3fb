"""Run another loader's own test files against torchpipe's ``DataLoader``: the import changed, nothing else.

    python tools/peer_tests.py pytorch/test/test_dataloader.py data/test/stateful_dataloader/test_state_dict.py

Each file is copied twice, as it is and with ``DataLoader`` and ``StatefulDataLoader`` imported from torchpipe, and both
run in this environment, with torch's and torchdata's own loaders beside it. Prints counts, and every test that fails
with ours. Fetches nothing: the files are of a checkout of yours, and what they import (expecttest, parameterized,
torchdata) is installed. A process that their tests wait for has ten minutes (``JOIN_TIMEOUT``), for slow machines.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

LOADERS = {"torch.utils.data": "DataLoader", "torchdata.stateful_dataloader": "StatefulDataLoader"}
OURS = {
    "torch.utils.data": "torchpipe import DataLoader",
    "torchdata.stateful_dataloader": "torchpipe.torchdata.stateful_dataloader import StatefulDataLoader",
}
IMPORT = re.compile(
    r"^([ \t]*)from (torch\.utils\.data|torchdata\.stateful_dataloader) import (\([^)]*\)|[^\n(]*)$", re.M
)
DOTTED = re.compile(r"\btorch\.utils\.data\.DataLoader\(")


def with_ours(text: str) -> str:
    """``text`` with its loader imported from torchpipe, in the scripts too that it holds as strings."""

    def change(found: re.Match[str]) -> str:
        indent, module, listed = found.groups()
        names = [name.strip() for name in listed.strip("()").split(",") if name.strip()]
        own = [name for name in names if name.split()[0] == LOADERS[module]]
        if not own:
            return found[0]
        others = [name for name in names if name not in own]
        kept = [f"{indent}from {module} import {', '.join(others)}"] if others else []
        ours = [f"{indent}from {OURS[module]} as {name.split()[-1]}" for name in own]
        return "\n".join(kept + ours)

    return DOTTED.sub("__import__('torchpipe').DataLoader(", IMPORT.sub(change, text))


def run(folder: Path, name: str, arguments: list[str]) -> dict[str, str]:
    """What became of each test of the file: passed, failed or skipped."""
    report = folder / "report.xml"
    path = os.pathsep.join([str(Path.cwd()), str(folder), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir=.", "-q", "-p", "no:cacheprovider"]
    command += [f"--junitxml={report}", name, *arguments]
    with (folder / "log.txt").open("w") as log:
        subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, stdout=log, stderr=log, check=False)
    if not report.exists():
        sys.exit(f"pytest could not run {name}:\n{(folder / 'log.txt').read_text()[-2000:]}")
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        key = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        failed = bool(kinds & {"failure", "error"}) or found.get(key) == "failed"
        found[key] = "failed" if failed else "skipped" if "skipped" in kinds else "passed"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--only", choices=("ours", "theirs"))
    parser.add_argument("--pytest", default="", help="arguments for pytest, in one string")
    given = parser.parse_args()
    for file in given.files:
        text = re.sub(r"(?m)^JOIN_TIMEOUT = .*", "JOIN_TIMEOUT = 600.0", file.read_text())
        for which in (given.only,) if given.only else ("theirs", "ours"):
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / file.name).write_text(with_ours(text) if which == "ours" else text)
                found = run(Path(folder), file.name, given.pytest.split())
            counts = Counter(found.values())
            print(
                f"{file.name}, {which}: "
                + ", ".join(f"{counts[kind]} {kind}" for kind in ("passed", "failed", "skipped"))
            )
            print(
                "".join(f"  failed: {test}\n" for test, kind in found.items() if kind == "failed"), end="", flush=True
            )


if __name__ == "__main__":
    main()
