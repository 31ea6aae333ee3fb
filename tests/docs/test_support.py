"""docs/support.md says what works where, as it was found by trying; and that of everything there is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.support import PAGE, families, services


def test_the_page_has_every_family_and_every_service() -> None:
    page = PAGE.read_text()
    for family, keys in families().items():
        assert f"{family} ({len(keys)})" in page, "write it anew: python -m tests.docs.support"
    for name in services():
        assert re.search(re.escape(name) + "[;.]", page), "write it anew: python -m tests.docs.support"
    assert not re.search(r"not L\d", page)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_the_page_is_what_trying_finds(tmp_path: Path) -> None:
    """In a process of its own, which makes a process group and ignores warnings."""
    found = tmp_path / "support.md"
    command = [sys.executable, "-m", "tests.docs.support", str(found)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert found.read_text() == PAGE.read_text()
