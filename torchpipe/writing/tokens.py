"""Megatron's token files: a ``.bin`` of numbers, and the ``.idx`` that says where each document begins."""

from __future__ import annotations

import os
from array import array
from typing import Any

import numpy as np

from torchpipe.formats.tokens import token_index, token_type
from torchpipe.writing.files import PartFile
from torchpipe.writing.kinds import Kind, Writing

__all__ = ["Tokens"]

_MOST_TOKENS = (1 << 31) - 1  # of a document, whose length is 4 bytes


class _TokenEncoder:
    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def __call__(self, sample: Any) -> Any:
        """The tokens of a document as an array of ``dtype``, a copy. Raises: TypeError, ValueError."""
        try:
            tokens = np.asarray(sample)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"a document must be a sequence of tokens, got {sample!r:.80}: {error}") from error
        if tokens.ndim != 1 or (tokens.dtype.kind not in "iu" and len(tokens)):
            raise TypeError(
                f"a document must be one row of integers, got {sample!r:.80} of type {type(sample).__name__}: choose "
                "them in the graph, as by .map(lambda row: row['tokens'])"
            )
        bounds = np.iinfo(self.dtype)
        if len(tokens) and not bounds.min <= int(tokens.min()) <= int(tokens.max()) <= bounds.max:
            raise ValueError(
                f"a document has tokens from {tokens.min()} to {tokens.max()}, which {self.dtype} cannot hold: give "
                "another dtype"
            )
        if len(tokens) > _MOST_TOKENS:
            raise ValueError(f"a document of {len(tokens):,} tokens: an .idx has room for {_MOST_TOKENS:,}")
        return tokens.astype(self.dtype)


class Tokens(Kind):
    """Each sample is a document, one sequence of the index. ``dtype``: one that Megatron's index has a code for."""

    def __init__(self, dtype: Any) -> None:
        kind = token_type(dtype)
        self.encode = _TokenEncoder(kind.str)
        self.arguments = {"dtype": kind.str}
        self._dtype = kind

    def files(self, name: str) -> list[str]:
        return [os.path.splitext(name)[0] + ".idx", name]  # a .bin is there with its index, or not at all

    def open(self, files: list[PartFile]) -> Writing:
        return _TokensWriting(files[0], files[1], self._dtype)


class _TokensWriting(Writing):
    def __init__(self, index: PartFile, data: PartFile, dtype: Any) -> None:
        self._index, self._data, self._dtype = index, data, dtype
        self._lengths = array("i")

    def add(self, encoded: Any) -> int:
        self._lengths.append(len(encoded))
        return self._data.write(encoded) if len(encoded) else 0

    def close(self) -> None:
        self._index.write(token_index(np.frombuffer(self._lengths, np.int32), self._dtype))
