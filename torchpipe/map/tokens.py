"""``TokenFile``: tokens in files that are mapped into memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torchpipe.formats.storage.paths import expand_paths, listed_files
from torchpipe.formats.tokens import MappedTokens, TokenSequences
from torchpipe.map._indices import checked_index
from torchpipe.node.datapipe import MapDataPipe
from torchpipe.node.user_warnings import warn_user
from torchpipe.node.validate import check_count

__all__ = ["TokenFile"]


class TokenFile(MapDataPipe[Any]):
    """Reads sequences of tokens by number: one-dimensional tensors of ``tensor_dtype`` (None: as stored).

    ``paths``, local ones, may hold braces and globs. A ``.bin`` with an ``.idx`` beside it is one of Megatron's
    indexed datasets, whose sequences are the items; the rows of a two-dimensional ``.npy`` are. A one-dimensional
    ``.npy``, and a ``.bin`` without an index, whose type ``dtype`` says, are one run of tokens. With
    ``length`` the items are windows of so many tokens, of the index' sequences one behind the other, that begin every
    ``step`` (by default ``length``; ``length=1025, step=1024`` gives inputs and targets). Windows end with their file:
    fewer tokens at its end are left out, and a warning tells of files that give none. ``offset`` is how many bytes
    stand before the tokens of a ``.bin`` without an index: 1024 in those of llm.c and modded-nanogpt.

    With ``documents=True`` windows are dicts, as ``pack`` makes them: ``tokens``, and int32 tensors of the same shape
    (length,), ``segment_ids``, which count the documents of the index from 1 on in each window, and ``positions``,
    which count the tokens of each from 0 on.

    Files are mapped when they are first read, by each process, which share the memory. ``to_iter_datapipe`` and
    ``shuffle`` make a pipeline of it that goes to any position at once and whose shards read their own items alone.

    Raises: ValueError for a file that is cut off, is not what its header says or does not say what it holds, for
    ``documents=True`` of a file without an index, where no file has ``length`` tokens, and for a token that
    ``tensor_dtype`` cannot hold.
    """

    fingerprint_ignores = ("paths",)  # known by ``files``: a run may move to where the data lie elsewhere

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        length: int | None = None,
        *,
        step: int | None = None,
        dtype: Any = None,
        offset: int = 0,
        documents: bool = False,
        tensor_dtype: torch.dtype | None = torch.int64,
    ) -> None:
        self.paths = expand_paths("TokenFile", paths)
        self.length = None if length is None else check_count("length", length, at_least=1)
        if step is not None and length is None:
            raise ValueError(f"step={step!r} is of windows: give length")
        if documents and length is None:
            raise ValueError("documents=True is of windows: give length")
        self.step = None if step is None else check_count("step", step, at_least=1)
        self.tensor_dtype = tensor_dtype
        self.dtype = None if dtype is None else np.dtype(dtype)
        self.offset = check_count("offset", offset, at_least=0)
        files = [MappedTokens(path, dtype, self.offset) for path in self.paths]
        self.files = listed_files([path for file in files for path in file.paths])
        floating = next((file for file in files if not np.issubdtype(file.dtype, np.integer)), None)
        if floating is not None and tensor_dtype is torch.int64:
            raise ValueError(f"{floating.path} holds {floating.dtype}, no tokens: give tensor_dtype if it is meant")
        for file in files:
            try:
                torch.from_numpy(np.empty(0, file.native))
            except TypeError as error:
                raise ValueError(
                    f"{file.path} holds {file.dtype}, and torch has no tensor of that type: {error}"
                ) from error
        if self.length is None:
            for file in files:
                len(file)
        self.documents = bool(documents)
        if self.documents:
            for file in files:
                file.check_documents()
        self.sequences = TokenSequences(files, self.length, self.step)
        self._check_windows()

    def _check_windows(self) -> None:
        short = self.sequences.short
        if self.length is None or not short:
            return
        text = (
            f"TokenFile: {len(short)} of {len(self.paths)} files have fewer than length={self.length} tokens and give "
            f"no item, such as {short[0].path!r:.200} with {short[0].tokens}"
        )
        if len(short) == len(self.paths):
            raise ValueError(f"{text}: take a smaller length, or put the files together")
        warn_user(text, UserWarning)

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, index: Any) -> Any:
        index = checked_index("TokenFile", index, len(self))
        tokens = self.sequences[index]
        self._check_range(index, tokens)
        made = torch.from_numpy(tokens)
        made = made if self.tensor_dtype is None else made.to(self.tensor_dtype)
        if not self.documents:
            return made
        ids, positions = map(torch.from_numpy, self.sequences.segments(index))
        return {"tokens": made, "segment_ids": ids, "positions": positions}

    def _check_range(self, index: int, tokens: Any) -> None:
        """Raises: ValueError for a token that ``tensor_dtype`` cannot hold."""
        kind = self.tensor_dtype
        if (
            kind is None
            or kind.is_floating_point
            or kind.is_complex
            or tokens.dtype.kind not in "iu"
            or not len(tokens)
        ):
            return
        have, bounds = np.iinfo(tokens.dtype), torch.iinfo(kind)
        if (have.max > bounds.max or have.min < bounds.min) and not bounds.min <= tokens.min() <= tokens.max() <= (
            bounds.max
        ):
            raise ValueError(
                f"TokenFile: item {index} has tokens from {tokens.min()} to {tokens.max()}, which {kind} cannot hold: "
                "give another tensor_dtype, or is dtype= another one than the file's?"
            )
