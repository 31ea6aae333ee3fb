"""The graph as SVG and Mermaid: everything is in it, nothing that a name holds breaks it, nothing is fetched."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

from reading_services import MultiProcessingReadingService
from tests.observe.views.figures import BUSY, HOSTILE
from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper
from torchpipe.observe.views.report import timeline_svg
from torchpipe.observe.views.svg import graph_mermaid, graph_svg
from torchpipe.stats import Event

SVG = "{http://www.w3.org/2000/svg}"


def boxes(root: ElementTree.Element, kind: str) -> list[tuple[float, float, float, float]]:
    """(left, top, right, bottom) of each rectangle of a class."""
    found = []
    for item in root.iter(f"{SVG}rect"):
        if kind in item.get("class", "").split():
            x, y, width, height = (float(item.get(name, "")) for name in ("x", "y", "width", "height"))
            found.append((x, y, x + width, y + height))
    return found


def test_every_node_stands_in_a_box_of_its_process() -> None:
    root = ElementTree.fromstring(graph_svg(BUSY))  # well-formed, whatever names hold
    groups, nodes = boxes(root, "group"), boxes(root, "box")
    assert len(groups) == 3
    assert len(nodes) == len(BUSY.nodes) + 1  # and the loop
    inside = [sum(g[0] <= n[0] and g[1] <= n[1] and n[2] <= g[2] and n[3] <= g[3] for g in groups) for n in nodes]
    assert sorted(inside) == [0] + [1] * len(BUSY.nodes)
    for one, other in ((a, b) for a in nodes for b in nodes if a < b):
        assert one[2] <= other[0] or one[3] <= other[1] or other[3] <= one[1], "two boxes overlap"
    said = " ".join(root.itertext())
    assert "2 worker processes (spawn)" in said
    assert "86 % of the time" in said
    assert "waited 75 %" in said
    assert [box for box in root.iter(f"{SVG}rect") if "slowest" in box.get("class", "")]


def test_a_picture_needs_nothing_from_elsewhere() -> None:
    text = graph_svg(BUSY)
    assert not re.search(r"(href|src)=|url\(|@import|<script", text)
    assert text.count("http") == text.count('xmlns="http://www.w3.org/2000/svg"') == 1
    assert "prefers-color-scheme:dark" in text


def test_mermaid_has_every_node_and_arrow() -> None:
    lines = graph_mermaid(BUSY).splitlines()
    assert lines[0] == "flowchart TD"
    assert {line.strip() for line in lines if "-->" in line} == {
        "n1 --> n2",
        "n2 --> n3",
        "n2 --> n4",
        "n3 --> n5",
        "n4 --> n5",
        "n5 --> n6",
        "n6 --> loop",
    }
    (hostile,) = [line for line in lines if line.strip().startswith('n4["')]
    assert HOSTILE not in hostile
    assert not set('<>&"') & set(re.sub(r'^\s*n4\["|"\]$', "", hostile))


def test_a_loader_explains_itself_in_every_format_before_and_after_it_has_run() -> None:
    graph = IterableWrapper(range(8)).sharding_filter().map(abs).to_device("cpu")
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(num_workers=2)) as loader:
        before = loader.explain("svg")
        assert loader.explain() == loader.explain(format="text") == loader.reading_service.explain()
        assert list(loader) == list(range(8))
        for text in (before, loader.explain("svg"), loader.explain("mermaid")):
            for word in ("IterableWrapper", "ShardingFilter", "Mapper(abs)", "ToDevice", "2 worker processes"):
                assert word in text


def test_what_happened_after_the_last_moment_is_in_the_picture_over_time() -> None:
    began = BUSY.began_at or 0.0
    late = Event(at=began + 2.25, kind="restart", process="worker 1", text="late")
    after = Event(at=began + 900.0, kind="restart", process="worker 1", text="of another time")
    text = timeline_svg(replace(BUSY, events=(*BUSY.events, late, after)))
    ElementTree.fromstring(text)
    assert "restart: worker 1: late" in text  # the last moment was at 2.0 s, and the epoch goes on at 2.3 s
    assert "of another time" not in text
    assert "2.3 s" in text
