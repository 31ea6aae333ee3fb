"""Type checkers, run as a user of the library would: they agree with ``good.py`` and find what ``bad.py`` marks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.typing import good

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FILES = ["good.py", "bad.py"]
MARKED = {
    (name, number)
    for name in FILES
    for number, line in enumerate((HERE / name).read_text().splitlines(), start=1)
    if "# error:" in line
}


def _run(*command: str) -> str:
    """The output of a checker; it must not reach for the network."""
    offline = {"NO_PROXY": "", "HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **offline},
        cwd=ROOT,
    )
    assert done.stdout, done.stderr
    return done.stdout


# Of torch, what no type in the files rests on: it is more than all else that mypy would read.
MYPY = """
[mypy]
[mypy-torch._dynamo.*,torch._inductor.*,torch.distributed.*,torch.export.*,torch.fx.*,torch.onnx.*]
follow_imports = skip
"""


def _mypy(folder: Path) -> dict[tuple[str, int], str]:
    settings = folder / "mypy.ini"
    settings.write_text(MYPY)
    options = ["--strict", "--config-file", str(settings), "--cache-dir", os.devnull, "--no-error-summary"]
    output = _run("mypy", *options, *(str(HERE / name) for name in FILES))
    found = re.findall(r"^(.*?):(\d+): error: (.*)$", output, re.MULTILINE)
    return {(Path(path).name, int(line)): message for path, line, message in found}


def _basedpyright(folder: Path) -> dict[tuple[str, int], str]:
    settings = {"include": [str(HERE / name) for name in FILES], "typeCheckingMode": "standard"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    output = _run("basedpyright", "-p", str(folder), "--pythonpath", sys.executable, "--outputjson")
    report = json.loads(output)
    assert report["summary"]["filesAnalyzed"] >= len(FILES), output
    return {
        (Path(item["file"]).name, item["range"]["start"]["line"] + 1): item["message"]
        for item in report["generalDiagnostics"]
        if item["severity"] == "error"
    }


@pytest.mark.nightly
@pytest.mark.parametrize("checker", [_mypy, _basedpyright])
def test_checkers_infer_the_types_and_find_the_mistakes(checker: object, tmp_path: Path) -> None:
    found = checker(tmp_path)  # type: ignore[operator]
    unexpected = {place: message for place, message in found.items() if place not in MARKED}
    assert not unexpected, f"errors in right code: {unexpected}"
    assert set(found) == MARKED, f"mistakes that were not found: {sorted(MARKED - set(found))}"


def test_the_typed_file_runs() -> None:
    assert good.chain() == [["1", "2"]]
    assert good.long_chain() == [3, [float] * 3]
    assert good.loader() == ["1", "2"]
    assert good.map_style() == [1, 1]
    assert good.own_nodes() == [["a", "a", "b", "b"], [1, 2]]
