"""Columns of Arrow as arrays: what Arrow itself says they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest

from torchpipe.iter import ArrowReader, ParquetReader


def test_tensors_whose_axes_are_permuted_are_as_arrow_has_them(tmp_path: Path) -> None:
    kind = pa.fixed_shape_tensor(pa.int32(), [2, 3, 4], permutation=[2, 0, 1])
    values = np.arange(48, dtype=np.int32)
    column = pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(pa.array(values), 24))
    pa.parquet.write_table(pa.table({"x": column}), tmp_path / "a.parquet")
    (batch,) = ParquetReader(str(tmp_path / "a.parquet"), batch_size=2, format="numpy")
    assert batch["x"].shape == (2, 4, 2, 3)
    assert np.array_equal(batch["x"], values.reshape(2, 2, 3, 4).transpose(0, 3, 1, 2))


def test_null_lists_are_told_apart_from_null_numbers(tmp_path: Path) -> None:
    table = pa.table({"e": pa.array([[1, 2], None], pa.list_(pa.int32(), 2)), "n": pa.array([1, None])})
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="column 'n' has 1 nulls.*Name a value for them, fill_null"):
        list(ParquetReader(str(tmp_path / "a.parquet"), columns=["n"], batch_size=2, format="numpy"))
    with pytest.raises(ValueError, match="column 'e' has 1 nulls.*fill_null is for numbers and not for lists"):
        list(
            ParquetReader(str(tmp_path / "a.parquet"), columns=["e"], batch_size=2, format="numpy", fill_null={"e": 0})
        )


_KINDS = [
    pa.int8(),
    pa.uint8(),
    pa.int32(),
    pa.int64(),
    pa.uint64(),
    pa.bool_(),
    pa.float16(),
    pa.float32(),
    pa.float64(),
]
_FILLS = [0, 1, True, -1, 1.0, 0.5, 1.9, 300, 70_000, 2**24 + 1, 2**63, 2**64, 1e300, float("nan"), float("inf"), 1j]


@pytest.mark.parametrize("kind", _KINDS, ids=str)
@pytest.mark.parametrize("nested", [False, True])
def test_nulls_are_filled_with_the_number_that_is_given_or_with_none(
    kind: pa.DataType, nested: bool, tmp_path: Path
) -> None:
    values = pa.array([1, None, 0, 1], pa.int8()).cast(kind)
    column = pa.FixedSizeListArray.from_arrays(values, 2) if nested else values
    pa.parquet.write_table(pa.table({"x": column}), tmp_path / "a.parquet")
    floating = pa.types.is_floating(kind)
    for fill in _FILLS:
        read = ParquetReader(str(tmp_path / "a.parquet"), batch_size=4, format="numpy", fill_null={"x": fill})
        try:
            (batch,) = read
        except ValueError as error:
            assert f"column 'x' of type {kind} cannot hold fill_null={fill!r}" in str(error)
            assert fill == 1j or not floating or fill > float(np.finfo(kind.to_pandas_dtype()).max)
            continue
        got = batch["x"].ravel()[1]
        assert got == fill or (got != got and fill != fill) or floating
        assert (got == float("inf")) == (fill == float("inf"))
    assert batch["x"].dtype == kind.to_pandas_dtype()


@pytest.mark.parametrize("reader", [ParquetReader, ArrowReader])
def test_fill_null_names_columns_that_are_there_and_is_of_arrays(reader: Any, tmp_path: Path) -> None:
    path, table = str(tmp_path / "a"), pa.table({"n": [1, None]})
    if reader is ParquetReader:
        pa.parquet.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    with pytest.raises(ValueError, match="has no column 'typo': its columns are n"):
        list(reader(path, batch_size=2, fill_null={"n": 1, "typo": 1}))
    for of in ({}, {"format": "python"}, {"batch_size": 2, "format": "arrow"}):
        with pytest.raises(ValueError, match="fill_null is of arrays, and format='(python|arrow)' hands out nulls"):
            reader(path, fill_null=7, **of)
    with pytest.raises(TypeError, match="fill_null of column 'n' must be a number, got '1'"):
        reader(path, batch_size=2, fill_null={"n": "1"})
