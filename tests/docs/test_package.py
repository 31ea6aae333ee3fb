"""The wheel: what is in it, what its README says, and that the first script runs where nothing else is installed."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
import zipfile
from email import message_from_string
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = folder.glob("torchpipe_data-0.1.0-*.whl")
    return found


def test_the_wheel_has_the_packages_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names} == {
        "torchpipe",
        "reading_services",
        "torchpipe_data-0.1.0.dist-info",
    }
    assert {"torchpipe/py.typed", "reading_services/py.typed", "torchpipe/node/functional_methods.pyi"} <= set(names)
    modules = {
        str(path.relative_to(ROOT))
        for package in ("torchpipe", "reading_services")
        for path in (ROOT / package).rglob("*.py")
    }
    assert modules <= set(names)


def test_links_of_the_description_lead_somewhere(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        about = message_from_string(archive.read("torchpipe_data-0.1.0.dist-info/METADATA").decode())
    text = str(about.get_payload())
    assert "from torchpipe import DataLoader" in text
    assert re.findall(r"\]\((?!https?:)[^)]*\)", text) == []
    assert about["Keywords"]
    assert about["License-Expression"] == "BSD-3-Clause"


def required(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """The distributions here that one needs, and what these need, without extras."""
    try:
        found[name] = distribution(name)
    except PackageNotFoundError:  # of another platform, or provided otherwise
        return found
    for line in found[name].requires or ():
        requirement = Requirement(line)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and requirement.name.lower().replace("_", "-") not in found:
            required(requirement.name.lower().replace("_", "-"), found)
    return found


def test_the_first_script_runs_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """Its dependencies are those of the metadata, taken from this environment: a network is not needed."""
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.run([str(python), "-c", ask], capture_output=True, text=True, check=True).stdout.strip())
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    with zipfile.ZipFile(wheel) as archive:
        about = message_from_string(archive.read("torchpipe_data-0.1.0.dist-info/METADATA").decode())
    needed: dict[str, Distribution] = {}
    for line in about.get_all("Requires-Dist", []):
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            required(requirement.name.lower(), needed)
    assert {"torch", "numpy", "msgpack"} <= needed.keys()
    for package in needed.values():
        for top in {file.parts[0] for file in package.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / top).exists():
                (site / top).symlink_to(package.locate_file(top))  # type: ignore[arg-type]
    code, output = re.findall(r"```python\n(.*?)```\s*```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[
        0
    ]
    script = tmp_path / "first.py"
    script.write_text(code)
    command = [str(python), "-I", str(script)]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == output
    assert "tests" not in {path.name for path in site.iterdir()}
