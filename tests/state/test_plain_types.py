"""Harmless types are data: they come back exactly, without pickle, and without a call of any class of the user's."""

from __future__ import annotations

import array
import datetime
import enum
import io
import pathlib
import sys
import uuid
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import msgpack
import numpy as np
import PIL.Image
import PIL.PngImagePlugin
import pytest
import torch

from tests.state.forging import sealed, tagged
from tests.warm import Warm
from torchpipe.errors import StateError, UnsafeStateError
from torchpipe.state import OpaqueItem, decode, encode, opaque_notes

Pair = namedtuple("Pair", "left right")


class Typed(NamedTuple):
    number: int
    text: str = ""


class Color(enum.Enum):
    RED = 1
    GREEN = "g"


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Record:
    number: int
    content: Any = None
    hidden: list[int] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        if self.number == 666:
            raise AssertionError("__post_init__ was called")


@dataclass(frozen=True, slots=True)
class Slotted:
    number: int


PLAIN: list[Any] = [
    pathlib.Path("a/b"),
    pathlib.PureWindowsPath("c:\\x"),
    datetime.datetime(2026, 1, 2, 3, 4, 5, 6),
    datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC, fold=1),
    datetime.datetime(2026, 1, 2, tzinfo=zoneinfo.ZoneInfo("UTC")),
    datetime.date(2026, 1, 2),
    datetime.time(3, 4, tzinfo=datetime.timezone(datetime.timedelta(hours=1), "X")),
    datetime.timedelta(-1, 2, 3),
    OrderedDict(b=1, a=(2,)),
    defaultdict(list, {1: [2]}),
    Counter("abca"),
    deque([1, (2,)], 5),
    Decimal("1.50"),
    Decimal("NaN"),
    uuid.UUID(int=2**100),
    range(1, 10, 2),
    torch.Size([1, 2]),
    torch.bfloat16,
    torch.device("cpu"),
    torch.zeros(2, requires_grad=True),
    np.array([(1, (2.0, 3.0))], dtype=[("a", "i4"), ("b", "f8", (2,))]),
    np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])[0],
    np.array([None, "a", (1, {"b": 2})], dtype=object).reshape(3, 1),
    Pair(1, (2,)),
    Typed(1, "x"),
    Record(1, (2, {"a": torch.ones(1)})),
    Slotted(3),
    Color.GREEN,
    Level.LOW,
    msgpack.ExtType(8, b"abc"),
    msgpack.Timestamp(1, 2),
]


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: type(value).__name__)
def test_it_comes_back_as_it_was(value: Any) -> None:
    for held in (value, [value], (value, 1), {"key": value}, [[{"a": (value,)}]]):
        data = encode(held)
        assert opaque_notes(data) == []
        restored = decode(data)
        assert type(restored) is type(held)
        assert repr(restored).partition(" at 0x")[0] == repr(held).partition(" at 0x")[0]
        assert encode(restored) == data


@pytest.mark.parametrize(
    "value", [{"__cursor__": 1}, {"__dispatched__": [1]}, {"cursor": 1}, {"dealt": [0], "position": 1}], ids=repr
)
def test_no_key_of_the_users_means_anything(value: Any) -> None:
    assert decode(encode({"buffer": [value]})) == {"buffer": [value]}


def test_nothing_of_the_class_is_called() -> None:
    record = Record(1)
    record.number = 666
    assert decode(encode(record)) == record


def test_deep_structures_come_back() -> None:
    value: Any = ()
    for _ in range(400):
        value = (value,)
    data = encode({"buffer": [value]})
    assert encode(decode(data)) == data


def test_what_would_lose_something_is_left_to_pickle() -> None:
    tensor = torch.zeros(2)
    tensor.tag = "attached"  # type: ignore[attr-defined]

    @dataclass
    class Local:
        number: int

    class Deleted(NamedTuple):
        number: int

    for value in (
        tensor,
        Local(1),
        Deleted(1),
        defaultdict(lambda: 3),
        array.array("i", [1]),
        np.ma.array([1]),
        datetime.datetime(2026, 1, 2, tzinfo=_OwnZone()),
        torch.nn.Parameter(torch.ones(2)),
        Fraction(1, 3),
        uuid.UUID(int=3, is_safe=uuid.SafeUUID.safe),
    ):
        data = encode([value])
        assert len(opaque_notes(data)) == 1
        with pytest.raises(UnsafeStateError, match="allow_pickle=True"):
            decode(data)


class _OwnZone(datetime.tzinfo):
    """A time zone of the user's."""


def test_an_autograd_graph_is_refused_by_name() -> None:
    leaf = torch.ones(2, requires_grad=True)
    with pytest.raises(StateError, match=r"tensor of shape \(2,\) belongs to an autograd graph.* detach\(\)"):
        encode([leaf * 2])
    leaf.sum().backward()
    with pytest.raises(StateError, match="autograd"):  # its gradient would be lost
        encode(leaf)


def test_a_missing_class_is_named_and_not_imported() -> None:
    data = encode(Record(1)).replace(b"Record", b"Retord")
    with pytest.raises(StateError, match="checksum"):
        decode(data)
    for parts, said in (
        ((40, "tests.gone", "Record", "dataclass", {}), "class tests.gone.Record, which is not there: import"),
        ((40, __name__, "Gone", "tuple", [], 1), rf"class {__name__}.Gone, which is not there"),
        ((40, __name__, "Record", "tuple", [], 1), "as a tuple, which that class is not"),
        ((40, __name__, "Record", "dataclass", {"number": 1}), "with the fields"),
        ((40, __name__, "Pair", "tuple", ["a", "b"], 1, 2), "with the fields"),
        ((40, __name__, "Color", "enum", "BLUE"), "the member 'BLUE' of the enum"),
        ((40, "os", "system", "dataclass", {}), "os.system, which is not there"),
        ((40, "subprocess", "Popen", "dataclass", {"args": ["true"]}), "which that class is not"),
    ):
        with pytest.raises(StateError, match=said):
            decode(sealed(tagged(*parts)))
    assert "tests.gone" not in sys.modules


def test_naming_a_module_does_not_import_it(warm: Warm, tmp_path: pathlib.Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys; from torchpipe.state import decode; from torchpipe.errors import StateError\n"
        "data = bytes.fromhex(sys.argv[1])\n"
        "try: decode(data)\nexcept StateError as error: print(error)\n"
        "print('antigravity' in sys.modules)"
    )
    data = sealed(tagged(40, "antigravity", "fly", "dataclass", {})).hex()
    done = warm.run([str(script), data], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "which is not there" in done.stdout
    assert done.stdout.endswith("False\n")


def test_a_class_with_a_finalizer_is_left_to_pickle() -> None:
    """A forger could have it run with attributes of his choice."""
    assert [name for name, _ in opaque_notes(encode(Finalized("x")))] == [f"{__name__}.Finalized"]
    with pytest.raises(StateError, match="which that class is not"):
        decode(sealed(tagged(40, __name__, "Finalized", "dataclass", {"path": "y"})))


@dataclass
class Finalized:
    path: str

    def __del__(self) -> None:
        if self.path != "x":
            raise AssertionError("a finalizer ran with what a state says")


def test_inspect_makes_nothing_of_a_users_class() -> None:
    shown = decode(encode([Record(1)]), keep_opaque=True)
    assert isinstance(shown[0], OpaqueItem)
    assert "Record" in repr(shown[0])


class Ordinary:
    """Only pickle can rebuild it."""


def test_a_missing_class_of_a_pickle_is_not_called_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(Ordinary())
    monkeypatch.delattr(sys.modules[__name__], "Ordinary")
    with pytest.raises(StateError, match=r"of type .*Ordinary, whose class is not there"):
        decode(data, allow_pickle=True)


def as_file(image: PIL.Image.Image, form: str, **how: Any) -> PIL.Image.Image:
    """The same image, read from a file that is still open."""
    buffer = io.BytesIO()
    image.save(buffer, form, **how)
    return PIL.Image.open(io.BytesIO(buffer.getvalue()))


def noise(mode: str, size: tuple[int, int] = (9, 5)) -> PIL.Image.Image:
    length = len(PIL.Image.new(mode, size).tobytes())
    content = np.random.default_rng(0).integers(0, 256, length, dtype=np.uint8).tobytes()
    return PIL.Image.frombytes(mode, size, content) if content else PIL.Image.new(mode, size)


@pytest.mark.parametrize("mode", PIL.Image.MODES)
def test_images_of_every_mode_come_back(mode: str) -> None:
    for image in (noise(mode), noise(mode, (0, 3))):
        data = encode({"image": (image, 1)})
        assert opaque_notes(data) == []
        restored = decode(data)["image"][0]
        assert type(restored) is PIL.Image.Image
        assert restored == image  # mode, size, palette, info and content
        assert encode({"image": (restored, 1)}) == data


def with_text() -> PIL.Image.Image:
    texts = PIL.PngImagePlugin.PngInfo()
    texts.add_itxt("title", "a", "en", "title")
    return as_file(noise("L"), "PNG", pnginfo=texts)


def of_palette() -> PIL.Image.Image:
    image = noise("P")
    image.putpalette([value for index in range(256) for value in (index, 255 - index, 7)])
    return image


IMAGES: dict[str, Any] = {
    "palette": of_palette,
    "palette with alpha": lambda: noise("RGBA").quantize(9),
    "png": lambda: as_file(of_palette(), "PNG", transparency=5),
    "png with alphas": lambda: as_file(of_palette(), "PNG", transparency=bytes(range(256))),
    "png with texts": with_text,
    "gif": lambda: as_file(of_palette(), "GIF", transparency=3),
    "jpeg": lambda: as_file(noise("RGB"), "JPEG", dpi=(72, 72)),
    "tiff": lambda: as_file(noise("RGB"), "TIFF", dpi=(72.5, 71)),
    "mpo": lambda: as_file(noise("RGB"), "MPO", save_all=True, append_images=[noise("RGB")]),
}


@pytest.mark.parametrize("kind", IMAGES)
@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
def test_images_of_files_come_back_loaded(kind: str) -> None:
    image = IMAGES[kind]()
    data = encode(image)
    assert opaque_notes(data) == []
    restored = decode(data)
    assert (restored.mode, restored.size, restored.format) == (image.mode, image.size, image.format)
    assert restored.info == image.info
    for mode in ("RGB", "RGBA"):
        assert restored.convert(mode).tobytes() == image.convert(mode).tobytes()
    assert encode(restored) == data


class Own(PIL.Image.Image):
    """A class of the user's."""


def test_images_that_a_state_would_change() -> None:
    own = noise("L")
    own.__class__ = Own
    animated = as_file(of_palette(), "GIF", save_all=True, append_images=[noise("P")])
    for image in (own, animated):
        assert len(opaque_notes(encode(image))) == 1
    labelled = noise("L")
    labelled.getexif()
    labelled.save(io.BytesIO(), "PNG")
    assert opaque_notes(encode(labelled)) == []
    labelled.label = 3  # type: ignore[attr-defined]
    with pytest.raises(StateError, match="an image has the attribute 'label', which a state would lose"):
        encode(labelled)


@pytest.mark.parametrize(
    "parts",
    [
        ("RGB", [1 << 20, 1 << 20], b"", [], {}, None),
        ("RGB", [1, 1], b"abcd", [], {}, None),
        ("L", [-1, 1], b"", [], {}, None),
        ("L", [1], b"a", [], {}, None),
        ("XYZ", [1, 1], b"abc", [], {}, None),
        (["L"], [1, 1], b"a", [], {}, None),
        ("L", [1, 1], b"a", ["RGB", b"abc"], {}, None),
        ("P", [1, 1], b"a", ["RGB", b"a" * 1000], {}, None),
        ("P", [1, 1], b"a", ["CMYK", b"abcd"], {}, None),
        ("P", [1, 1], b"a", ["RGB", 3], {}, None),
        ("L", [1, 1], b"a", [], [], None),
        ("L", [1, 1], b"a", [], {}, 3),
        ("L", [1, 1], b"a"),
    ],
)
def test_forged_images_are_refused(parts: Any) -> None:
    with pytest.raises(StateError):
        decode(sealed(tagged(35, *parts)))
