"""The table: a row for each line of Python's own sources, and the pipeline that reads it. Nothing is downloaded.

The question: is the line that follows indented deeper?
"""

from __future__ import annotations

import keyword
import os
import sysconfig
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from torchpipe.iter import ParquetReader

__all__ = ["BATCH_SIZE", "NUMBERS", "WORDS", "make_table", "test_batches", "train_graph"]

BATCH_SIZE = 256
NUMBERS = ("indent", "length", "letters", "digits", "brackets")
WORDS = ["", *keyword.kwlist]  # of the first word; 0 for any other

_COLUMNS = [*NUMBERS, "first_word", "last_character", "deeper", "id"]  # not the text
_ROWS_IN_A_GROUP = 2_000
_PARTS = 10  # part 0 is kept for the test: files, not lines


def make_table(path: Path, count: int) -> int:
    """Write a table of up to ``count`` rows, whole or not at all. Returns their number."""
    rows: list[dict[str, Any]] = []
    for number, source in enumerate(sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))):
        lines = [line for line in source.read_text(errors="replace").splitlines() if line.strip()]
        if len(rows) >= count:
            break
        rows += [_row(number, line, following) for line, following in pairwise(lines)]
    rows = [{"id": number, **row} for number, row in enumerate(rows[:count])]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), f"{path}.part", row_group_size=_ROWS_IN_A_GROUP)
    os.replace(f"{path}.part", path)
    return len(rows)


def _row(file: int, line: str, following: str) -> dict[str, Any]:
    word = line.split()[0].rstrip(":")
    return {
        "part": file % _PARTS,
        "text": line,
        "indent": _indent(line),
        "length": len(line),
        "letters": sum(map(str.isalpha, line)),
        "digits": sum(map(str.isdigit, line)),
        "brackets": line.count("(") - line.count(")") + line.count("[") - line.count("]"),
        "first_word": WORDS.index(word) if word in WORDS else 0,
        "last_character": min(ord(line.rstrip()[-1]), 127),
        "deeper": _indent(following) > _indent(line),
    }


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def train_graph(path: Path) -> Any:
    """Batches of columns: row groups in random order, each read by one shard alone, then batches in random order."""
    batches = ParquetReader(path, _COLUMNS, filter=[("part", "!=", 0)], batch_size=BATCH_SIZE)
    return batches.shard_pieces(piece_bytes=1).shuffle(buffer_size=16)  # row group by row group: the file is small


def test_batches(path: Path) -> Any:
    return ParquetReader(path, _COLUMNS, filter=[("part", "==", 0)], batch_size=BATCH_SIZE)
