"""``TokenFile``: tokens in files that are mapped into memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torchpipe.formats.places.listed import listed_files
from torchpipe.formats.places.paths import expand_paths
from torchpipe.formats.tokens import MappedTokens, TokenSequences
from torchpipe.node.datapipe import MapDataPipe
from torchpipe.node.validate import check_count

__all__ = ["TokenFile"]


class TokenFile(MapDataPipe[torch.Tensor]):
    """Reads sequences of tokens by number: one-dimensional tensors of ``tensor_dtype`` (None: as stored).

    ``paths``, local ones, may hold braces and globs. A ``.bin`` with an ``.idx`` beside it is one of Megatron's
    indexed datasets, whose sequences are the items; the rows of a two-dimensional ``.npy`` are. A one-dimensional
    ``.npy``, and a ``.bin`` without an index, whose type ``dtype`` says, are one run of tokens. With
    ``length`` the items are windows of so many tokens, whatever sequences they belong to, that begin every ``step``
    (by default ``length``; ``length=1025, step=1024`` gives inputs and targets). Windows end with their file: fewer
    tokens at its end are left out.

    Files are mapped when they are first read, by each process, which share the memory. ``to_iter_datapipe`` and
    ``shuffle`` make a pipeline of it that goes to any position at once and whose shards read their own items alone.

    Raises: ValueError for a file that is cut off, is not what its header says or does not say what it holds.
    """

    fingerprint_ignores = ("paths",)  # known by ``files``: a run may move to where the data lie elsewhere

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        length: int | None = None,
        *,
        step: int | None = None,
        dtype: Any = None,
        tensor_dtype: torch.dtype | None = torch.int64,
    ) -> None:
        self.paths = expand_paths("TokenFile", paths)
        self.files = listed_files(self.paths)
        self.length = None if length is None else check_count("length", length, at_least=1)
        if step is not None and length is None:
            raise ValueError(f"step={step!r} is of windows: give length")
        self.step = None if step is None else check_count("step", step, at_least=1)
        self.tensor_dtype = tensor_dtype
        self.dtype = None if dtype is None else np.dtype(dtype)
        files = [MappedTokens(path, dtype) for path in self.paths]
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
        self.sequences = TokenSequences(files, self.length, self.step)

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, index: Any) -> torch.Tensor:
        tokens = torch.from_numpy(self.sequences[index])
        return tokens if self.tensor_dtype is None else tokens.to(self.tensor_dtype)
