"""How items travel: small ones in the message, large ones in a slot; what a user keeps, drops, or never opens."""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reading_services.processes.arena import Arena
from reading_services.processes.payloads import Delivery, PayloadPacker, Receiver
from reading_services.processes.wire import Layout
from tests.processes.values import DTYPES, make, same, tensors

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

INLINE = 64 << 10
KEPT = 8


class Link:
    """A sender and its receiver. ``arena`` is None for a link without shared memory."""

    def __init__(self, arena: Arena | None) -> None:
        self.arena = arena
        self.packer, self.receiver = PayloadPacker(arena), Receiver(arena)
        self.layout = Layout(sizes=())
        self.payload = b""

    def send(self, *items: Any) -> Delivery:
        self.layout, payload = self.packer.pack(list(items))
        self.payload = bytes(payload)
        return self.receiver.arrive(self.layout, memoryview(bytearray(payload)))

    def trip(self, *items: Any) -> list[Any]:
        return self.send(*items).open()

    @property
    def slots(self) -> int:
        """How many slots are in use."""
        assert self.arena is not None
        return sum(self.arena.flags)

    def close(self) -> None:
        if self.arena is not None:
            self.arena.close()
        del self.packer, self.receiver  # and with them the mappings


def full_arena() -> Arena:
    """One that the system refuses to let grow."""
    fd = os.memfd_create("full", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    return Arena(fd)


MAKERS: dict[str, Callable[[], Arena | None]] = {"arena": Arena, "full arena": full_arena, "no arena": lambda: None}


@pytest.fixture
def link() -> Iterator[Link]:
    link = Link(Arena())
    yield link
    link.close()


@pytest.fixture(params=MAKERS)
def any_link(request: pytest.FixtureRequest) -> Iterator[Link]:
    link = Link(MAKERS[request.param]())
    yield link
    link.close()


def image(number: int, size_bytes: int = 100_000) -> torch.Tensor:
    return torch.full((size_bytes,), number, dtype=torch.uint8)


# -- equal ------------------------------------------------------------------------------------


@st.composite
def large_values(draw: st.DrawFn) -> Any:
    """Arrays and tensors on both sides of what goes out of band, of any dtype and layout."""
    dtype = draw(st.sampled_from(DTYPES))
    count = draw(st.sampled_from([2000, 16_383, 16_384, 16_385, 40_001])) // dtype.itemsize
    value = make(dtype, (count, 2), draw(st.integers(0, 2**32)))
    way = draw(st.sampled_from(["as it is", "transposed", "steps", "part", "column"]))
    if way == "transposed":
        value = value.T
    elif way == "steps":
        value = value[::2]
    elif way == "part":
        value = value[3:]
    elif way == "column":
        value = value[:, 1]
    if draw(st.booleans()):
        try:
            return value.numpy()
        except TypeError:  # a dtype that numpy does not have
            pass
    return value


VALUES = st.one_of(tensors(), large_values(), st.sampled_from([np.zeros(0), np.float32(1.5), "text", b"bytes", None]))
SHAPES = st.recursive(
    st.integers(0, 5),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    ),
    max_leaves=8,
)


def fill(shape: Any, values: list[Any]) -> Any:
    """``shape`` with numbers replaced by values, the same object for the same number."""
    if isinstance(shape, dict):
        return {key: fill(inner, values) for key, inner in shape.items()}
    if isinstance(shape, int):
        return values[shape % len(values)]
    return type(shape)(fill(inner, values) for inner in shape)


def collect(shape: Any, got: Any, found: dict[int, list[Any]], count: int) -> None:
    """What arrived in the place of each value; the containers are of the same kind and size."""
    if isinstance(shape, int):
        found.setdefault(shape % count, []).append(got)
        return
    assert type(got) is type(shape)
    assert len(got) == len(shape)
    pairs = zip(shape.values(), got.values(), strict=True) if isinstance(shape, dict) else zip(shape, got, strict=True)
    if isinstance(shape, dict):
        assert list(got) == list(shape)
    for inner, arrived in pairs:
        collect(inner, arrived, found, count)


def assert_same(got: Any, sent: Any) -> None:
    if isinstance(sent, torch.Tensor):
        assert same(got, sent)
    elif isinstance(sent, np.ndarray):
        assert (type(got), got.dtype, got.shape) == (type(sent), sent.dtype, sent.shape)
        assert got.tobytes() == sent.tobytes()
        assert got.flags.writeable
    else:
        assert (type(got), got) == (type(sent), sent)


@pytest.mark.parametrize("kind", MAKERS)
@given(values=st.lists(VALUES, min_size=1, max_size=5), shape=st.lists(SHAPES, min_size=1, max_size=4))
def test_what_arrives_is_equal_and_the_same_object_stays_one(kind: str, values: list[Any], shape: list[Any]) -> None:
    link = Link(MAKERS[kind]())
    found: dict[int, list[Any]] = {}
    collect(shape, link.trip(*fill(shape, values)), found, len(values))
    for number, arrived in found.items():
        for got in arrived:
            assert_same(got, values[number])
            assert got is arrived[0]
    link.close()


def test_the_same_in_several_deliveries(any_link: Link) -> None:
    kept = []
    for number in range(3 * KEPT):
        kept += any_link.trip(image(number), {"small": torch.tensor(number)}, image(number, 20_001))
        assert len(kept) == 3 * number + 3
    for number in range(3 * KEPT):
        large, small, other = kept[3 * number : 3 * number + 3]
        assert (large == number).all()
        assert small["small"] == number
        assert (other == number).all()


def test_no_items(any_link: Link) -> None:
    assert any_link.trip() == []


# -- where they lie ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "items",
    [[], [1, "text"], [torch.arange(1000)], [np.zeros(16_383, np.uint8)] * 3, [bytes(INLINE - 100)]],
    ids=["none", "plain", "small tensor", "almost large", "bytes"],
)
def test_small_items_are_within_the_message(link: Link, items: list[Any]) -> None:
    link.trip(*items)
    assert link.layout.slot == -1
    assert link.layout.sizes == (len(link.payload),)
    assert link.slots == 0


@pytest.mark.parametrize(
    "items",
    [[np.zeros(16_384, np.uint8)], [image(1)], [1, {"deep": image(1)}], [bytes(INLINE)], [*range(40_000)]],
    ids=["just large", "tensor", "deep", "bytes", "many"],
)
def test_large_items_are_in_a_slot(link: Link, items: list[Any]) -> None:
    delivery = link.send(*items)
    assert link.payload == b""
    assert link.layout.slot == 0
    assert sum(link.layout.sizes) <= link.layout.capacity
    assert delivery.size_bytes == sum(link.layout.sizes)
    assert link.slots == 1
    got = delivery.open()
    assert len(got) == len(items)


def test_what_needs_no_view_gives_its_slot_back_when_it_is_opened(link: Link) -> None:
    delivery = link.send(bytes(1_000_000))
    assert link.slots == 1
    kept = delivery.open()
    assert link.slots == 0
    link.trip(b"x" * 1_000_000)
    assert kept == [bytes(1_000_000)]


def test_out_of_band_buffers_are_aligned(link: Link) -> None:
    sent = [torch.arange(20_001 + number, dtype=torch.uint8) for number in range(5)]
    got = link.trip("an odd text", *sent, np.arange(20_003, dtype=np.float64))
    assert link.layout.slot == 0
    assert len(link.layout.sizes) == 7
    assert all(tensor.data_ptr() % 64 == 0 for tensor in got[1:6])
    assert got[6].ctypes.data % 64 == 0
    kept = [link.trip(image(number)) for number in range(KEPT)]
    assert got[1].data_ptr() % 64 == 0
    copied = link.trip(torch.arange(20_001, dtype=torch.float64), np.arange(20_003, dtype=np.float64))
    assert copied[0].data_ptr() % 8 == 0
    assert copied[1].flags.aligned
    assert len(kept) == KEPT


@pytest.mark.parametrize("kind", ["full arena", "no arena"])
def test_out_of_band_buffers_are_aligned_within_a_payload(kind: str) -> None:
    link = Link(MAKERS[kind]())
    sent = [bytes([number]) * (20_001 + number) for number in range(1, 5)]
    link.trip(*[bytearray_array(data) for data in sent])
    assert len(link.layout.sizes) == 5
    offset = 0
    for size, data in zip(link.layout.sizes, [None, *sent], strict=True):
        assert offset % 64 == 0
        assert data is None or link.payload[offset : offset + size] == data
        offset += math.ceil(size / 64) * 64
    assert offset == len(link.payload)
    link.close()


def bytearray_array(data: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(bytearray(data), np.uint8)


# -- made in place ----------------------------------------------------------------------------


def made_in(link: Link, number: int, size_bytes: int = 100_000) -> torch.Tensor:
    """A tensor that is made where it can be sent from without a copy."""
    memory = link.packer.memory(size_bytes)
    assert memory is not None
    return torch.frombuffer(memory, dtype=torch.uint8).fill_(number)


def send_list(link: Link, items: list[Any]) -> list[Any]:
    """As ``link.trip``, but nothing else keeps the items."""
    layout, payload = link.packer.pack(items)
    assert items == []
    link.layout = layout
    return link.receiver.arrive(layout, memoryview(bytearray(payload))).open()


def test_what_is_made_in_place_is_sent_from_there(link: Link) -> None:
    (got,) = send_list(link, [{"x": made_in(link, 7), "y": 3}])
    (place,) = link.layout.placed
    assert (place.buffer, place.slot, place.start) == (0, 0, 0)
    assert link.layout.slot == -1
    assert got["y"] == 3
    assert (got["x"] == 7).all()
    assert len(got["x"]) == 100_000
    assert link.slots == 1
    del got
    assert link.slots == 0
    assert int(made_in(link, 8)[0]) == 8  # in the same slot
    assert len(link.packer._slots._slots) == 1  # type: ignore[union-attr]


def test_what_the_sender_still_has_is_copied(link: Link) -> None:
    kept = made_in(link, 7)
    part = kept[10:]
    del kept
    (got,) = send_list(link, [part[:50_000]])
    assert link.layout.placed == ()
    got.fill_(9)
    assert (part == 7).all()
    part.fill_(8)
    assert (got == 9).all()
    del got
    assert link.slots == 0
    assert not (made_in(link, 1).data_ptr() <= part.data_ptr() < made_in(link, 1).data_ptr() + 100_000)
    assert (part == 8).all()


def test_views_of_one_place_stay_views_of_one_place(link: Link) -> None:
    whole = made_in(link, 5)
    items = [whole, {"tail": whole[-20_000:]}, image(6)]
    del whole
    got = send_list(link, items)
    assert [place.slot for place in link.layout.placed] == [0, 0]
    assert link.slots == 2
    got[0].fill_(1)
    assert (got[1]["tail"] == 1).all()
    assert (got[2] == 6).all()
    del got[0]
    assert link.slots == 2
    del got[0]
    assert link.slots == 1


def test_what_is_made_in_place_and_not_sent_is_free_again(link: Link) -> None:
    for number in range(20):
        assert int(made_in(link, number)[0]) == number
    assert link.slots == 0
    assert len(link.packer._slots._slots) == 1  # type: ignore[union-attr]


def test_only_so_much_is_made_in_place_at_a_time(link: Link) -> None:
    kept = [made_in(link, number) for number in range(KEPT)]
    assert link.packer.memory(100_000) is None
    del kept[3]
    kept.append(made_in(link, 50))
    assert link.packer.memory(100_000) is None
    assert [int(item[0]) for item in kept] == [0, 1, 2, 4, 5, 6, 7, 50]


def test_small_items_are_not_made_in_place(link: Link) -> None:
    assert link.packer.memory(INLINE - 1) is None
    assert link.packer.memory(INLINE) is not None


@pytest.mark.parametrize("kind", ["full arena", "no arena"])
def test_without_shared_memory_nothing_is_made_in_place(kind: str) -> None:
    link = Link(MAKERS[kind]())
    assert link.packer.memory(100_000) is None
    link.close()


def test_an_item_that_cannot_be_sent_leaves_the_others_as_they_were(link: Link) -> None:
    items: list[Any] = [made_in(link, 4), (number for number in range(3))]
    with pytest.raises(TypeError, match="cannot pickle"):
        link.packer.pack(items)
    assert len(items) == 2
    (got,) = send_list(link, items[:1])
    assert link.layout.placed == ()  # the list above has it still
    assert (got == 4).all()


def test_whoever_keeps_many_gets_copies_of_what_was_made_in_place_too(link: Link) -> None:
    kept: list[Any] = []
    for number in range(KEPT + 5):
        kept += send_list(link, [made_in(link, number)])
        assert len(link.layout.placed) == 1
        assert link.slots == min(number + 1, KEPT)
    assert [int(item.unique()) for item in kept] == list(range(KEPT + 5))


# -- how long ---------------------------------------------------------------------------------


def test_a_slot_comes_back_with_the_last_item_of_its_delivery(link: Link) -> None:
    one, two = link.trip(image(1), image(2))
    assert link.slots == 1  # both are in it
    part = one[5:10]
    del one, two
    assert link.slots == 1
    link.trip(image(3))
    assert part.tolist() == [1] * 5
    del part
    assert link.slots == 0


def test_a_delivery_that_nobody_opens_gives_its_slot_back(link: Link) -> None:
    delivery = link.send(image(1))
    assert link.slots == 1
    del delivery
    assert link.slots == 0
    assert link.trip(image(2))[0][0] == 2
    assert link.layout.slot == 0


def test_deliveries_that_wait_do_not_count_as_kept(link: Link) -> None:
    """They are bounded by the sender's window. Only what a user has in hand is."""
    waiting = [link.send(image(number)) for number in range(2 * KEPT)]
    assert link.slots == 2 * KEPT
    for number, delivery in enumerate(waiting):
        (item,) = delivery.open()
        assert (item == number).all()
        del item
    assert link.slots == 0


def test_whoever_keeps_many_gets_private_copies(link: Link) -> None:
    kept = []
    for number in range(KEPT + 5):
        kept += link.trip(image(number))
        assert link.slots == min(number + 1, KEPT)
    assert link.layout.slot == KEPT  # the one that is used for all that follows
    assert [int(item[0]) for item in kept] == list(range(KEPT + 5))
    kept[-1].fill_(99)  # a copy of its own
    kept[0].fill_(98)
    assert [int(item.unique()) for item in kept] == [98, *range(1, KEPT + 4), 99]
    del kept[3]
    assert link.slots == KEPT - 1
    kept += link.trip(image(50))
    assert link.slots == KEPT  # in place again
    assert [int(item.unique()) for item in kept] == [98, 1, 2, *range(4, KEPT + 4), 99, 50]


def test_a_copy_of_one_delivery_stays_one_for_all_its_items(link: Link) -> None:
    kept = [link.trip(image(number)) for number in range(KEPT)]
    tensor = image(100)
    one, two, three = link.trip(tensor, {"same": tensor}, image(101))
    assert link.slots == KEPT
    assert one is two["same"]
    assert (one == 100).all()
    assert (three == 101).all()
    assert len(kept) == KEPT


def test_an_error_while_rebuilding_gives_the_slot_back(link: Link) -> None:
    delivery = link.send(image(1), Unwilling())
    assert link.slots == 1
    with pytest.raises(ValueError, match="not here"):
        delivery.open()
    del delivery
    assert link.slots == 0


class Unwilling:
    def __reduce__(self) -> Any:
        return refuse, ()


def refuse() -> None:
    raise ValueError("not here")


def test_an_error_while_packing_takes_no_slot(link: Link) -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        link.send(image(1), (number for number in range(3)))
    assert link.slots == 0


def test_a_shortage_is_told_once() -> None:
    for kind, short in (("arena", False), ("full arena", True), ("no arena", False)):
        link = Link(MAKERS[kind]())
        assert link.packer.take_notices() == []
        (got,) = link.trip(image(7))
        assert (got == 7).all()
        assert len(link.packer.take_notices()) == short
        assert link.packer.take_notices() == []
        assert (link.layout.slot >= 0) == (kind == "arena")
        got.zero_()  # writable all the same
        del got
        link.close()
