"""Checksums and examples: what other implementations gave for the same data; nothing damaged is taken for data."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tries import tries
from torchpipe.formats.tfrecord import example_parser, parse_example, read_record, write_record

# Of Google's protobuf 6 and the package crc32c: an Example and a SequenceExample, in two records.
WRITTEN = bytes.fromhex(
    "74000000000000005f6773d20a720a2f0a0369647312281a260a2400017f8001ac02ffffffffffffffffff018080808080808080408080808080"
    "80808080010a120a05696d61676512090a070a036162630a000a0e0a056c6162656c12051a030a01030a080a046e6f6e6512000a110a0178120c"
    "120a0a080000003f000000c010a0e8993e00000000000000d9d240e70a0d0a0b0a02696412051a030a0107122d0a190a06746f6b656e73120f0a"
    "061a040a0201020a051a030a01030a100a05776f72647312070a050a030a01615b13f120"
)
EXAMPLE = {
    "ids": torch.tensor([0, 1, 127, 128, 300, -1, 2**62, -(2**63)]),
    "image": [b"abc", b""],
    "label": torch.tensor([3]),
    "none": [],
    "x": torch.tensor([0.5, -2.0]),
}


def records(data: bytes) -> list[bytes]:
    file, found = io.BytesIO(data), []
    while (record := read_record("a", file.read, file.tell())) is not None:
        found.append(record)
    return found


def test_examples_are_read_as_protobuf_wrote_them() -> None:
    example, sequence = map(parse_example, records(WRITTEN))
    assert sorted(example) == sorted(EXAMPLE)
    for name, expected in EXAMPLE.items():
        same = torch.equal(example[name], expected) if isinstance(expected, torch.Tensor) else example[name] == expected
        assert same, name
    assert sequence["id"].tolist() == [7]
    assert [part.tolist() for part in sequence["tokens"]] == [[1, 2], [3]]
    assert sequence["words"] == [[b"a"]]


def test_a_record_is_written_as_others_write_it() -> None:
    file = io.BytesIO()
    for record in records(WRITTEN):
        write_record(file, record)
    assert file.getvalue() == WRITTEN


def test_lists_that_are_not_packed_are_read() -> None:
    integers = b"\x08\x01\x08\xac\x02"
    floats = b"\x0d" + np.float32(1.5).tobytes() + b"\x0d" + np.float32(-1).tobytes()

    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    def entry(name: bytes, feature: bytes) -> bytes:
        return field(1, field(1, name) + field(2, feature))

    data = field(1, entry(b"i", field(3, integers)) + entry(b"f", field(2, floats)))
    found = parse_example(data)
    assert (found["i"].tolist(), found["f"].tolist()) == ([1, 300], [1.5, -1.0])


def test_a_spec_shapes_and_chooses() -> None:
    example, sequence = records(WRITTEN)
    parse = example_parser({"label": ((), torch.int32), "x": ((2, 1), None), "image": ((2,), None)})
    found = parse(example)
    assert list(found) == ["label", "x", "image"]
    assert (found["label"].shape, found["label"].dtype, found["x"].shape) == ((), torch.int32, (2, 1))
    assert found["image"] == [b"abc", b""]
    assert example_parser({"words": ((), None)})(sequence) == {"words": b"a"}
    tokens = example_parser({"tokens": ((-1,), torch.int32), "words": ((-1, 1), None)})(sequence)
    assert (tokens["tokens"].tolist(), tokens["words"]) == ([1, 2, 3], [[b"a"]])
    for spec, message in (
        ({"y": ((), None)}, "has no feature 'y': it has ids, image, label, none, x"),
        ({"x": ((3,), None)}, r"feature 'x' has 2 values, where the shape \(3,\) has 3"),
        ({"none": ((1,), None)}, "feature 'none' has 0 values"),
    ):
        with pytest.raises(ValueError, match=message):
            example_parser(spec)(example)


def test_L7_every_changed_byte_and_every_cut_is_an_error_that_names_file_and_byte() -> None:
    for place in range(len(WRITTEN)):
        changed = bytearray(WRITTEN)
        changed[place] ^= 0x10
        with pytest.raises((ValueError, EOFError), match=r"a is (damaged|cut off).* byte (0|132)"):
            records(bytes(changed))
    for length in set(range(1, len(WRITTEN))) - {132}:
        with pytest.raises(EOFError, match=r"a is cut off within the record at byte (0|132)"):
            records(WRITTEN[:length])


@given(st.data())
@settings(max_examples=tries(300), deadline=None)
def test_L7_no_bytes_make_the_parser_fail_otherwise_than_with_a_value_error(data: st.DataObject) -> None:
    whole = records(WRITTEN)[data.draw(st.integers(0, 1))]
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(0, 4))):
        changed[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        parse_example(bytes(changed[: data.draw(st.integers(0, len(whole)))]))
    except ValueError:  # UnicodeDecodeError too
        pass
