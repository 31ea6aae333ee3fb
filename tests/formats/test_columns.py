"""Columns of Arrow as arrays: what Arrow itself says they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from torchpipe.iter import ParquetReader


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
