"""``install()``: code that was written for torchdata 0.9 or older finds what it imports; nothing real is put aside."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torchdata.test_names import offered, told
from tests.warm import Warm

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def torch_alone() -> Iterator[Warm]:
    """Runs scripts in processes that have imported nothing but torch."""
    with Warm(modules=["torch"], project=False) as process:
        yield process


def run(torch_alone: Warm, tmp_path: Path, text: str) -> str:
    """What a script says."""
    script = tmp_path / "script.py"
    script.write_text(text)
    done = torch_alone.run([str(script)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_name_of_the_inventory_imports_by_torchdatas_path(torch_alone: Warm, tmp_path: Path) -> None:
    absent = told("Names that are not here")
    names = [tuple(key.split()) for key in offered() if "." not in key.split()[1]]
    there = [(module, name) for module, name in names if name not in absent]
    assert len(there) > 110
    lines = [f"from {module} import {name}" for module, name in there]
    text = "\n".join(["from torchpipe.torchdata import install", "install()", *lines, "print('all')"])
    assert run(torch_alone, tmp_path, text) == "all"


INSTALLED = """
import sys
import torchdata  # a newer one, without DataPipes
from torchpipe.torchdata import install
install()
finders = len(sys.meta_path)
install()
assert len(sys.meta_path) == finders
assert not [name for name in sys.modules if name.startswith(("torchdata.dataloader2", "reading_services"))]
assert torchdata.datapipes.iter.IterableWrapper.__name__ == "IterableWrapper"

import torchpipe
import torchdata.datapipes as dp
import torchdata.datapipes.iter
import torchpipe.torchdata.datapipes.iter as ours
assert torchdata.datapipes.iter is dp.iter is ours and ours.__name__ == "torchpipe.torchdata.datapipes.iter"
assert dp.iter.CSVParser is torchpipe.iter.CSVParser and dp.map.SequenceWrapper is torchpipe.map.SequenceWrapper
assert {"CSVParser", "Mapper"} <= {*dir(dp.iter)} & {*dp.iter.__all__}
taken = {}
exec("from torchdata.datapipes.iter import *", taken)
assert taken["Zipper"] is torchpipe.iter.Zipper
assert "reading_services" not in sys.modules
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
assert DataLoader2 is torchpipe.DataLoader2 and MultiProcessingReadingService.__module__.startswith("reading_services")

within = ["torchdata.datapipes.iter.limiting", "torchdata.datapipes.map.zipper"]
within += [f"torchpipe.{name}" for name in within]
for missing in ("torchdata.datapipes.nope", "torchdata.datapipes.iter.util", "torchdata.nope", *within):
    for name in (missing, f"{missing}.taker"):  # files of torchpipe's are imported by their own names alone
        try:
            __import__(name)
        except ModuleNotFoundError as error:
            assert error.name == missing, error
        else:
            raise AssertionError(name)

from torchdata.nodes import Batcher, IterableWrapper, Loader
print(list(Loader(Batcher(IterableWrapper(range(4)), 2))))
from torchdata.stateful_dataloader import StatefulDataLoader
print([batch.tolist() for batch in StatefulDataLoader(range(4), batch_size=2)])
import pickle
print(list(pickle.loads(pickle.dumps(dp.iter.IterableWrapper(range(3)).map(str)))))
"""


def test_a_newer_torchdata_keeps_what_it_has(torch_alone: Warm, tmp_path: Path) -> None:
    said = run(torch_alone, tmp_path, INSTALLED).splitlines()
    assert said == ["[[0, 1], [2, 3]]", "[[0, 1], [2, 3]]", "['0', '1', '2']"]


REFUSED = """
import sys
sys.path.insert(0, {folder!r})
{before}
from torchpipe.torchdata import install
finders = list(sys.meta_path)
try:
    install()
except ImportError as error:
    print(error)
assert sys.meta_path == finders
import torchdata.datapipes
print(torchdata.datapipes.MINE)
"""


@pytest.mark.parametrize("before", ["", "import torchdata", "import torchdata.datapipes"], ids=["new", "parent", "all"])
def test_an_older_torchdata_is_not_put_aside(before: str, torch_alone: Warm, tmp_path: Path) -> None:
    old = tmp_path / "site" / "torchdata" / "datapipes"
    old.mkdir(parents=True)
    (old.parent / "__init__.py").touch()
    (old / "__init__.py").write_text("MINE = 'the older one'")
    said, mine = run(torch_alone, tmp_path, REFUSED.format(folder=str(old.parents[1]), before=before)).splitlines()
    assert "has torchdata.datapipes itself, which install() does not replace: uninstall it" in said
    assert mine == "the older one"


def test_what_somebody_else_has_put_there_is_not_put_aside(torch_alone: Warm, tmp_path: Path) -> None:
    text = """
import sys, types
sys.modules["torchdata"] = types.ModuleType("torchdata")
sys.modules["torchdata.datapipes"] = types.ModuleType("torchdata.datapipes")
from torchpipe.torchdata import install
try:
    install()
except ImportError as error:
    print(error.name)
"""
    assert run(torch_alone, tmp_path, text) == "torchdata.datapipes"


MISSING = """
import importlib.util
assert importlib.util.find_spec("torchdata") is None
from torchpipe.torchdata import install
install()
import torchdata
print(list(torchdata.datapipes.iter.IterableWrapper([1])))
from torchdata.datapipes.iter import IterableWrapper
print(list(IterableWrapper(range(3))), torchdata.datapipes.iter.Mapper.__name__)
try:
    import torchdata.nodes
except ModuleNotFoundError as error:
    print(error.name)
"""


def test_torchdata_may_be_missing(tmp_path: Path) -> None:
    """In a Python that has all packages of this one but torchdata."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not path.name.startswith("torchdata"):
            (packages / path.name).symlink_to(path)
    script = tmp_path / "script.py"
    script.write_text(MISSING)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(packages)])}
    command = [sys.executable, "-S", str(script)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["[1]", "[0, 1, 2] Mapper", "torchdata.nodes"], done.stderr


RUN = """
from torchpipe.torchdata import install
install()
from tests.torchdata.old_library import main
if __name__ == "__main__":
    main({method!r})
"""


@pytest.mark.parametrize("method", ["in process", "fork", pytest.param("spawn", marks=pytest.mark.nightly)])
def test_what_was_written_for_torchdata_runs_unchanged(method: str, torch_alone: Warm, tmp_path: Path) -> None:
    assert run(torch_alone, tmp_path, RUN.format(method=method)).endswith("exact")
