"""``read_webdataset``: samples by key, decoded by ending, from every sample on; a missing partner is named."""

from __future__ import annotations

import gzip
import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.reads import bytes_read_by
from torchpipe import DataLoader2
from torchpipe.errors import StateError
from torchpipe.iter import PathList, WebDatasetReader
from torchpipe.node.datapipe import iterate
from torchpipe.testing import check_node
from torchpipe.testing.compare import freeze


def write_shard(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def picture(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((4, 6, 3), value, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer) if isinstance(value, torch.Tensor) else np.save(buffer, value)
    return buffer.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for shard, count in enumerate([5, 0, 4]):
        files = {"__meta__.json": b"not a sample", "readme": b"neither"}
        for number in range(count):
            files[f"train/{shard}{number}.cls"] = str(10 * shard + number).encode()
            files[f"train/{shard}{number}.TXT"] = f"text {shard}{number}".encode()
        write_shard(tmp_path / f"s-{shard:03}.tar", files)
    return tmp_path


CLASSES = [0, 1, 2, 3, 4, 20, 21, 22, 23]


def test_samples_are_dicts_by_ending(folder: Path) -> None:
    samples = list(WebDatasetReader(folder / "s-{000..002}.tar"))
    assert samples[0] == {"__key__": "train/00", "__url__": f"{folder}/s-000.tar", "cls": 0, "txt": "text 00"}
    assert [sample["cls"] for sample in samples] == CLASSES
    assert [sample["cls"] for sample in PathList(str(folder / "*.tar")).read_webdataset(["cls"])] == CLASSES
    assert "txt" not in next(iter(WebDatasetReader(folder / "*", ["cls"])))


def test_contents_are_decoded_by_ending(tmp_path: Path) -> None:
    files = {
        "a.b/c.png": picture(7),
        "a.b/c.json": b'{"k": [1]}',
        "a.b/c.x.npy": saved(np.arange(3)),
        "a.b/c.pt": saved(torch.tensor([1.5])),
        "a.b/c.bin": b"\x00\x01",
        "a.b/c.own": b"abc",
    }
    path = write_shard(tmp_path / "a.tar", files)
    (sample,) = WebDatasetReader(path, handlers={".own": bytes.upper})
    assert sample["__key__"] == "a.b/c"
    assert (sample["png"].size, sample["json"], sample["bin"], sample["own"]) == (
        (6, 4),
        {"k": [1]},
        b"\x00\x01",
        b"ABC",
    )
    assert sample["x.npy"].tolist() == [0, 1, 2]
    assert torch.equal(sample["pt"], torch.tensor([1.5]))
    (array,) = WebDatasetReader(path, ["jpg;png"], images="rgb8")
    assert array["jpg"].shape == (4, 6, 3)
    (tensor,) = WebDatasetReader(path, ["png"], images="torchrgb8")
    assert torch.equal(tensor["png"], torch.full((3, 4, 6), 7, dtype=torch.uint8))
    (raw,) = WebDatasetReader(path, decode=False)
    assert {name: raw[name] for name in ("png", "json", "x.npy")} == {
        name: files[f"a.b/c.{name}"] for name in ("png", "json", "x.npy")
    }
    (content,) = WebDatasetReader(path, ["png"], images=None)
    assert content["png"] == picture(7)


@pytest.mark.parametrize("spelling", ["own", ".own", "OWN", ".Own"])
@pytest.mark.parametrize("decode", [True, False])
@pytest.mark.parametrize("named", ["a.own", "a.OWN"])
def test_handlers_are_found_however_their_ending_is_spelled(
    spelling: str, decode: bool, named: str, tmp_path: Path
) -> None:
    path = write_shard(tmp_path / "a.tar", {named: b"abc"})
    (sample,) = WebDatasetReader(path, decode=decode, handlers={spelling: bytes.upper})
    assert sample[named.removeprefix("a.").lower()] == b"ABC"


_MODES = ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I;16", "I", "F"]


@pytest.mark.parametrize("mode", _MODES)
def test_images_of_8_bits_keep_their_levels_and_others_are_an_error_that_names_pil(mode: str, tmp_path: Path) -> None:
    deep = np.arange(0, 65000, 650).reshape(10, 10)
    arrays = {"I;16": deep.astype(np.uint16), "I": deep.astype(np.int32), "F": (deep / 65536).astype(np.float32)}
    image = Image.fromarray(arrays[mode]) if mode in arrays else Image.new("RGB", (9, 5), (7, 8, 9)).convert(mode)
    assert image.mode == mode
    buffer = io.BytesIO()
    image.save(buffer, "TIFF")
    path = write_shard(tmp_path / "a.tar", {"a.tiff": buffer.getvalue(), "b.png": picture(7)})
    (first, _) = WebDatasetReader(path)
    assert np.array_equal(np.asarray(first["tiff"]), np.asarray(image))
    for images in ("rgb8", "torchrgb8"):
        read = WebDatasetReader(path, images=images)
        if mode in arrays:
            with pytest.raises(ValueError, match=f"mode {mode} has more than the 8 bits .* images='pil'"):
                list(read)
            assert [sample["__key__"] for sample in read.on_error("skip")] == ["b"]
        else:
            array = np.asarray(next(iter(read))["tiff"])
            assert np.array_equal(array.transpose(1, 2, 0) if images == "torchrgb8" else array, image.convert("RGB"))


def test_L2_exact_resume(folder: Path) -> None:
    check_node(lambda: WebDatasetReader(folder / "*.tar"), epochs=[0])
    check_node(
        lambda: PathList(folder / "*.tar").shuffle().sharding_filter().read_webdataset(["cls"]).shuffle(), positions=6
    )
    check_node(lambda: WebDatasetReader(folder / "*.tar").sharding_filter(), epochs=[0], num_shards=3, positions=5)


def test_L2_exact_resume_in_compressed_shards(folder: Path) -> None:
    for number in (0, 2):
        whole = (folder / f"s-{number:03}.tar").read_bytes()
        parts = [whole[first : first + 700] for first in range(0, len(whole), 700)]
        (folder / f"s-{number:03}.tar.gz").write_bytes(b"".join(map(gzip.compress, parts)))
    check_node(lambda: WebDatasetReader(folder / "*.gz"), epochs=[0], num_shards=1)
    assert [sample["cls"] for sample in WebDatasetReader(folder / "*.gz")] == CLASSES


def test_L1_a_shard_decodes_its_own_samples_alone(folder: Path) -> None:
    decoded: list[bytes] = []
    node = WebDatasetReader(
        folder / "*.tar", ["cls"], handlers={"cls": lambda content: decoded.append(content) or int(content)}
    )
    whole = [freeze(sample) for sample in node]
    for shard in range(4):
        decoded.clear()
        assert [freeze(one) for one in iterate(node.sharding_filter(), shard=shard, num_shards=4)] == whole[shard::4]
        assert len(decoded) == len(whole[shard::4])


def test_L5_a_resume_and_a_shard_do_not_read_what_they_pass_over(tmp_path: Path) -> None:
    files = {f"{number:03}.bin": bytes(400_000) for number in range(30)}
    path = write_shard(tmp_path / "a.tar", files)
    node = WebDatasetReader(path)
    iterator = iterate(node)
    costs = []
    for number in range(1, 29):
        next(iterator)
        if number % 9 == 1:
            again = iterate(node)
            again.load_state_dict(iterator.state_dict())
            costs.append(
                bytes_read_by(lambda again=again, number=number: _same(next(again)["__key__"], f"{number:03}"))
            )
            again.close()
    iterator.close()
    assert max(costs) < 1_500_000  # of 12 MB
    assert max(costs) - min(costs) < 300_000
    part = bytes_read_by(lambda: list(iterate(node.sharding_filter(), shard=0, num_shards=10)))
    assert part < 10_000_000  # 3 of 30 contents, and a buffer for each header
    none = bytes_read_by(lambda: list(WebDatasetReader(path, handlers={}).sharding_filter().take(1)))
    assert none < 1_500_000


def _same(got: object, expected: object) -> None:
    assert got == expected


@pytest.mark.parametrize(
    ("files", "arguments", "message", "place"),
    [
        (
            {"0.jpg": b"x", "0.cls": b"1", "1.jpg": b"x", "2.jpg": b"x", "2.cls": b"3"},
            {"extensions": ["jpg", "cls"], "images": None},
            r"sample '1' has no file that ends with \.cls, only jpg",
            "sample 1 (byte 2048)",
        ),
        ({"0.cls": b"1", "0.CLS": b"1"}, {}, r"sample '0' has two files that end with \.cls", "sample 0 (byte 0)"),
        (
            {"0.cls": b"1", "1.cls": b"one"},
            {},
            r"invalid literal for int.*\nwhile decoding 1\.cls",
            "sample 1 (byte 1024)",
        ),
        ({"0.json": b"{"}, {}, r"Expecting property name.*\nwhile decoding 0\.json", "sample 0 (byte 0)"),
        ({"0.png": picture(1)[:45]}, {}, r"(?s)while decoding 0\.png", "sample 0 (byte 0)"),
        ({"0.txt": b"\xff"}, {}, r"can't decode byte 0xff.*\nwhile decoding 0\.txt", "sample 0 (byte 0)"),
    ],
)
def test_L7_a_bad_sample_is_named(tmp_path: Path, files: Any, arguments: Any, message: str, place: str) -> None:
    path = write_shard(tmp_path / "a.tar", files)
    iterator = iterate(WebDatasetReader(path, **arguments))
    with pytest.raises((ValueError, OSError), match=message) as caught:
        list(iterator)
    assert caught.value.__notes__[-1] == f"WebDatasetReader: while reading {path}, {place}"
    again = iterate(WebDatasetReader(path, **arguments))  # the state stands before it
    again.load_state_dict(iterator.state_dict())
    with pytest.raises(type(caught.value), match=message.split(r".*\n")[0]):
        next(again)


def test_L8_images_in_a_buffer_are_data(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.tar", {f"{number}.png": picture(number) for number in range(9)})

    def build() -> DataLoader2[Any]:
        read = WebDatasetReader(path, ["png"]).shuffle(buffer_size=5)
        loader = DataLoader2(read.map(lambda sample: sample["png"].convert("RGB").getpixel((0, 0))[0]))
        loader.seed(1)
        return loader

    expected = list(build())
    for position in (0, 3, 8):
        loader = build()
        iterator = iter(loader)
        begun = [next(iterator) for _ in range(position)]
        torch.save(loader.state_dict(), tmp_path / "state.pt")
        resumed = build()
        resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        assert begun + list(resumed) == expected


def test_L7_a_pickle_is_not_loaded(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"f": json.loads}, buffer)
    with pytest.raises(Exception, match="(?s)weights_only|Weights only"):
        list(WebDatasetReader(write_shard(tmp_path / "a.tar", {"0.pt": buffer.getvalue()})))


def test_L7_a_shard_that_is_cut_off_names_it(folder: Path) -> None:
    path = folder / "s-000.tar"
    path.write_bytes(path.read_bytes()[:5_000])
    with pytest.raises(EOFError, match=r"s-000\.tar is cut off before byte 5632: a tar archive ends with"):
        list(WebDatasetReader(folder / "*.tar"))


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_shard(tmp_path / "a.tar", {"0.png": picture(1)})
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(
        ImportError, match="decoding images .*needs pillow, which is not installed .*: pip install pillow"
    ):
        list(WebDatasetReader(path))
    assert len(list(WebDatasetReader(path, images=None))) == 1


def test_L8_forged_states_are_refused(folder: Path) -> None:
    iterator = iterate(WebDatasetReader(folder / "s-000.tar"))
    next(iterator)
    good = iterator.state_dict()
    iterator.close()
    for place in (
        {"at": [512], "sample": -1},
        {"at": [100], "sample": 1},
        {"at": [1536], "sample": 1},
        {"at": [1 << 40], "sample": 0},
        {},
        1,
    ):
        again = iterate(WebDatasetReader(folder / "s-000.tar"))
        with pytest.raises(StateError):
            again.load_state_dict({**good, "iterator": {**good["iterator"], "place": place}})
            next(again)
        again.close()
