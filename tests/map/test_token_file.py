"""``TokenFile``: Megatron's files, ``.npy`` and bare ones, by number; what does not fit its header is refused when it
is made."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper
from torchpipe.map import TokenFile
from torchpipe.node.fingerprint import fingerprint
from torchpipe.testing import check_node

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}


def write_megatron(
    path: Path,
    sequences: list[list[int]],
    dtype: str = "uint16",
    modes: bool = False,
    documents: list[int] | None = None,
) -> Path:
    """As Megatron's ``IndexedDatasetBuilder`` does; ``documents`` are the sequences where these begin and the last
    ends, by default each is one."""
    arrays = [np.array(sequence, dtype) for sequence in sequences]
    path.write_bytes(b"".join(array.tobytes() for array in arrays))
    sizes = np.array([len(array) for array in arrays], "<i4")
    begins = np.cumsum([0, *[array.nbytes for array in arrays]])[:-1].astype("<i8")
    starts = np.array(range(len(arrays) + 1) if documents is None else documents, "<i8")
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, CODES[dtype], len(arrays), len(starts))
    rest = sizes.tobytes() + begins.tobytes() + starts.tobytes() + bytes(len(arrays) if modes else 0)
    path.with_suffix(".idx").write_bytes(header + rest)
    return path


def as_lists(node: Any) -> list[list[int]]:
    return [item.tolist() for item in node]


SEQUENCES = [[1, 2, 3], [], [40_000], [5, 6]]


@pytest.mark.parametrize("modes", [False, True])
def test_megatrons_sequences_are_the_items(tmp_path: Path, modes: bool) -> None:
    node = TokenFile(write_megatron(tmp_path / "a.bin", SEQUENCES, modes=modes))
    assert [node[index].tolist() for index in range(len(node))] == SEQUENCES
    assert node[0].dtype == torch.int64
    for dtype in CODES:
        write_megatron(tmp_path / "b.bin", [[1, 2], [3]], dtype)
        stored = TokenFile(tmp_path / "b.bin", tensor_dtype=None)
        assert stored[0].tolist() == [1, 2]
        assert stored[0].numpy().dtype == dtype


def test_windows_are_cut_from_one_run(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(10, dtype=np.uint16))
    np.arange(100, 105, dtype=np.int32).tofile(tmp_path / "b.bin")
    write_megatron(tmp_path / "c.bin", SEQUENCES)
    assert as_lists(TokenFile(tmp_path / "a.npy", 4).to_iter_datapipe()) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    pairs = TokenFile(tmp_path / "a.npy", 4, step=3)
    assert as_lists(pairs.to_iter_datapipe()) == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]
    assert as_lists(TokenFile(tmp_path / "b.bin", 2, dtype="int32").to_iter_datapipe()) == [[100, 101], [102, 103]]
    assert as_lists(TokenFile(tmp_path / "c.bin", 3).to_iter_datapipe()) == [[1, 2, 3], [40_000, 5, 6]]


@pytest.mark.parametrize("length", [1, 3, 4, 50])
def test_windows_say_what_pack_says_of_the_same_documents(tmp_path: Path, length: int) -> None:
    check_windows(tmp_path, write_megatron, length)


def check_windows(tmp_path: Path, write: Callable[..., Path], length: int) -> None:
    random = np.random.default_rng(length)
    documents = [random.integers(60_000, size=size).tolist() for size in (3, 0, 1, 9, 4, 0, 0, 30, 1, 2)]
    path = write(tmp_path / "a.bin", documents)
    windows = list(TokenFile(path, length, documents=True).to_iter_datapipe())
    packs = list(IterableWrapper([torch.tensor(document) for document in documents]).pack(length))
    assert len(windows) == 50 // length
    for window, pack in zip(windows, packs):
        assert window.keys() == pack.keys()
        for name, value in window.items():
            assert value.dtype == pack[name].dtype
            assert value.tolist() == pack[name].tolist()


def test_a_document_of_several_sequences_is_one_and_windows_may_overlap(tmp_path: Path) -> None:
    path = write_megatron(tmp_path / "a.bin", [[1, 2], [3], [], [4, 5], [6]], documents=[0, 2, 3, 5])
    node = TokenFile([path, path], 4, step=2, documents=True)
    assert [window["segment_ids"].tolist() for window in node.to_iter_datapipe()] == 2 * [[1, 1, 1, 2], [1, 2, 2, 2]]
    assert [window["positions"].tolist() for window in node.to_iter_datapipe()] == 2 * [[0, 1, 2, 0], [0, 0, 1, 2]]
    node[0]["segment_ids"][:] = 9  # a copy
    assert pickle.loads(pickle.dumps(node))[0]["segment_ids"].tolist() == [1, 1, 1, 2]
    check_node(lambda: TokenFile(path, 2, documents=True).shuffle().sharding_filter(), epochs=[0], num_shards=2)
    assert fingerprint(node) != fingerprint(TokenFile([path, path], 4, step=2))


def test_documents_need_an_index_that_has_them(tmp_path: Path) -> None:
    path = write_megatron(tmp_path / "a.bin", [[1, 2], [3]], documents=[0, 2, 1])
    assert len(TokenFile(path, 2)) == 1
    with pytest.raises(ValueError, match=r"a\.idx is damaged: documents should begin at its 2 sequences, in order"):
        TokenFile(path, 2, documents=True)
    with pytest.raises(ValueError, match="documents=True is of windows: give length"):
        TokenFile(path, documents=True)
    np.save(tmp_path / "b.npy", np.arange(4))
    with pytest.raises(ValueError, match=r"documents=True needs .*b\.npy has no b\.idx of Megatron's beside it"):
        TokenFile([tmp_path / "b.npy", path], 2, documents=True)


def test_rows_and_several_files(tmp_path: Path) -> None:
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.full((number, 2), number))
    node = TokenFile(tmp_path / "{0..2}.npy")
    assert as_lists(node.to_iter_datapipe()) == [[1, 1], [2, 2], [2, 2]]
    node[0][:] = 9  # a copy
    assert node[0].tolist() == [1, 1]
    assert node[-1].tolist() == [2, 2]
    for wrong in (3, -4):
        with pytest.raises(IndexError, match=f"Index {wrong} is out of range: TokenFile has 3 items"):
            node[wrong]


@pytest.mark.parametrize("dtype", [">u2", ">i4", "<i8", ">i8"])
def test_the_order_of_bytes_is_the_files(tmp_path: Path, dtype: str) -> None:
    numbers = np.arange(300, 312, dtype=dtype)
    np.save(tmp_path / "rows.npy", numbers.reshape(3, 4))
    numbers.tofile(tmp_path / "run.bin")
    rows = TokenFile(tmp_path / "rows.npy")
    assert as_lists(rows.to_iter_datapipe()) == numbers.reshape(3, 4).tolist()
    assert as_lists(TokenFile(tmp_path / "rows.npy", 5).to_iter_datapipe()) == [[*range(300, 305)], [*range(305, 310)]]
    assert as_lists(TokenFile(tmp_path / "run.bin", 6, dtype=dtype).to_iter_datapipe())[1] == [*range(306, 312)]
    assert TokenFile(tmp_path / "rows.npy", tensor_dtype=None)[0].tolist() == [300, 301, 302, 303]


def test_rows_that_stand_in_no_place_are_refused_when_the_node_is_made(tmp_path: Path) -> None:
    table = np.arange(12).reshape(4, 3)
    np.save(tmp_path / "columns.npy", table.T)
    for length in (None, 4):
        with pytest.raises(ValueError, match=r"columns\.npy is stored column by column .*np\.ascontiguousarray"):
            TokenFile(tmp_path / "columns.npy", length)
    np.save(tmp_path / "columns.npy", np.ascontiguousarray(table.T))
    assert as_lists(TokenFile(tmp_path / "columns.npy").to_iter_datapipe()) == table.T.tolist()
    np.save(tmp_path / "one.npy", table[:, :1].T)  # a single row, or column, stands in one place either way
    assert as_lists(TokenFile(tmp_path / "one.npy").to_iter_datapipe()) == [[0, 3, 6, 9]]


def test_numbers_that_torch_has_not_are_refused_when_the_node_is_made(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(4, np.longdouble))
    with pytest.raises(ValueError, match="torch has no tensor of that type"):
        TokenFile(tmp_path / "a.npy", 2, tensor_dtype=None)


def test_L2_exact_resume(tmp_path: Path) -> None:
    write_megatron(tmp_path / "a.bin", [[number] * number for number in range(9)])
    check_node(lambda: TokenFile(tmp_path / "a.bin").shuffle().sharding_filter(), epochs=[0])
    check_node(lambda: TokenFile(tmp_path / "a.bin", 5).to_iter_datapipe(), epochs=[0], num_shards=1)


def test_L5_a_shard_reads_its_own_items_alone_and_a_resume_none_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchpipe.formats.tokens import TokenSequences
    from torchpipe.node.datapipe import iterate

    read = []
    real = TokenSequences.__getitem__
    monkeypatch.setattr(TokenSequences, "__getitem__", lambda self, number: read.append(number) or real(self, number))
    write_megatron(tmp_path / "a.bin", [[number] for number in range(48)])
    node = TokenFile(tmp_path / "a.bin").to_iter_datapipe().sharding_filter()
    iterator = iterate(node, shard=1, num_shards=4)
    assert as_lists([next(iterator) for _ in range(10)]) == [[number] for number in range(1, 40, 4)]
    assert read == list(range(1, 40, 4))
    read.clear()
    again = iterate(node, shard=1, num_shards=4)
    again.load_state_dict(iterator.state_dict())
    assert as_lists(again) == [[41], [45]]
    assert read == [41, 45]


def test_L3_workers_map_the_files_themselves(tmp_path: Path) -> None:
    write_megatron(tmp_path / "a.bin", [[number] * 3 for number in range(20)])
    node = TokenFile(tmp_path / "a.bin")
    assert node[3].tolist() == [3, 3, 3]
    assert len(pickle.dumps(node)) < 2_000
    graph = node.shuffle().sharding_filter().batch(2).collate()
    loader: DataLoader2[Any] = DataLoader2(graph, reading_service=MultiProcessingReadingService(num_workers=2))
    loader.seed(1)
    batches = list(loader)
    loader.shutdown()
    assert sorted(int(row[0]) for batch in batches for row in batch) == list(range(20))


def test_bad_files_are_refused_when_the_node_is_made(tmp_path: Path) -> None:
    path = write_megatron(tmp_path / "a.bin", SEQUENCES)
    index = path.with_suffix(".idx")
    whole, data = index.read_bytes(), path.read_bytes()
    for wrong, message in (
        (whole[:-1], r"a\.idx is cut off or damaged: of 4 sequences it should have \d+ bytes, not \d+"),
        (whole[:20], r"a\.idx is no index of Megatron's"),
        (b"X" + whole[1:], r"does not begin with MMIDIDX"),
        (whole[:9] + b"\x02" + whole[10:], r"has version 2 and type 8"),
        (whole[:17] + b"\x63" + whole[18:], r"has version 1 and type 99"),
    ):
        index.write_bytes(wrong)
        with pytest.raises(ValueError, match=message):
            TokenFile(path)
    index.write_bytes(whole)
    path.write_bytes(data[:-2])
    with pytest.raises(ValueError, match=r"a\.bin is cut off at byte 10: its last sequence ends at byte 12"):
        TokenFile(path)
    path.write_bytes(data)
    begin = 34 + 4 * 4 + 8
    index.write_bytes(whole[:begin] + struct.pack("<q", 1 << 40) + whole[begin + 8 :])
    with pytest.raises(ValueError, match=r"a\.idx is damaged: sequence 1 should be 0 tokens from byte 1099511627776"):
        TokenFile(path)[1]
    index.unlink()
    with pytest.raises(ValueError, match="no whole number of int64: 12 bytes"):
        TokenFile(path, 2, dtype="int64")


def test_bad_arrays_and_arguments_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(8).reshape(2, 2, 2))
    with pytest.raises(ValueError, match=r"has the shape \(2, 2, 2\)"):
        TokenFile(path)
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"a\.npy is no \.npy file of numbers"):
        TokenFile(path)
    np.save(path, np.zeros(4))
    with pytest.raises(ValueError, match="holds float64, no tokens: give tensor_dtype"):
        TokenFile(path, 2)
    np.save(path, np.arange(4))
    with pytest.raises(ValueError, match="holds int64, not dtype=int32"):
        TokenFile(path, 2, dtype="int32")
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match=r"a\.npy is (no \.npy file|cut off)"):
        TokenFile(path, 2)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"a\.npy is no \.npy file"):
        TokenFile(path, 2)
    with pytest.raises(FileNotFoundError, match="TokenFile found no file"):
        TokenFile(tmp_path / "missing.bin")


@pytest.mark.parametrize("length", [None, 2])
def test_another_index_is_another_data_set_and_another_folder_is_not(tmp_path: Path, length: int | None) -> None:
    def identity(folder: str, sequences: list[list[int]]) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        path = write_megatron(tmp_path / folder / "a.bin", sequences)
        return fingerprint(TokenFile(path, length).to_iter_datapipe())

    first = identity("a", [[1, 2], [3, 4], [5, 6]])
    assert identity("b", [[1, 2], [3, 4], [5, 6]]) == first
    assert identity("a", [[1, 2], [3, 4, 5, 6]]) != first
