"""``loader.watch()`` in a real Jupyter kernel: one output of the cell, updated in place. By `make test-notebook`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

SETUP = """
import time
from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import IterableWrapper
from reading_services import MultiProcessingReadingService

def slow(number):
    time.sleep(0.01)
    return number

def fails(number):
    if number == 30:
        raise ValueError("thirty")
    return slow(number)

def graph(fn=slow):
    return IterableWrapper(range(60)).sharding_filter().map(fn)
"""


class Notebook:
    """A kernel, and what comes of its cells."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def run(self, code: str, *, fails: bool = False) -> list[dict[str, Any]]:
        """The messages with output of a cell."""
        sent = self.client.execute(code)
        found, over, errors = [], False, []
        while not over:
            message = self.client.get_iopub_msg(timeout=None)
            kind, content = message["msg_type"], message["content"]
            mine = message["parent_header"].get("msg_id") == sent
            over = mine and kind == "status" and content["execution_state"] == "idle"
            errors += [content] if kind == "error" else []
            if kind in ("display_data", "update_display_data", "stream"):
                found.append({"kind": kind, **content})
        assert bool(errors) is fails, errors
        return found


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        given = Notebook(client)
        given.run(SETUP)
        yield given
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


def shown(outputs: list[dict[str, Any]]) -> list[str]:
    """The texts that stood in the one output of the table, which is updated and not repeated."""
    tables = [output for output in outputs if output["kind"] != "stream"]
    assert [output["kind"] for output in tables].count("display_data") == 1
    assert len({output["transient"]["display_id"] for output in tables}) == 1
    return [re.sub(r"<[^>]*>", "", output["data"]["text/html"]) for output in tables]


def said(outputs: list[dict[str, Any]]) -> str:
    return "".join(output["text"] for output in outputs if output["kind"] == "stream")


@pytest.mark.parametrize("service", ["None", "MultiProcessingReadingService(2, 'fork')"])
def test_the_table_is_one_output_that_is_updated(notebook: Notebook, service: str) -> None:
    code = f"""
with DataLoader2(graph(), reading_service={service}) as loader, loader.watch(every_s=0.05):
    for number in loader:
        if number % 20 == 0:
            print("printed", number)
"""
    outputs = notebook.run(code)
    texts = shown(outputs)
    assert len(texts) > 3
    assert "60 of 60 (100 %) items" in texts[-1]
    assert "Mapper(slow)" in texts[-1]
    assert said(outputs) == "printed 0\nprinted 20\nprinted 40\n"  # untouched, and no table among it


def test_a_cell_that_fails_leaves_its_last_table_and_the_next_has_its_own(notebook: Notebook) -> None:
    code = """
with DataLoader(list(range(60)), batch_size=2, collate_fn={fn}) as loader, loader.watch(every_s=0.05):
    for batch in loader:
        pass
"""
    failed = shown(notebook.run(code.format(fn="lambda items: [fails(item) for item in items]"), fails=True))
    assert "15 of 30" in failed[-1]
    after = shown(notebook.run(code.format(fn="list")))
    assert "30 of 30 (100 %) items" in after[-1]


def test_the_environment_watches_in_a_notebook_too(notebook: Notebook) -> None:
    notebook.run("import os; os.environ['TORCHPIPE_WATCH'] = '1'")
    try:
        outputs = notebook.run("for item in DataLoader2(graph()): pass")
        while "60 of 60" not in shown(outputs)[-1]:  # the epoch's last figures come after the cell
            outputs += notebook.run("time.sleep(0.05)")
    finally:
        notebook.run("del os.environ['TORCHPIPE_WATCH']")
    assert said(outputs) == ""


def test_figures_and_pictures_are_plain_values_there(notebook: Notebook) -> None:
    outputs = notebook.run("loader = DataLoader2(graph())\nprint(loader.stats())\nprint(loader.explain('svg')[:4])")
    assert "Nothing has been iterated yet." in said(outputs)
    assert said(outputs).endswith("<svg\n")
