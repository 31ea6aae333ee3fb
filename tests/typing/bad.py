"""Mistakes that a type checker must find: each marked line has an error in mypy and basedpyright, no other line has.
This file is never imported."""

from __future__ import annotations

from torchpipe.iter import IterableWrapper, IterDataPipe
from torchpipe.map import SequenceWrapper


def needs_text(value: str) -> int:
    return len(value)


def takes_two(value: int, other: int) -> int:
    return value + other


numbers = IterableWrapper([1, 2])
numbers.map(needs_text)  # error: the items are int
numbers.map(takes_two)  # error: called with one argument
numbers.map(3)  # error: no function
numbers.map(str).map(needs_text).map(needs_text)  # error: the items are int again
numbers.batch("2")  # error: the size is a number
numbers.batch(batchsize=2)  # error: no such argument
numbers.filter(3)  # error: no function
numbers.header("all")  # error: a number or None
numbers.enumerate(starting_index=None)  # error: a number
texts: IterDataPipe[str] = numbers.shuffle()  # error: the items are int
lists: IterDataPipe[list[str]] = numbers.batch(2)  # error: lists of int
SequenceWrapper([1, 2]).map(needs_text)  # error: the items are int
numbers.zip(3)  # error: no node
