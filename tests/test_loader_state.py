"""The state of a loader, field by field: what is missing, damaged or of another version is named in a StateError."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reading_services import MultiProcessingReadingService, OrdinalReadingService, Restart
from tests.laws.executors import make_service
from tests.services.ranks import FixedRank
from tests.state.forging import sealed, tagged
from torchpipe import DataLoader2
from torchpipe.device import DeviceOptions
from torchpipe.errors import LargeStateWarning, StateError, StateMismatchError
from torchpipe.execution.reading_service import InProcessReadingService
from torchpipe.iter import IterableWrapper
from torchpipe.loader.state import STATE_KEYS, STATE_VERSION, GraphIdentity, LoaderState, RankLayout
from torchpipe.node.fingerprint import digest
from torchpipe.node.identity import Identity
from torchpipe.state import Cursor, SnapshotPolicy, decode, encode
from torchpipe.state.flat import FlatState

GRAPH = "0 Source(size=3)\n1 Mapper(fn=f) <- 0"
OURS = GraphIdentity(root=IterableWrapper([]), text=GRAPH, data=Identity())
POSITION = {"live": [0, 1], "nested": (Cursor(encode({"at": 1}), 2).to_state(),)}


NUMBERS = ("seed", "epoch", "delivered", "num_shards", "rank", "world_size")


def plain(**changes: Any) -> dict[str, Any]:
    state = LoaderState(seed=2**70, epoch=3, delivered=4, num_shards=2, position=POSITION)
    return state.to_dict(OURS) | changes


def read(state: Any, num_shards: int | None = None) -> LoaderState:
    return LoaderState.from_dict(state, OURS, RankLayout(num_shards=num_shards))


def payload(**changes: Any) -> bytes:
    return encode(decode(plain()["payload"]) | changes)


def test_it_comes_back_as_it_was() -> None:
    for position in (POSITION, None):
        state = LoaderState(seed=2**70, epoch=3, delivered=4, num_shards=2, position=position)
        assert LoaderState.from_dict(state.to_dict(OURS), OURS, RankLayout()) == state
        assert LoaderState.from_dict(state.to_dict(OURS), OURS, RankLayout(num_shards=2)) == state


def test_it_is_flat_and_its_keys_are_fixed() -> None:
    assert tuple(plain()) == STATE_KEYS
    assert all(isinstance(value, int | str | bytes) for value in plain().values())
    assert (plain()["version"], plain()["fingerprint"]) == (STATE_VERSION, digest(GRAPH))


def test_further_keys_do_no_harm() -> None:
    assert read(plain() | {"step": 7}) == read(plain())


@pytest.mark.parametrize("key", STATE_KEYS)
def test_a_missing_key_is_named(key: str) -> None:
    state = plain()
    del state[key]
    with pytest.raises(StateError, match=f"not a torchpipe loader state: {key} missing, it has .* Pass the dict from"):
        read(state)


@pytest.mark.parametrize("version", [0, 1, "2", None, [2]])
def test_another_version_is_refused_with_both(version: Any) -> None:
    with pytest.raises(StateMismatchError, match="the state has version .* reads version 2: load it with the version"):
        read(plain(version=version))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, value) for key in ("seed", "epoch", "delivered", "num_shards") for value in (-1, "1", 1.0, None, True)),
        ("num_shards", 0),
        ("fingerprint", "0" * 16),
        ("fingerprint", 5),
        ("fingerprint", None),
        ("payload", 5),
        ("payload", None),
    ],
)
def test_a_damaged_field_is_named_with_its_value(key: str, value: Any) -> None:
    with pytest.raises(StateError, match=rf"the state is damaged: {key} is {value!r}[.,].*Use an older checkpoint"):
        read(plain(**{key: value}))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a torchpipe state: it begins with b''. Was the file damaged"),
        (b"garbage", "not a torchpipe state: it begins with b'garbage'"),
        (payload()[:-1], "bytes are damaged .* Use an older checkpoint"),
        (payload() + b"x", "bytes are damaged .* Use an older checkpoint"),
        (payload()[:3] + b"\x09" + payload()[4:], "format version 9, this torchpipe reads version 2"),
        (encode([1, 2]), "its payload holds no graph and position. Use an older checkpoint"),
        (encode({"graph": GRAPH}), "its payload holds no graph and position"),
        (payload(graph=5), "its payload holds no graph and position"),
        (payload(position=[1]), r"the position in its payload is \[1\]. Use an older checkpoint"),
        (sealed(tagged(12, None, -1, 1)), "a cursor counts what is no number of items.* Use an older checkpoint"),
        (sealed(tagged(12, None, 3, 2)), "a cursor drops 3 items to stand after 2"),
        (sealed(tagged(12, b"garbage", 0, 0)), "not a torchpipe state: it begins with b'garbage'"),
        (payload(numbers=None), "its payload does not repeat the numbers"),
        (payload(numbers=dict.fromkeys(NUMBERS, 4)), "seed is 1180591620717411303424, but its payload belongs to 4"),
    ],
)
def test_a_damaged_payload_says_what_is_wrong(data: bytes, message: str) -> None:
    with pytest.raises(StateError, match=message):
        read(plain(payload=data))


def test_a_payload_may_come_back_as_another_kind_of_bytes() -> None:
    assert read(plain(payload=bytearray(payload()))) == read(plain(payload=memoryview(payload()))) == read(plain())


@pytest.mark.parametrize(
    ("here", "where", "saved_line", "here_line"),
    [
        (GRAPH.replace("size=3", "size=4"), ", in its size", "0 Source(size=3)", "0 Source(size=4)"),
        (GRAPH + "\n2 Batcher() <- 1", "", "(no node)", "2 Batcher() <- 1"),
        ("0 Source(size=3)", "", "1 Mapper(fn=f) <- 0", "(no node)"),
    ],
)
def test_another_graph_is_shown_by_its_first_difference(here: str, where: str, saved_line: str, here_line: str) -> None:
    with pytest.raises(StateMismatchError) as caught:
        LoaderState.from_dict(plain(), replace(OURS, text=here), RankLayout())
    *lines, advice = str(caught.value).splitlines()
    assert lines == [
        f"the state belongs to another graph: fingerprint {digest(GRAPH)} was saved, this graph has {digest(here)}. "
        f"The first node that differs{where}:",
        f"  saved: {saved_line}",
        f"  here:  {here_line}",
    ]
    assert advice.startswith("Load it into the graph that saved it, or begin a new run")
    assert ("leading underscore" in advice) == ("size=4" in here)


class Tokenize:
    def __init__(self, max_len: int) -> None:
        self.max_len = max_len
        self.calls = 0

    def __call__(self, item: int) -> list[int]:
        self.calls += 1
        return [item] * self.max_len


@pytest.mark.parametrize("workers", [None, 2])
def test_a_resume_with_other_bound_values_is_refused_showing_both(workers: int | None) -> None:
    def loader(fn: Any) -> Any:
        graph = IterableWrapper(range(9)).sharding_filter().map(fn)
        return DataLoader2(graph, reading_service=make_service(workers, 2))

    with loader(Tokenize(3)) as saving:
        iterator = iter(saving)
        head = [next(iterator) for _ in range(4)]
        state = saving.state_dict()
        rest = list(iterator)
        saving.load_state_dict(state)  # what changes while it runs is of no account
        assert list(saving) == rest
    with loader(Tokenize(3)) as resumed:
        resumed.load_state_dict(state)
        assert list(resumed) == rest
    for fn, shown in ((Tokenize(4), "Tokenize(calls=0, max_len=4)"), (partial(pow, 3), "partial(pow, 3)")):
        with loader(fn) as other, pytest.raises(StateMismatchError) as caught:
            other.load_state_dict(state)
        assert "saved: 2 Mapper(fn=Tokenize(calls=0, max_len=3)," in str(caught.value)
        assert f"here:  2 Mapper(fn={shown}," in str(caught.value)
    assert head == [[item] * 3 for item in range(4)]


def test_another_number_of_shards_is_shown_with_the_way_out() -> None:
    with pytest.raises(
        StateMismatchError, match=r"num_shards=2, this loader has num_shards=3.* Leave num_shards unset"
    ):
        read(plain(), 3)


def test_a_position_that_does_not_fit_the_payload_is_found_when_the_epoch_begins() -> None:
    """Each field of the merge's own state, damaged within a payload that is otherwise sound."""
    graph = IterableWrapper(range(9)).shuffle(buffer_size=3).sharding_filter()

    def loader() -> Any:
        service = InProcessReadingService(num_shards=2, policy=lambda: SnapshotPolicy(every=1))
        return DataLoader2(graph, reading_service=service)

    saving = loader()
    iterator = iter(saving)
    for _ in range(5):
        next(iterator)
    state = saving.state_dict()
    content = decode(state["payload"])
    for key in content["position"]:
        for damage in (None, "text", [], {}, 10**6, -1, [None, None], [7, 8]):
            if damage == content["position"][key] or (key, damage) == ("counts", [7, 8]):
                continue  # as it was, or as it might have been
            damaged = content | {"position": content["position"] | {key: damage}}
            restored = loader()
            with pytest.raises(StateError):
                restored.load_state_dict(state | {"payload": encode(damaged)})
                next(iter(restored))


def _services(kind: Any) -> Any:
    return {
        "in process": lambda: InProcessReadingService(num_shards=kind(2), prefetch_cnt=kind(0)),
        "workers": lambda: MultiProcessingReadingService(
            kind(2),
            num_shards=kind(2),
            on_worker_death=Restart(max_deaths=kind(3), max_restarts=kind(9)),
            worker_prefetch_bytes=kind(200),
        ),
        "a device": lambda: MultiProcessingReadingService(
            kind(1), device=DeviceOptions("cpu", device_prefetch=kind(2))
        ),
        "ordinals": lambda: OrdinalReadingService(kind(3), kind(1), kind(2), total_shards=kind(4)),
        "ranks": lambda: FixedRank(kind(1), kind(2), kind(4), "drop"),
    }


@pytest.mark.parametrize("name", _services(int))
@pytest.mark.parametrize("kind", [np.int64, np.uint8, lambda number: torch.tensor(number)])
def test_integers_of_other_types_are_plain_in_a_state(name: str, kind: Any, tmp_path: Path) -> None:
    def loader(of: Any) -> DataLoader2[Any]:
        made: DataLoader2[Any] = DataLoader2(
            IterableWrapper(range(40)).shuffle().sharding_filter(), reading_service=_services(of)[name]()
        )
        made.seed(of(3))
        made.set_epoch(of(2))
        return made

    with loader(kind) as odd, loader(int) as plain:
        for made in (odd, plain):
            stream = iter(made)
            for _ in range(5):
                next(stream)
        state = odd.state_dict()
        assert {key: (type(value), value) for key, value in state.items() if key in NUMBERS} == {
            key: (int, value) for key, value in plain.state_dict().items() if key in NUMBERS
        }
        torch.save(state, tmp_path / "state.pt")
        rest = list(plain)
        plain.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        odd.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        assert list(plain) == list(odd) != rest


def test_a_state_that_would_not_load_is_not_saved() -> None:
    loader: DataLoader2[Any] = DataLoader2(IterableWrapper(range(4)))
    for epoch, kind in ((1 << 62, None), ((1 << 62) + 1, ValueError)):
        loader.set_epoch(epoch)
        if kind is None:
            loader.load_state_dict(loader.state_dict())
        else:
            with pytest.raises(kind, match=r"no state can be saved that would load: epoch is 46.*plain integers"):
                loader.state_dict()
    with pytest.raises(TypeError, match=r"would load: rank is np.int64\(0\)"):
        FlatState(graph="", numbers=dict.fromkeys(NUMBERS, 1) | {"rank": np.int64(0)}).to_dict()


def _thirty_megabytes(number: int) -> bytes:
    return bytes([number]) * 30_000_000


def test_L5_a_large_state_is_told_once_with_the_node_that_fills_it() -> None:
    """By a state taken before the first item, in mid-epoch, and again."""
    graph = IterableWrapper(range(8)).sharding_filter().map(_thirty_megabytes).shuffle(buffer_size=3).batch(1)
    with DataLoader2(
        graph, reading_service=InProcessReadingService(num_shards=2, policy=partial(SnapshotPolicy, every=1))
    ) as loader:
        assert loader.stats().state_bytes is None
        iterator = iter(loader)
        small = loader.state_dict()
        assert loader.stats().state_bytes == len(small["payload"]) < 10_000
        next(iterator)
        next(iterator)
        with pytest.warns(LargeStateWarning, match=r"^the state has \d+ MB: .*Shuffler holds, \d+ MB in 2 shards"):
            state = loader.state_dict()
        assert loader.stats().state_bytes == len(state["payload"]) > 100_000_000
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            iterator.state_dict()


def _thirty_more(data: bytes) -> bytes:
    return data


def test_of_a_large_state_no_node_is_said_to_hold_most_that_does_not() -> None:
    graph = IterableWrapper(range(40)).sharding_filter().map(_thirty_megabytes)
    for _ in range(3):
        graph = graph.shuffle(buffer_size=2).map(_thirty_more)
    with DataLoader2(graph, reading_service=InProcessReadingService(num_shards=2)) as loader:
        iterator = iter(loader)
        for _ in range(4):
            next(iterator)
        with pytest.warns(LargeStateWarning) as told:
            loader.state_dict(exact=True)
        assert "most of it" not in str(told[0].message)
