"""Every Python block of the documentation runs as it stands, and prints what the text block after it says.

Those that name XLA run with the XLA tests, on its CPU device. Those of docs/trainers.md, and those that import
transformers, need the trainers, and run with their tests (`make test-trainers`).
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.warm import XLA_MODULES, Warm

os.environ.setdefault("PJRT_DEVICE", "CPU")

ROOT = Path(__file__).parents[2]
# Warnings are errors, but for the one that torchdata 0.11's StatefulDataLoader provokes under torch 2.13.
PEERS_WARNING = "ignore:'set_vital' is deprecated:UserWarning:torchdata.stateful_dataloader.stateful_dataloader"
# Of torch 2.9's own distributed checkpoint, which looks at the storage of what it saves.
DCPS_WARNING = "ignore:TypedStorage is deprecated:UserWarning"
WARNINGS = ["-W", "error::UserWarning", "-W", PEERS_WARNING, "-W", DCPS_WARNING]
BLOCK = re.compile(r"```python\n(?P<code>.*?)```(?:\s*```text\n(?P<output>.*?)```)?", re.DOTALL)


PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "skills/torchpipe/SKILL.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
SCRIPTS_OF_PAGES = ("examples/text_with_images.py",)  # which a page shows in part


def blocks() -> list[tuple[str, str, str | None]]:
    found = []
    for page in PAGES:
        if page.name == "trainers.md":
            continue
        for match in BLOCK.finditer(page.read_text()):
            if "\nfrom transformers import" in match["code"]:
                continue
            line = page.read_text()[: match.start()].count("\n") + 1
            found.append((f"{page.relative_to(ROOT)}:{line}", match["code"], match["output"]))
    found += [(script, (ROOT / script).read_text(), None) for script in SCRIPTS_OF_PAGES]
    return found


@pytest.fixture(scope="session")
def strict() -> Iterator[Warm]:
    with Warm(*WARNINGS) as process:
        yield process


@pytest.fixture(scope="session")
def strict_xla() -> Iterator[Warm]:
    with Warm(*WARNINGS, modules=XLA_MODULES) as process:
        yield process


def test_there_are_blocks() -> None:
    found = [name.partition(":")[0] for name, _, _ in blocks()]
    assert found.count("README.md") >= 1
    assert found.count("docs/dataloader.md") >= 2
    assert found.count("skills/torchpipe/SKILL.md") >= 3


def of_xla(code: str) -> bool:
    return re.search(r"torch_xla|PJRT_DEVICE|\"xla", code) is not None


def run_as_it_stands(block: tuple[str, str, str | None], warm: Warm, folder: Path) -> None:
    name, code, output = block
    script = folder / "block.py"
    script.write_text(code)
    done = warm.run([str(script)], cwd=folder)
    assert done.returncode == 0, f"{name}:\n{done.stderr}"
    if output is not None:
        assert done.stdout == output


def of_ray(block: tuple[str, str, str | None]) -> bool:
    return block[0].startswith("docs/ray.md")


def once_a_night(block: tuple[str, str, str | None]) -> bool:
    """Long scripts, which test_jobs.py starts as well."""
    return block[0].startswith(("docs/ddp.md", "docs/preemption.md")) and "def train(" in block[1]


def marks_of(block: tuple[str, str, str | None]) -> list[Any]:
    if once_a_night(block):
        return [pytest.mark.nightly]
    return [pytest.mark.sample] if block[0].startswith("README") else []


PLAIN = [
    pytest.param(block, id=block[0], marks=marks_of(block))
    for block in blocks()
    if not of_xla(block[1]) and not of_ray(block)
]


@pytest.mark.parametrize("block", PLAIN)
def test_block_runs_as_it_stands(block: tuple[str, str, str | None], strict: Warm, tmp_path: Path) -> None:
    run_as_it_stands(block, strict, tmp_path)


@pytest.mark.xla
@pytest.mark.parametrize("block", [block for block in blocks() if of_xla(block[1])], ids=lambda block: block[0])
def test_block_of_xla_runs_as_it_stands(block: tuple[str, str, str | None], strict_xla: Warm, tmp_path: Path) -> None:
    run_as_it_stands(block, strict_xla, tmp_path)


@pytest.mark.ray
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.parametrize("block", filter(of_ray, blocks()), ids=lambda block: block[0])
def test_block_of_ray_runs_as_it_stands(block: tuple[str, str, str | None], tmp_path: Path) -> None:
    """In a process of its own, which starts a Ray of its own, whatever runs on this machine."""
    name, code, output = block
    script = tmp_path / "block.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=os.environ | {"RAY_ADDRESS": "local"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{name}:\n{done.stderr}"
    if output is not None:
        assert done.stdout.endswith(output)


FIRST = (
    "README.md",
    "docs/dataloader.md",
    "docs/pipelines.md",
    "docs/resume.md",
)  # what people try, with either loader
SCRIPTS = [block for block in blocks() if block[0].startswith(FIRST) and "__main__" in block[1]]


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("name", "code", "output"), SCRIPTS, ids=[name for name, _, _ in SCRIPTS])
def test_first_scripts_run_under_every_start_method(
    name: str, code: str, output: str | None, method: str, warm: Warm, tmp_path: Path
) -> None:
    """As on a platform, or a version of Python, where that is the default."""
    default = f"import multiprocessing\nif __name__ == '__main__':\n    multiprocessing.set_start_method({method!r})\n"
    script = tmp_path / "block.py"
    script.write_text(default + code)
    done = warm.run([str(script)], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, f"{name}:\n{done.stderr}"
    assert output is None or done.stdout == output


def headings(page: Path) -> set[str]:
    """What links may have after the #: as GitHub makes it of headings, and the site."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_lead_somewhere() -> None:
    for page in [*PAGES, *(ROOT / name for name in ("CHANGELOG.md", "llms.txt", "tools/peer_suites.md"))]:
        for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", page.read_text()):
            place = page.parent / target if target else page
            assert place.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in headings(place), (
                f"{page.name} links to #{anchor}, which {place.name} has not"
            )
