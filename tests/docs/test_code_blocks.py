"""Every Python block of the documentation runs as it stands, and prints what the text block after it says.

Those that name XLA run with the XLA tests, on its CPU device. Those of docs/trainers.md need the trainers, and run with
their tests (`make test-trainers`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.warm import Warm

os.environ.setdefault("PJRT_DEVICE", "CPU")

ROOT = Path(__file__).parents[2]
# Warnings are errors, but for the one that torchdata 0.11's StatefulDataLoader provokes under torch 2.13.
PEERS_WARNING = "ignore:'set_vital' is deprecated:UserWarning:torchdata.stateful_dataloader.stateful_dataloader"
WARNINGS = ["-W", "error::UserWarning", "-W", PEERS_WARNING]
BLOCK = re.compile(r"```python\n(?P<code>.*?)```(?:\s*```text\n(?P<output>.*?)```)?", re.DOTALL)


def blocks() -> list[tuple[str, str, str | None]]:
    found = []
    pages = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != "trainers.md"]
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *pages]:
        for match in BLOCK.finditer(page.read_text()):
            line = page.read_text()[: match.start()].count("\n") + 1
            found.append((f"{page.relative_to(ROOT)}:{line}", match["code"], match["output"]))
    return found


@pytest.fixture(scope="session")
def strict() -> Iterator[Warm]:
    process = Warm(*WARNINGS)
    process.start()
    yield process
    process.close()


def test_there_are_blocks() -> None:
    found = [name.partition(":")[0] for name, _, _ in blocks()]
    assert found.count("README.md") >= 1
    assert found.count("docs/first-ten-minutes.md") >= 3


def of_xla(code: str) -> bool:
    return re.search(r"torch_xla|PJRT_DEVICE|\"xla", code) is not None


@pytest.mark.parametrize(
    ("name", "code", "output"),
    [pytest.param(*block, id=block[0], marks=[pytest.mark.xla] if of_xla(block[1]) else []) for block in blocks()],
)
def test_block_runs_as_it_stands(name: str, code: str, output: str | None, strict: Warm, tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(code)
    if of_xla(code):  # its CPU device is not to be forked
        command = [sys.executable, *WARNINGS, str(script)]
        done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    else:
        done = strict.run([str(script)], cwd=tmp_path)
    assert done.returncode == 0, f"{name}:\n{done.stderr}"
    if output is not None:
        assert done.stdout == output


FIRST = ("README.md", "docs/resume.md")  # what people try, with either loader
SCRIPTS = [block for block in blocks() if block[0].startswith(FIRST) and "__main__" in block[1]]


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
@pytest.mark.parametrize(("name", "code", "output"), SCRIPTS, ids=[name for name, _, _ in SCRIPTS])
def test_first_scripts_run_under_every_start_method(
    name: str, code: str, output: str | None, method: str, tmp_path: Path
) -> None:
    """As on a platform, or a version of Python, where that is the default."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import multiprocessing\nmultiprocessing.set_start_method({method!r})\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    script = tmp_path / "block.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{name}:\n{done.stderr}"
    assert output is None or done.stdout == output


def headings(page: Path) -> set[str]:
    """What links may have after the #: as GitHub makes it of headings, and the site."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", page.read_text()):
            place = page.parent / target if target else page
            assert place.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in headings(place), (
                f"{page.name} links to #{anchor}, which {place.name} has not"
            )
