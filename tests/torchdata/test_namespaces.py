"""``torchpipe.iter`` lists torchpipe's own nodes, ``torchpipe.torchdata`` the others; each has its page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import torchpipe.iter
import torchpipe.torchdata
from tests.torchdata.test_names import offered, told
from torchpipe.node.fingerprint import describe_graph
from torchpipe.node.functional import registered
from torchpipe.public_names import FORMS, NAMES

DOCS = Path(__file__).parents[2] / "docs"
NATIVE, OTHERS = {*NAMES["torchpipe.iter"]}, {*NAMES["torchpipe.torchdata"]}
# Public names that are no nodes: types of arguments and results, functions.
NO_NODES = {"SHARDING_PRIORITIES", "Overflow", "Stop", "Strategy", "Weights"}
NO_NODES |= {"CompressionType", "TFRecordExample", "TFRecordExampleSpec", "pin_memory_fn"}
BY_FORM = {"MapToIterConverter"}  # told by the form alone, which map-style nodes have


def shown(page: str) -> set[str]:
    """What stands in backticks in the tables of a page, without arguments."""
    rows = re.findall(r"^\| .*$", (DOCS / "nodes" / page).read_text(), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)", row)}


def test_one_list_has_the_native_nodes_and_the_other_the_rest() -> None:
    assert {*torchpipe.iter.__all__} == NATIVE | {"DataChunk", "IterDataPipe", "functional_datapipe"}
    assert {*torchpipe.torchdata.__all__} == OTHERS | {"install"}
    assert not NATIVE & OTHERS
    assert not {*dir(torchpipe.iter)} & OTHERS


def test_every_name_of_the_rest_is_still_found_with_the_native_ones_unlisted() -> None:
    for name in sorted(OTHERS):
        taken: dict[str, object] = {}
        exec(f"from torchpipe.iter import {name}", taken)
        assert taken[name] is getattr(torchpipe.torchdata, name) is getattr(torchpipe.iter, name)
    assert not {*dir(torchpipe.iter)} & OTHERS  # nor listed once they have been asked for
    with pytest.raises(AttributeError, match="has no attribute 'install'"):
        _ = torchpipe.iter.install  # type: ignore[attr-defined]


def test_the_rest_is_torchdatas() -> None:
    named = {key.split()[1] for key in offered()}
    elsewhere = {"CompressionType", "TFRecordExample", "TFRecordExampleSpec"}  # which torchdata did not list
    assert OTHERS - named <= elsewhere


def test_forms_are_the_same_wherever_the_class_is() -> None:
    forms = registered("iter")
    assert forms["readlines"] is torchpipe.torchdata.LineReader
    assert forms["header"] is torchpipe.torchdata.Header
    paths = {path.split(":")[1]: path for path in FORMS["iter"].values()}
    assert all(paths[name].startswith("torchpipe.torchdata.nodes.") for name in OTHERS & {*paths})
    assert all(paths[name].startswith("torchpipe.iter.") for name in NATIVE & {*paths})


@pytest.mark.parametrize(
    ("page", "names"), [("index.md", NATIVE - BY_FORM), ("torchdata.md", OTHERS)], ids=["natives", "the rest"]
)
def test_each_page_has_the_nodes_and_forms_of_its_list(page: str, names: set[str]) -> None:
    forms = {form for form, path in FORMS["iter"].items() if path.split(":")[1] in names}
    assert (names - NO_NODES) | forms <= shown(page)
    others = OTHERS if page == "index.md" else NATIVE - {"PathList", "IterableWrapper", "HuggingFaceReader"}
    assert not others & shown(page)


def test_the_pages_recommend_native_nodes_alone() -> None:
    of_others = {form for form, path in FORMS["iter"].items() if path.split(":")[1] in OTHERS}
    of_others -= {"flatten", "drop", "slice", "unzip", "in_memory_cache"}  # names of others' methods, too, or map-style
    for page in [*DOCS.rglob("*.md"), DOCS.parent / "README.md", DOCS.parent / "skills" / "torchpipe" / "SKILL.md"]:
        if page.name in ("torchdata.md", "migration.md", "support.md"):
            continue
        code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
        assert not {*re.findall(r"\.(\w+)\(", code)} & of_others, page
        assert not {*re.findall(r"\b[A-Z]\w+", code)} & OTHERS, page


def test_what_the_migration_page_says_is_absent_is_not_in_the_lists() -> None:
    assert not told("Names that are not here") & (NATIVE | OTHERS)


def test_where_a_node_is_written_is_no_part_of_a_graphs_identity() -> None:
    """So that states which were saved before it moved go on after."""
    source = torchpipe.iter.IterableWrapper([("a", 1), ("b", 2)])
    mixed = torchpipe.torchdata.SampleMultiplexer({source.header(2): 1.0, source.flatten().cycle(2): 2.0})
    graph = mixed.threadpool_map(str).batch(2).in_batch_shuffle().rows2columnar(["a", "b"])
    told = describe_graph(graph)
    assert [node in told for node in ("Header(", "Flattener(", "ThreadPoolMapper(", "Rows2Columnar(")] == [True] * 4
    assert "torchpipe" not in told
