"""Files of tokens that are mapped into memory: Megatron's ``.bin`` with its ``.idx``, ``.npy``, bare ``.bin``.

Runs in every process that reads them; each maps the files itself, when it first reads, and shares the pages.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from torchpipe.formats.storage.paths import is_remote

__all__ = ["MappedTokens", "TokenSequences", "token_index", "token_type"]

# Megatron-LM's megatron/core/datasets/indexed_dataset.py: magic, version, type, number of sequences, of documents; then
# the length of each sequence (int32), where it begins in the .bin (int64), where documents begin, perhaps a mode each.
_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_TYPES = (None, "u1", "i1", "<i2", "<i4", "<i8", "<f8", "<f4", "<u2")  # by their code, from 1 on


class MappedTokens:
    """One file, with the sequences that it is made of if it says so. Pickles as its path.

    Raises: ValueError, with the path, for a file that does not hold what its header says.
    """

    def __init__(self, path: str, dtype: Any = None, offset: int = 0) -> None:
        if is_remote(path):
            raise ValueError(f"only local files can be mapped into memory, got {path!r}: copy it to a disk first")
        self.path = path
        self.size = os.path.getsize(path)
        self.index = os.path.splitext(path)[0] + ".idx"
        self.shape: tuple[int, ...]
        self.dtype: np.dtype[Any]
        self.offset = offset  # of the first token, in bytes
        self._ends: Any = None  # of the index' sequences, in tokens, where these do not stand one behind the other
        self._count: int | None = None  # of sequences
        self._documents = 0  # of the index, and one
        self._bounds: Any = None  # after how many tokens each document of the index ends
        if offset and (path.endswith(".npy") or os.path.exists(self.index)):
            raise ValueError(f"{path} says itself where its tokens begin: leave offset={offset} out")
        if offset > self.size:
            raise ValueError(f"{path} has {self.size} bytes, and its tokens are to begin at offset={offset}")
        if path.endswith(".npy"):
            self._read_npy()
        elif os.path.exists(self.index):
            self._read_index()
        elif dtype is None:
            raise ValueError(
                f"{path} has no {os.path.basename(self.index)} beside it, and does not say of itself what its numbers "
                "are: give dtype, such as 'uint16'"
            )
        else:
            self._set(np.dtype(dtype), ((self.size - offset) // np.dtype(dtype).itemsize,))
        if dtype is not None and np.dtype(dtype) != self.dtype:
            raise ValueError(f"{path} holds {self.dtype}, not dtype={np.dtype(dtype)}: leave dtype out")
        self._maps: list[Any] = []  # opened when first read, by each process

    def _set(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        needed = self.offset + dtype.itemsize * int(np.prod(shape))
        if needed > self.size:
            raise ValueError(f"{self.path} is cut off: it should have {needed} bytes, and has {self.size}")
        if (self.size - self.offset) % dtype.itemsize:
            raise ValueError(f"{self.path} holds no whole number of {dtype}: {self.size - self.offset} bytes")
        self.dtype, self.shape = dtype, shape

    def _read_npy(self) -> None:
        try:
            array = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise ValueError(f"{self.path} is no .npy file of numbers, or a damaged one: {error}") from error
        if array.ndim not in (1, 2) or not isinstance(array, np.memmap):
            raise ValueError(f"{self.path} has the shape {array.shape}: tokens stand in one row, or in rows")
        if not array.flags.c_contiguous:
            raise ValueError(
                f"{self.path} is stored column by column (Fortran order, as of a transposed array), so that no row "
                "stands in one place: save it by np.save(path, np.ascontiguousarray(array))"
            )
        self.offset = array.offset
        self._set(array.dtype, array.shape)

    def _read_index(self) -> None:
        size = os.path.getsize(self.index)
        with open(self.index, "rb") as file:
            header = file.read(_HEADER.size)
        if len(header) < _HEADER.size or not header.startswith(_MAGIC):
            raise ValueError(f"{self.index} is no index of Megatron's indexed datasets: it does not begin with MMIDIDX")
        _, version, code, count, documents = _HEADER.unpack(header)
        if version != 1 or not 0 < code < len(_TYPES):
            raise ValueError(
                f"{self.index} has version {version} and type {code}: versions 1 and types 1 to 8 are known"
            )
        whole = _HEADER.size + 12 * count + 8 * documents
        if size not in (whole, whole + count):
            raise ValueError(
                f"{self.index} is cut off or damaged: of {count} sequences it should have {whole} bytes, not {size}"
            )
        dtype = np.dtype(_TYPES[code])
        self._count, self._documents = count, documents
        self._set(dtype, (self.size // dtype.itemsize,))
        if count:
            begin, length = self._sequence(count - 1, np.memmap(self.index, mode="r"))
            end = begin + length * dtype.itemsize
            if end > self.size:
                raise ValueError(f"{self.path} is cut off at byte {self.size}: its last sequence ends at byte {end}")

    def _sequence(self, number: int, index: Any) -> tuple[int, int]:
        """(first byte, number of tokens) of a sequence."""
        assert self._count is not None
        (length,) = struct.unpack_from("<i", index, _HEADER.size + 4 * number)
        (begin,) = struct.unpack_from("<q", index, _HEADER.size + 4 * self._count + 8 * number)
        return begin, length

    @property
    def paths(self) -> list[str]:
        """The files that say what the items are."""
        return [self.path] if self._count is None else [self.path, self.index]

    def __len__(self) -> int:
        """Sequences: of the index, or rows. Raises: TypeError if it is one run of tokens."""
        if self._count is not None:
            return self._count
        if len(self.shape) == 2:
            return self.shape[0]
        raise TypeError(f"{self.path} is one run of {self.shape[0]} tokens: give length to cut it")

    @property
    def tokens(self) -> int:
        """The number of tokens of the whole file; with an index, of its sequences."""
        if self._count is None:
            return int(np.prod(self.shape))
        ends = self._sequence_ends()
        return int(ends[-1]) if len(ends) else 0

    def _sequence_ends(self) -> Any:
        """After how many tokens each sequence of the index ends, if all are put one behind the other."""
        if self._ends is None:
            assert self._count is not None
            lengths = np.fromfile(self.index, "<i4", self._count, offset=_HEADER.size)
            if len(lengths) and lengths.min() < 0:
                raise ValueError(f"{self.index} is damaged: a sequence of {lengths.min()} tokens")
            self._ends = np.cumsum(lengths, dtype=np.int64)
        return self._ends

    def _document_ends(self) -> Any:
        """After how many tokens each document of the index ends, if all sequences are put one behind the other.

        Raises: ValueError without an index, and for one whose documents are not made of its sequences.
        """
        if self._count is None:
            raise ValueError(
                f"documents=True needs to know where documents begin, and {self.path} has no "
                f"{os.path.basename(self.index)} of Megatron's beside it"
            )
        if self._bounds is None:
            firsts = np.fromfile(self.index, "<i8", self._documents, offset=_HEADER.size + 12 * self._count)
            if len(firsts) and (firsts[0] < 0 or firsts[-1] > self._count or (np.diff(firsts) < 0).any()):
                raise ValueError(
                    f"{self.index} is damaged: documents should begin at its {self._count} sequences, in order"
                )
            self._bounds = np.append(0, self._sequence_ends())[firsts]
        return self._bounds

    def check_documents(self) -> None:
        """Raises: ValueError where :meth:`segments` would."""
        self._document_ends()

    def segments(self, first: int, length: int) -> tuple[Any, Any]:
        """The segments of a window: the number of each token's document, from 1 on, and its place among the document's
        tokens in the window, from 0 on: int32, as ``pack`` has them.
        """
        bounds = self._document_ends()
        inner = bounds[np.searchsorted(bounds, first, "right") : np.searchsorted(bounds, first + length, "left")]
        begins = np.append(0, np.unique(inner) - first)
        sizes = np.diff(begins, append=length)
        ids = np.repeat(np.arange(1, len(begins) + 1, dtype=np.int32), sizes)
        return ids, np.arange(length, dtype=np.int32) - np.repeat(begins.astype(np.int32), sizes)

    @property
    def native(self) -> np.dtype[Any]:
        """The type of the copies: the one of the file, in this machine's order of bytes."""
        return self.dtype.newbyteorder("=")

    def _mapped(self) -> list[Any]:
        if not self._maps:
            self._maps.append(
                np.memmap(self.path, self.dtype, "r", self.offset, self.shape) if np.prod(self.shape) else self._empty()
            )
            self._maps.append(None if self._count is None else np.memmap(self.index, mode="r"))
        return self._maps

    def _empty(self) -> Any:  # nothing of a file cannot be mapped
        return np.empty(self.shape, self.dtype)

    def sequence(self, number: int) -> Any:
        """The tokens of a sequence: a copy."""
        return np.array(self._viewed(number), self.native)

    def _viewed(self, number: int) -> Any:
        """The tokens of a sequence, where they are mapped."""
        data, index = self._mapped()
        if index is None:
            return data[number]
        begin, length = self._sequence(number, index)
        first, rest = divmod(begin, self.dtype.itemsize)
        if rest or length < 0 or not 0 <= first <= first + length <= len(data):
            raise ValueError(
                f"{self.index} is damaged: sequence {number} should be {length} tokens from byte {begin} of a file of "
                f"{self.size} bytes"
            )
        return data[first : first + length]

    def window(self, first: int, length: int) -> Any:
        """``length`` tokens from number ``first`` on, in the order of the index' sequences: a copy."""
        if self._count is None:
            return np.array(self._mapped()[0].reshape(-1)[first : first + length], self.native)
        ends, made, parts = self._sequence_ends(), 0, []
        number = int(np.searchsorted(ends, first, "right"))
        skip = first - (int(ends[number - 1]) if number else 0)
        while made < length:
            part = self._viewed(number)[skip : skip + length - made]
            parts.append(part)
            made, skip, number = made + len(part), 0, number + 1
        return np.concatenate(parts, dtype=self.native)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": [], "_ends": None, "_bounds": None}


class TokenSequences:
    """The sequences of several files as one, or windows of ``length`` tokens that begin every ``step``, within each
    file. Numbers count from 0."""

    def __init__(self, files: Sequence[MappedTokens], length: int | None, step: int | None) -> None:
        self._files = files
        self._length = length
        self._step = step or length or 0
        counts = [len(file) if length is None else self._windows(file, length) for file in files]
        self._ends = list(accumulate(counts))
        self.short = [file for file, count in zip(files, counts) if not count]

    def _windows(self, file: MappedTokens, length: int) -> int:
        return max(0, (file.tokens - length) // self._step + 1)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, number: int) -> Any:
        file, inner = self._found(number)
        return file.sequence(inner) if self._length is None else file.window(inner * self._step, self._length)

    def segments(self, number: int) -> tuple[Any, Any]:
        """:meth:`MappedTokens.segments` of a window."""
        assert self._length is not None
        file, inner = self._found(number)
        return file.segments(inner * self._step, self._length)

    def _found(self, number: int) -> tuple[MappedTokens, int]:
        part = bisect_right(self._ends, number)
        return self._files[part], number - (self._ends[part - 1] if part else 0)


def token_type(dtype: Any) -> np.dtype[Any]:
    """``dtype`` as Megatron's index names it. Raises: ValueError for another one than its integers."""
    names = [name for name in _TYPES[1:] if name is not None and np.dtype(name).kind in "iu"]
    found = [name for name in names if dtype is not None and np.dtype(dtype) == np.dtype(name)]
    if not found:
        known = ", ".join(str(np.dtype(name)) for name in names)
        raise ValueError(
            f"dtype must be one of {known}, which say what a .bin holds, got {dtype!r}: 'uint16' for vocabularies of "
            "up to 65,536 tokens, 'int32' for others"
        )
    return np.dtype(found[0])


def token_index(lengths: Any, dtype: np.dtype[Any]) -> bytes:
    """The ``.idx`` of documents of so many tokens each (int32), which stand one behind the other in the ``.bin``."""
    code = next(code for code, name in enumerate(_TYPES) if name is not None and np.dtype(name) == dtype)
    count = len(lengths)
    begins = np.zeros(count, "<i8")
    if count:
        np.cumsum(lengths[:-1], dtype=np.int64, out=begins[1:])
    documents = np.arange(count + 1, dtype="<i8")
    parts = (np.asarray(lengths, "<i4"), begins * dtype.itemsize, documents)
    return _HEADER.pack(_MAGIC, 1, code, count, len(documents)) + b"".join(part.tobytes() for part in parts)
