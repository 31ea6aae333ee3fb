"""Whose tests a folder has (a ring's, the core's, or of everything together), and what rings add to the core's tables.

``python -m tests.rings alone`` deletes the rings and all tests but the core's in the working folder: see
``tools/core_alone.sh``. ``python -m tests.rings folders`` prints the folders of the rings' tests that can run here.
"""

from __future__ import annotations

import ast
import os
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

__all__ = ["FOLDERS", "OF_EVERYTHING", "added_by_rings", "cannot_run_here"]

ROOT = Path(__file__).resolve().parent.parent

# ring -> the folders of its tests; the first may have tables for the core's tests
FOLDERS: dict[str, tuple[str, ...]] = {
    "claims": ("claims",),
    "xla": ("xla",),
    "ray": ("actors",),
    "writing": ("writing",),
    "torchdata": ("torchdata",),
    "audit": ("audit",),
    "observe": ("observe", "browser", "notebook"),
    "integrations": ("integrations", "trainers"),
}
# Pages, examples, what is said of types: these tests use whatever a user may.
OF_EVERYTHING = ("docs", "examples", "typing", "benchmarks")


def cannot_run_here() -> list[str]:
    """The folders whose tests need more than the environment that this process runs in."""
    can = {
        "trainers": find_spec("pytorch_lightning"),  # `make test-trainers` has an environment for them
        "actors": find_spec("ray"),  # which not every Python has
        "browser": os.environ.get("TORCHPIPE_TEST_BROWSER"),  # `make test-browser`: needs a browser
        "notebook": os.environ.get("TORCHPIPE_TEST_NOTEBOOK"),  # `make test-notebook`: needs Jupyter's kernel
    }
    return [folder for folder, possible in can.items() if not possible]


def folders() -> list[str]:
    """The folders of all rings' tests."""
    return [folder for of_ring in FOLDERS.values() for folder in of_ring]


def added_by_rings(table: str) -> Iterator[ModuleType]:
    """The module ``table`` of each ring's folder that has one: the core's tables are longer by what stands there."""
    for of_ring in FOLDERS.values():
        name = f"tests.{of_ring[0]}.{table}"
        if find_spec(f"tests.{of_ring[0]}") and find_spec(name):
            yield import_module(name)


def modules_of_rings() -> list[str]:
    """The packages and modules of all rings. Read, not imported: nothing here needs torch."""
    tree = ast.parse((ROOT / "torchpipe" / "rings.py").read_text())
    table = next(node.value for node in tree.body if isinstance(node, ast.AnnAssign))
    assert table is not None
    return [module for modules in ast.literal_eval(table).values() for module in modules]


def leave_the_core(root: Path) -> None:
    """Delete the rings in ``root``, a copy, and all tests but the core's."""
    if (root / ".git").exists():
        raise SystemExit(f"{root} is a repository: make a copy of its files, as tools/core_alone.sh does")
    for module in modules_of_rings():
        path = root.joinpath(*module.split("."))
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.with_suffix(".py").unlink()
    for folder in [*OF_EVERYTHING, *folders()]:
        shutil.rmtree(root / "tests" / folder)


if __name__ == "__main__":
    if sys.argv[1:] == ["alone"]:
        leave_the_core(Path.cwd())
    else:
        # pytest collects a folder that it is given by name, whatever conftest.py says of it
        print(*(f"tests/{folder}" for folder in folders() if folder not in cannot_run_here()))
