"""``retry``: what fails for a while gives the items that it would have given at once."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.laws.executors import make_service
from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper
from torchpipe.map import SequenceWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.testing import CountingSource, check_node


class Flaky:
    """Draws from everything, and fails the first ``failures`` times for each item."""

    def __init__(self, failures: int, error: type[Exception] = OSError) -> None:
        self.failures = failures
        self.error = error
        self.calls: Counter[Any] = Counter()

    def __call__(self, item: Any, *rng: np.random.Generator) -> Any:
        drawn = [random.random(), float(np.random.rand()), float(torch.rand(())), float(np.random.randn())]
        drawn += [float(generator.random()) for generator in rng]
        self.calls[item] += 1
        if self.calls[item] <= self.failures:
            raise self.error(f"not yet: {item}")
        return item, drawn


QUICK = {"backoff_s": 0.0}


def seeded(node: Any) -> list[Any]:
    with DataLoader2(node, reading_service=make_service(None, 1)) as loader:
        loader.seed(1)
        return list(loader)


def test_L1_items_are_those_of_a_function_that_never_fails() -> None:
    for name in ("map", "random_map"):
        steady, flaky = (getattr(IterableWrapper(range(5)), name)(Flaky(failures)) for failures in (0, 2))
        assert seeded(flaky.retry(3, **QUICK)) == seeded(steady)


class Numbered(Flaky):
    """With a state that a failed call changes as well."""

    def __init__(self) -> None:
        super().__init__(1)
        self.number = 0

    def __call__(self, item: Any, *rng: np.random.Generator) -> Any:
        self.number += 1
        return self.number, super().__call__(item)[0]

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number = state["number"]


def test_L2_a_function_with_state_goes_back_to_it() -> None:
    node = IterableWrapper(range(4)).map(Numbered()).retry(2, **QUICK)
    assert list(iterate(node)) == [(n + 1, n) for n in range(4)]
    check_node(lambda: CountingSource(range(4)).map(Numbered()).retry(2, **QUICK), epochs=[0], num_shards=1)


def test_the_last_error_is_raised_and_the_others_are_told(caplog: pytest.LogCaptureFixture) -> None:
    flaky = Flaky(9)
    with caplog.at_level(logging.WARNING, "torchpipe"), pytest.raises(OSError, match="not yet: 0") as caught:
        list(IterableWrapper(range(3)).map(flaky).retry(3, **QUICK))
    assert flaky.calls[0] == 3
    assert caught.value.__notes__ == ["torchpipe: Flaky failed 3 times for this item"]
    assert len(caplog.messages) == 2
    assert "raised OSError: not yet: 0; trying again in 0.00 s (attempt 2 of 3)" in caplog.messages[0]


def test_other_errors_are_raised_at_once() -> None:
    flaky = Flaky(9, ValueError)
    with pytest.raises(ValueError, match="not yet"):
        list(IterableWrapper(range(3)).map(flaky).retry(3, **QUICK))
    assert flaky.calls[0] == 1
    assert (
        len(list(IterableWrapper(range(3)).map(Flaky(2, ValueError)).retry(3, errors=(OSError, ValueError), **QUICK)))
        == 3
    )


def test_it_concerns_the_nodes_before_it_up_to_another() -> None:
    first, second, third = Flaky(1), Flaky(3), Flaky(1)
    node: Any = IterableWrapper(range(2)).map(first).retry(2, **QUICK).map(lambda pair: second(pair[0]))
    node = node.retry(4, **QUICK)
    assert [item for item, _ in node] == [0, 1]
    with pytest.raises(OSError, match="not yet"):
        list(node.map(lambda pair: third(pair[0])))


def test_items_read_by_index_and_files(tmp_path: Path) -> None:
    flaky = Flaky(1)
    node = SequenceWrapper(range(4)).map(flaky).shuffle().sharding_filter().retry(2, **QUICK)
    assert sorted(item for item, _ in node) == [0, 1, 2, 3]

    class Rows:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return again(index)[0]

    again = Flaky(1)
    assert list(IterableWrapper(Rows()).retry(2, **QUICK)) == [0, 1, 2]
    with pytest.raises(FileNotFoundError) as caught:
        list(IterableWrapper([str(tmp_path / "none")]).open_files().retry(2, **QUICK))
    assert "failed 2 times" in caught.value.__notes__[0]


def test_what_fails_every_time_may_then_be_left_out() -> None:
    def broken(item: int) -> int:
        if item == 1:
            raise OSError("broken")
        return item

    node = IterableWrapper(range(3)).map(broken).retry(2, **QUICK).on_error("skip")
    assert list(node) == [0, 2]


class Letters:
    """An iterator with state; the class itself is what ``flatmap`` is given."""

    def __init__(self, text: str) -> None:
        self.letters = list(text)

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> str:
        if not self.letters:
            raise StopIteration
        return self.letters.pop(0)

    def state_dict(self) -> dict[str, Any]:
        return {"letters": self.letters}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.letters = state["letters"]


def test_a_class_whose_objects_have_state_is_a_function_without() -> None:
    assert list(IterableWrapper(["ab", "c"]).flatmap(Letters).retry(2)) == ["a", "b", "c"]


def test_an_item_that_a_function_marks_and_passes_on_keeps_its_mark() -> None:
    for fails, attempts in ((0, 3), (1, 2), (1, 3)):
        left = [fails]

        def mark(item: dict[str, int], left: list[int] = left) -> bool:
            item["ok"] = 1
            if left[0]:
                left[0] -= 1
                raise OSError("not yet")
            return True

        items: list[dict[str, int]] = [{}, {}]
        assert list(IterableWrapper(items).filter(mark).retry(attempts, **QUICK)) == [{"ok": 1}, {"ok": 1}]


def test_what_an_attempt_uses_up_is_given_once(tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_text("0.5\n0.5\n0.5\n")
    left = [1]

    def total(pair: Any) -> float:
        lines = pair[1].read().split()
        if left[0]:
            left[0] -= 1
            raise OSError("hiccup")
        return sum(map(float, lines))

    def opened(path: str) -> float:
        with Path(path).open() as file:
            return total((path, file))

    with pytest.raises(OSError, match="hiccup") as caught:
        list(IterableWrapper([str(path)]).open_files().map(total).retry(3, **QUICK))
    assert "Let one function open and read it" in caught.value.__notes__[0]
    left[0] = 1
    assert list(IterableWrapper([str(path)]).map(opened).retry(3, **QUICK)) == [1.5]  # the advice

    def taken(numbers: Iterator[int]) -> int:
        if next(numbers) < 5:
            raise OSError("too small")
        return 1

    with pytest.raises(OSError, match="too small"):
        list(IterableWrapper([1]).map(lambda _: iter([3, 7])).map(taken).retry(3))


def test_the_opening_of_a_readers_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("a\nb\n")
    node = IterableWrapper([str(path), str(tmp_path / "none")]).read_lines().retry(2, **QUICK)
    with pytest.raises(FileNotFoundError) as caught:
        list(node)
    assert any("opening a file with TextLineReader failed 2 times" in note for note in caught.value.__notes__)
