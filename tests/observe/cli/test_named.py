"""``file.py:name`` is that file, whatever it is called and whatever else has its name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from torchpipe.observe.named import object_named


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


def named(path: Path, text: str = "value = 'of the file'") -> Any:
    path.write_text(text)
    return object_named(f"{path}:value")


def test_a_package_of_the_same_name_is_another(tmp_path: Path) -> None:
    (tmp_path / "audited_pipeline").mkdir()
    (tmp_path / "audited_pipeline" / "__init__.py").write_text("value = 'of the package'")
    assert named(tmp_path / "audited_pipeline.py") == "of the file"
    assert object_named("audited_pipeline:value") == "of the package"


def test_a_module_of_the_same_name_that_is_imported_is_another(tmp_path: Path) -> None:
    assert named(tmp_path / "test_named.py") == "of the file"
    assert named(tmp_path / "json.py") == "of the file"


def test_two_files_of_one_name(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        assert named(tmp_path / name / "audited_twin.py", f"value = {name!r}") == name


@pytest.mark.parametrize("name", ["my.loader.py", "my-loader.py", "2 loaders.py", "class.py"])
def test_a_name_that_no_import_can_say(tmp_path: Path, name: str) -> None:
    assert named(tmp_path / name) == "of the file"


def test_it_is_imported_once_and_under_its_name(tmp_path: Path) -> None:
    text = "class value: pass"
    first = named(tmp_path / "audited_plain.py", text)
    assert object_named(f"{tmp_path}/audited_plain.py:value") is first
    assert first.__module__ == "audited_plain"
    assert named(tmp_path / "audited.twice.py", text) is object_named(f"{tmp_path}/audited.twice.py:value")


def test_one_that_raises_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "audited_raises.py"
    with pytest.raises(ZeroDivisionError):
        named(path, "value = 1\n1 / 0")
    assert named(path, "value = 'mended, and longer'") == "mended, and longer"
