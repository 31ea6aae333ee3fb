"""The report as a file: one page, whole, with everything in it, and nothing that is fetched or run."""

from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.measured import measured
from tests.observe.views.figures import BUSY
from tests.observe.views.held import held_loader, run_with_a_death
from torchpipe import DataLoader
from torchpipe.observe.views.report import report_html, write_report


class Page(HTMLParser):
    """Checks that what is opened is closed, and keeps the texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)


def test_the_page_says_everything_and_needs_nothing() -> None:
    text = report_html(BUSY, "digits <train>")
    page = Page(text)
    said = " ".join(page.texts)
    for part in (
        BUSY.advice.sentence.replace("`", " "),
        BUSY.advice.change.replace("`", " "),
        "digits <train>",
        "died by SIGKILL <was replaced>",
        "201 of 750",
        "86 %",
        "worker 1",
        "4 ms",
        "2 (now)",
        "\N{REPLACEMENT CHARACTER}[31m",  # instead of a control character in a name
    ):
        assert part in said, part
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "use"}
    assert not {name for _, attributes in page.tags for name in attributes} & {"href", "src", "xlink:href", "onload"}
    assert not re.search(r"url\(|@import|//(?!www\.w3\.org/2000/svg)", text)
    assert text.count("prefers-color-scheme:dark")
    assert ("meta", {"name": "viewport", "content": "width=device-width,initial-scale=1"}) in page.tags


def test_a_loader_reports_of_a_run_with_a_death_in_it(tmp_path: Path) -> None:
    target = tmp_path / "pages" / "report.html"
    target.parent.mkdir()
    with held_loader(tmp_path) as loader:
        assert loader.report(target, title="before anything") == target
        assert "Nothing has been iterated yet." in target.read_text()
        run_with_a_death(loader, tmp_path)
        loader.report(str(target))
        page = Page(target.read_text())
        said = " ".join(page.texts)
        assert "restart" in said
        assert "SIGKILL" in said
        assert "Mapper(Held)" in said
        assert "120 of 120" in said
        with pytest.raises(FileNotFoundError, match="does not exist, so report.html"):
            loader.report(tmp_path / "no folder" / "report.html")
        with pytest.raises(OSError, match=r"nothing can be written there .*'/proc/report.html'"):
            loader.report("/proc/report.html")
        with pytest.raises(IsADirectoryError, match="name a file in it"):
            loader.report(tmp_path)
    assert [file.name for file in target.parent.iterdir()] == ["report.html"]
    loader.report(target)  # after it has been closed
    assert "120 of 120" in target.read_text()


@pytest.mark.parametrize("more", [{}, {"num_workers": 2, "worker_method": "thread"}], ids=["here", "threads"])
def test_a_torch_style_loader_reports_too(more: dict[str, object], tmp_path: Path) -> None:
    loader = measured(DataLoader(range(12), batch_size=3, **more))  # type: ignore[arg-type]
    for _ in loader:
        pass
    said = " ".join(Page(loader.report(tmp_path / "r.html").read_text()).texts)
    for part in ("4 of 4", "SequentialSampler", "range[...]", "default_collate"):
        assert part in said
    assert "default_collate" in loader.explain()


def test_who_may_read_a_page_is_the_umasks_affair(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    before = os.umask(0o077)
    try:
        assert write_report(BUSY, page).stat().st_mode & 0o777 == 0o600
        os.umask(0o027)
        assert write_report(BUSY, page).stat().st_mode & 0o777 == 0o600, "as the file that was there"
        page.unlink()
        assert write_report(BUSY, page).stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
