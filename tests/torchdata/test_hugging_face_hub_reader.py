"""``HuggingFaceHubReader``."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torchpipe.iter import HuggingFaceHubReader


def test_datasets_are_loaded_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"id": range(9)}), tmp_path / "0.parquet")
    options = {"data_files": str(tmp_path / "*.parquet"), "cache_dir": str(tmp_path / "cache")}
    reader = HuggingFaceHubReader("parquet", split="train", **options)
    assert [row["id"] for row in reader] == list(range(9))
    assert reader.streams  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="choose of 'train'"):
        HuggingFaceHubReader("parquet", **options)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match="pip install datasets$"):
        HuggingFaceHubReader("parquet")
