"""Reports in a real browser: both themes, a phone. Run by `make test-browser`, which needs Chromium on the PATH."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from tests.observe.views.figures import BUSY
from torchpipe.observe.views.report import report_html

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    assert found, f"none of {', '.join(NAMES)} is on the PATH: apt-get install chromium-headless-shell, for example"
    return found


def run(browser: str, page: Path, *options: str, width: int = 1000, height: int = 1400) -> str:
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--window-size={width},{height}", *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=page.parent).stdout


@pytest.mark.parametrize(("scheme", "dark"), [(1, False), (0, True)], ids=["light", "dark"])
def test_the_page_follows_the_theme(browser: str, tmp_path: Path, scheme: int, dark: bool) -> None:
    page, picture = tmp_path / "report.html", tmp_path / "shot.png"
    page.write_text(report_html(BUSY))
    run(browser, page, f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={picture}")
    shot = Image.open(picture).convert("L")
    counts = shot.histogram()
    assert (sum(counts[:64]) > 0.8 * sum(counts)) is dark
    assert (sum(counts[192:]) > 0.8 * sum(counts)) is not dark
    assert len(Image.open(picture).convert("RGB").getcolors(1 << 24) or ()) > 50, "nothing is drawn"


@pytest.mark.parametrize("width", [390, 820, 1400])
def test_nothing_is_wider_than_the_window(browser: str, tmp_path: Path, width: int) -> None:
    """What is wider scrolls in itself. Measured by a script of the test's; a frame stands in for the window."""
    (tmp_path / "report.html").write_text(report_html(BUSY))
    page = tmp_path / "measure.html"
    page.write_text(
        f'<iframe id="f" src="report.html" style="width:{width}px;height:900px;border:0"></iframe>'
        "<script>f.onload=()=>{let d=f.contentDocument,w=f.contentWindow.innerWidth;document.title=["
        "d.documentElement.scrollWidth-w,w,d.querySelectorAll('svg').length,"
        "Math.min(...[...d.querySelectorAll('p,td,th,h2')].map(e=>parseFloat(getComputedStyle(e).fontSize)))].join()}"
        "</script>"
    )
    told = re.search(
        r"<title>(.*?)</title>", run(browser, page, "--allow-file-access-from-files", "--dump-dom", width=1500)
    )
    assert told is not None
    over, inner, pictures, smallest = map(float, told[1].split(","))
    assert (over, inner, pictures) == (0, width, 2)
    assert smallest >= 13
