"""``max_token_bucketize``: as torchdata's own, and exactly resumed."""

from __future__ import annotations

import heapq
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.iter.packing.test_batching import WORDLIST, WORDS
from torchpipe.errors import StateError
from torchpipe.iter import DataChunk, IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.state import decode, encode
from torchpipe.testing import CountingSource, check_node


def as_torchdata(words: list[str], most: int, least: int, longest: int, buffer: int, padding: bool) -> list[list[str]]:
    """What torchdata 0.9's node of this name says it does."""
    heap: list[Any] = []
    batch: list[str] = []
    made: list[list[str]] = []

    class Key:
        def __init__(self, word: str) -> None:
            self.word = word

        def __lt__(self, other: Key) -> bool:
            return len(self.word) < len(other.word)

    def pop() -> None:
        word = heapq.heappop(heap).word
        both = [*batch, word]
        if (max(map(len, both)) * len(both) if padding else sum(map(len, both))) > most:
            made.append(list(batch))
            batch[:] = [word]
        else:
            batch.append(word)

    for word in words:
        if least <= len(word) <= longest:
            heapq.heappush(heap, Key(word))
            if len(heap) == buffer:
                pop()
    while heap:
        pop()
    return [*made, batch] if batch else made


@given(WORDS, st.integers(9, 20), st.integers(0, 3), st.integers(1, 8), st.booleans())
def test_max_token_bucketize_is_torchdatas(words: list[str], most: int, least: int, buffer: int, padding: bool) -> None:
    node = IterableWrapper(words).max_token_bucketize(most, min_len=least, buffer_size=buffer, include_padding=padding)
    assert list(node) == as_torchdata(words, most, least, most, buffer, padding)


def test_the_examples_of_torchdatas_documentation() -> None:
    node = IterableWrapper(["1", "11", "1", "1111", "111", "1", "11", "11", "111"])
    assert list(node.max_token_bucketize(5)) == [["1", "1", "1", "11"], ["11", "11"], ["111"], ["111"], ["1111"]]
    batches = list(node.max_token_bucketize(max_token_count=4, buffer_size=4))
    assert batches == [["1", "1", "1"], ["11", "11"], ["11"], ["111"], ["111"], ["1111"]]
    assert type(batches[0]) is DataChunk
    assert list(node.max_token_bucketize(4, max_len=2, min_len=2, buffer_size=None)) == [["11", "11"], ["11"]]


def test_L2_exact_resume() -> None:
    check_node(lambda: CountingSource(WORDLIST).max_token_bucketize(6, buffer_size=4), pulls=lambda k: 10, epochs=[0])


def test_what_is_no_length_is_an_error() -> None:
    with pytest.raises(TypeError, match="an item of type int has no length"):
        list(IterableWrapper([1]).max_token_bucketize(5))
    with pytest.raises(ValueError, match="the length of an item must be"):
        list(IterableWrapper([1]).max_token_bucketize(5, lambda item: "x"))  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("forge", [{"heap": [["x", "a"]]}, {"heap": [[1, "a"]] * 4}, {"batch": [[1]]}])
def test_L8_forged_states_are_refused(forge: dict[str, Any]) -> None:
    node = IterableWrapper(WORDLIST).max_token_bucketize(6, buffer_size=3)
    iterator = iterate(node)
    next(iterator)
    state = decode(encode(iterator.state_dict()))
    with pytest.raises(StateError):
        iterate(node).load_state_dict(state | forge)
