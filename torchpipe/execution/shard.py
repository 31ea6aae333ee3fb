"""One shard of the stream being produced: its pass over the graph, its random states, its snapshots.

Runs in the user's process (in-process execution) or in a worker; the same code in both, so that the streams are equal.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from inspect import isroutine
from itertools import islice
from typing import Any, Protocol, TypeAlias, TypeVar

from torch.nn import Module
from torch.utils.data import Dataset

from torchpipe.errors import StateError, StateMismatchError
from torchpipe.execution.epoch import ShardSpec, WorkerInfo
from torchpipe.node.checksum import checksum_of
from torchpipe.node.context import Context
from torchpipe.node.failures import add_position
from torchpipe.node.graph_pass import GraphPass
from torchpipe.node.host import Host
from torchpipe.node.iterator import MayReplay, NodeIterator, refusing_misfits, stored_count
from torchpipe.node.opaque_warnings import OpaqueItemFinder
from torchpipe.node.tolerance import forget
from torchpipe.node.traits import (
    DataPipe,
    goes_on,
    has_assumption,
    is_node,
    is_ours,
    private_copy,
    reads_shared,
    walk,
    with_inputs,
    yields_new_tensors,
)
from torchpipe.node.user_code import runs_users_code
from torchpipe.node.user_warnings import REPLAYS, announce_replays
from torchpipe.randomness.global_random import GlobalRandom
from torchpipe.randomness.seeds import SeedGenerator, derive_seed
from torchpipe.state import Cursor, decode, encode

__all__ = [
    "Chunk",
    "InitFn",
    "Keep",
    "ResetFn",
    "Shard",
    "ShardGraphs",
    "announce_leading",
    "assumed_at",
    "beginning",
    "behind",
    "leads",
]

T = TypeVar("T")

InitFn: TypeAlias = Callable[[Any, WorkerInfo], Any]
ResetFn: TypeAlias = Callable[[Any, WorkerInfo, SeedGenerator], Any]

_RESET_SEEDS, _INIT_SEEDS = 0x5EED, 0x1417  # keep the seeds of reset and init functions apart from all others
_BRANCH = 0xB4A7C4  # and the global random states of a shard's further branches


_BEFORE = "before"  # in a shard's snapshot: the global random states of what stands before sharding points
_ASSUMPTIONS = "premises"  # in a shard's snapshot: [node_id, assumption()] of nodes
_BEHIND = "behind"  # in the one at which a pass begins: where the pass before was left, whose work it goes on from
_QUICK_S = 50e-6
_MOST_AT_ONCE = 64  # items that turn slow are noticed after so many
_NOT_KNOWN: Any = object()  # in the place of an item


@dataclass(slots=True)
class Chunk:
    """Consecutive items of one shard.

    ``snapshot`` describes the position after the last item; ``ended`` says that the shard has no more: then it says
    where the next pass begins, if that is not the start. ``error`` was raised after the last item, in place of the next
    one. ``notice`` is a warning for the user.
    """

    items: list[Any] = field(default_factory=list)
    snapshot: bytes | None = None
    ended: bool = False
    error: BaseException | None = None
    notice: str | None = None


class Keep(Protocol):
    """Makes of an item what is held of it while code of the user's makes the next one."""

    last: Any  # the item that came last

    def extend(self, items: list[Any], made: Iterable[Any]) -> None:
        """Append to ``items`` what is held of those that are ``made``. An exception leaves those before it."""


def beginning(assumptions: list[Any]) -> bytes:
    """The start of a pass in which nodes are taken to have ``[node_id, values]``."""
    return encode({REPLAYS: [], _ASSUMPTIONS: assumptions, "iterator": Cursor().to_state()})


def behind(left: Cursor, seed: int, epoch: int, *, ended: bool) -> Cursor:
    """The start of a pass that goes on from the one before, which was ``left`` there, or has ``ended``."""
    before: list[Any] = []
    if left.snapshot is not None and not left.count:  # that pass has given nothing
        before = decode(left.snapshot, keep_opaque=True).get(_BEHIND, before)
        left = Cursor() if before else left
    where = {"seed": seed, "epoch": epoch, "ended": ended} | left.to_state()
    return Cursor(encode({REPLAYS: [], _BEHIND: [*before, where], "iterator": Cursor().to_state()}), 0, 0)


def announce_leading(lanes: list[Cursor] | None) -> None:
    """Announce what is replayed to lead passes to where they were left, before others begin at ``lanes``."""
    states = [decode(begin.snapshot, keep_opaque=True) for begin in lanes or () if begin.snapshot is not None]
    left = [Cursor.from_state(where) for state in states for where in state.get(_BEHIND, ())]
    announce_replays((cursor, cursor.count) for cursor in left if cursor is not None)


def leads(begin: Cursor) -> bool:
    """True if a pass that begins there leads others on first."""
    return begin.snapshot is not None and _BEHIND in decode(begin.snapshot, keep_opaque=True)


def assumed_at(begin: Cursor) -> list[Any]:
    """The values that a pass which goes on from ``begin`` takes nodes to have; none where others are led on first."""
    state = {} if begin.snapshot is None else decode(begin.snapshot, allow_pickle=True)  # checked or allowed
    with refusing_misfits("a shard"):
        return [] if _BEHIND in state else [assumption for _, assumption in state.get(_ASSUMPTIONS, ())]


def _numbers_of(where: dict[str, Any]) -> tuple[int, int]:
    return stored_count(where, "seed", (1 << 63) - 1), stored_count(where, "epoch")


@dataclass(eq=False)
class Shard:
    """Produces the items of one shard, in one of its branches, from a cursor on.

    ``graphs`` are the shard's branches, of which ``branch`` is run: numbered together, so that what they share has the
    same random streams in each.

    With ``manage_random`` the shard has its own global random states; whoever calls :meth:`start`, :meth:`produce` or
    :meth:`close` does so :meth:`within` it. Not thread-safe. ``passing``: what :meth:`produce` lets through at
    once, such as Ctrl-C in the user's process; in others, only the user's function can have raised that.
    ``substitutes_of``: of the graph that is run, what stands for which of its nodes. ``host``: the environment of its
    passes, of which a shard decides itself what is alike for all shards.
    """

    graphs: tuple[DataPipe, ...]
    spec: ShardSpec
    _: KW_ONLY
    branch: int = 0
    reset_fn: ResetFn | None = None
    manage_random: bool = True
    section: int = 0
    host: Host = field(default_factory=Host)
    passing: tuple[type[BaseException], ...] = (BaseException,)
    substitutes_of: Callable[[DataPipe], Mapping[int, Callable[[Context], NodeIterator[Any]]]] | None = None

    def __post_init__(self) -> None:
        spec = self.spec
        self.produced = 0
        self._first = 0  # ``produced`` when it was started
        self._refused = False
        self._assumptions: list[tuple[int, Any]] = []  # what a replay from the start has to know of nodes
        self._first_snapshot_due = False  # a first snapshot, which tells them
        self._goes_on = False  # True if a pass changes a node
        self._at_once = 1
        self._policy = self.host.policy()
        self._context: Context | None = None
        self._stream: Any = iter(())
        further = ([self.section] if self.section else []) + ([_BRANCH, self.branch] if self.branch else [])
        key = (spec.seed, spec.epoch, spec.global_shard, *further)
        self._runs_users_code = self.reset_fn is not None or runs_users_code(self.graphs[self.branch])
        self._random = GlobalRandom(key) if self._runs_users_code and self.manage_random else None

    def enter(self) -> None:
        """Put the shard's global random states in place, until :meth:`leave`."""
        if self._random is not None:
            self._random.enter()

    def leave(self) -> None:
        if self._random is not None:
            self._random.leave()

    def within(self, step: Callable[[], T]) -> T:
        """The result of ``step``, run with the shard's own global random states, if it has any."""
        return step() if self._random is None else self._random.within(step)

    def start(self, cursor: Cursor, *, snapshot_first: bool = False) -> None:
        """Make the pass over the graph and go to ``cursor``. With ``snapshot_first`` a snapshot is due behind the first
        item, whatever the policy says.
        """
        spec, position = self.spec, cursor.count
        graph = self.graphs[self.branch]
        if self.reset_fn is not None:
            info = WorkerInfo(spec.num_shards, spec.shard)
            seeds = SeedGenerator(derive_seed(spec.seed, spec.epoch, _RESET_SEEDS)).spawn(spec.global_shard)
            graph = _expect_node(self.reset_fn(graph, info, seeds), "worker_reset_fn")
        state = None if cursor.snapshot is None else decode(cursor.snapshot, allow_pickle=True)  # checked or allowed
        with refusing_misfits(f"shard {spec.shard}"):
            assumed = {} if state is None else dict(state.get(_ASSUMPTIONS, ()))
            left = None if state is None else state.get(_BEHIND)
        if left is not None:
            self._lead_on(graph, left)
        context = Context.for_graph(
            *self.graphs[: self.branch],
            graph,
            *self.graphs[self.branch + 1 :],
            **spec.in_context,
            section=self.section,
            substitutes={} if self.substitutes_of is None else self.substitutes_of(graph),
            shared=GraphPass(assumed=assumed),
            host=replace(
                self.host,
                encodes=True,
                strict=spec.strict,
                threads=False,  # threads would make the order of global random draws depend on timing
                allow_pickle=True,  # loaders check a state when it is loaded; what comes here is safe or allowed
                announces=self.section == 2,  # what shards replay, their snapshots say
            ),
        )
        self._iterator = context.iterate(graph)
        self._context = context
        self._assumptions = [(context.node_id(node), node.assumption()) for node in walk(graph) if has_assumption(node)]
        self._first_snapshot_due = snapshot_first or (not position and bool(self._assumptions))
        self._goes_on = any(map(goes_on, walk(graph)))
        try:
            self._go_to(cursor, state, context)
        except StateError:
            raise
        except Exception as error:
            if position:
                at = spec.describe(position, _word_of(graph))
                add_position(error, f"one of the {_items_word(graph)} before {at}, which are made again")
            raise
        self._stream = self._iterator.items()
        self.produced = self._first = position

    def _lead_on(self, graph: DataPipe, left: list[dict[str, Any]]) -> None:
        """Lead the passes before to where they were left, and at least behind their first items: what they change on
        the way, the one to begin goes on from.
        """
        with refusing_misfits(f"shard {self.spec.shard}"):
            last = _numbers_of(left[-1])
        nodes = [node for node in walk(graph) if goes_on(node)]
        again = [node.begins_again(*last) for node in nodes]  # each of them
        if any(again) or left[-1]["ended"]:
            for where in left:
                with refusing_misfits(f"shard {self.spec.shard}"):
                    (seed, epoch), cursor = _numbers_of(where), where["cursor"]
                before = replace(
                    self,
                    spec=replace(self.spec, seed=seed, epoch=epoch),
                    host=replace(self.host, trace=None),
                )
                before.within(partial(before._lead_to, cursor, ended=where["ended"]))

    def _lead_to(self, cursor: Cursor, *, ended: bool) -> None:
        self.start(cursor)
        with nullcontext() if cursor.count or ended else suppress(Exception):  # an error, at which it was left
            deque(islice(self._stream, None if ended else int(not cursor.count)), 0)
        self.close()

    def _go_to(self, cursor: Cursor, state: Any, context: Context) -> None:
        """Bring the pass that has begun to ``cursor``, whose snapshot says ``state``."""
        spec = self.spec
        self._holders = OpaqueItemFinder(self._iterator)
        if state is not None:
            with refusing_misfits(f"shard {spec.shard}"):
                saved, random = state["iterator"], state.get("random")
            # Outside: it may replay, and functions of the user's may fail
            again = Cursor.from_state(saved)
            if again is not None and again.snapshot is None:
                last = self._iterator.drop(again.skip)
                if "check" in state:
                    self._check_replay(again.skip, last, state["check"])
            else:
                self._iterator.load_state_dict(saved)
            if not self.manage_random and (state.get("random") or any(state.get(_BEFORE, {}).values())):
                raise StateError(
                    "the state holds global random states, which functions have drawn from, and here items are made in "
                    "a thread, which cannot have its own: load it with prefetch_cnt=0, or with worker processes"
                )
            if _BEFORE in state:
                with refusing_misfits(f"shard {spec.shard}"):
                    context.shared.random.load(state[_BEFORE])
            if self._random is not None and "random" in state:
                with refusing_misfits(f"shard {spec.shard}"):
                    self._random.load_state_dict(random)
        self._iterator.drop(cursor.skip)

    def snapshot(self) -> bytes | None:
        """The snapshot of its position; None if all of its items, made again, lead there alone. Raises: StateError."""
        state = self._state_now()
        return None if state is None else encode(state, locate=self._holders)

    @property
    def yields_new_tensors(self) -> bool:
        """True if nobody else holds the tensors in its items."""
        return yields_new_tensors(self.graphs[self.branch])

    @property
    def made(self) -> int:
        """Items that it has produced since it was started."""
        return self.produced - self._first

    def produce(
        self,
        limit: int,
        seconds: float = 0.0,
        note: Callable[[int, int], int] | None = None,
        keep: Keep | None = None,
    ) -> Chunk:
        """The next items, at most ``limit`` (at least 1); no further one is begun after ``seconds``, or little more.

        A chunk also ends where a snapshot is due. Quick items are made several at a time, between two looks at the
        clock: ``note`` is told the index of the first and their number before, and says how many it may be. User errors
        are returned in the chunk, with a note of their position, but for those of ``passing`` that are no Exception.
        ``keep`` makes of an item what the chunk holds of it, before the next one is begun: who makes that may change
        this one.
        """
        chunk = Chunk()
        if self.host.trace is not None:
            self._stream = self.host.trace.plain(self._stream)
        keep = keep if self._runs_users_code else None
        items, policy = chunk.items, self._policy
        stream, extend = self._stream, items.extend if keep is None else partial(keep.extend, items)
        began = now = time.perf_counter()
        first, due = self.produced, False
        try:
            while True:
                at_once = 1 if self._first_snapshot_due else min(self._at_once, limit - len(items), policy.left)
                if note is not None:
                    at_once = note(first + len(items), at_once)
                made = len(items)
                extend(islice(stream, at_once))  # item by item: what was made before an exception stays in the list
                made = len(items) - made
                due = policy.due(made) or self._first_snapshot_due
                if made < at_once:
                    chunk.ended = True
                    break
                before, now = now, time.perf_counter()
                self._set_pace(now - before, at_once)
                if due or len(items) >= limit or now - began >= seconds:
                    break
            self.produced = first + len(items)
            if chunk.ended:
                chunk.snapshot = self.next_pass()
            elif due:
                # Which runs code of the user's, as making items does
                self._take_snapshot(chunk, items[-1] if keep is None else keep.last)
        except BaseException as error:
            if not isinstance(error, Exception) and isinstance(error, self.passing):
                raise
            words = getattr(self.graphs[self.branch], "item_words", ())
            add_position(error, self.spec.describe(first + len(items), *words))
            forget(error)
            chunk.error = error
        finally:
            self.produced = first + len(items)
            if keep is not None:
                keep.last = None
        return chunk

    def _set_pace(self, seconds: float, items: int) -> None:
        """Make more items at once if they are quick, down to one if they are not: 0.1 ms or so between two looks."""
        if seconds < _QUICK_S and items == self._at_once:
            self._at_once = min(_MOST_AT_ONCE, 2 * items)
        elif seconds > 4 * _QUICK_S:
            self._at_once = max(1, items // 4)

    def _take_snapshot(self, chunk: Chunk, last: Any) -> None:
        """Let ``chunk`` carry a snapshot, if one can be taken here; an older one and more items to drop do as well."""
        self._policy.begin()
        try:
            state = self._state_now(last)
            chunk.snapshot = encode(state, locate=self._holders)
        except StateError as error:
            if self._first_snapshot_due:
                chunk.snapshot = encode(self._assumption() | {"iterator": Cursor(None, self.produced).to_state()})
            if not self._refused:
                self._refused = True
                chunk.notice = (
                    f"no snapshot can be taken of shard {self.spec.shard} after item {self.produced}: {error}. Until "
                    "one can, a resume has to run the items since the last one again"
                )
        finally:
            self._policy.end()
            self._first_snapshot_due = False

    def _assumption(self) -> dict[str, Any]:
        return {_ASSUMPTIONS: [list(assumption) for assumption in self._assumptions]} if self._assumptions else {}

    def next_pass(self) -> bytes | None:
        """The start of the next pass if this one is over here; None if it has changed nothing of its own start."""
        nodes = [] if self._context is None else walk(self.graphs[self.branch])
        found = [(node, node.assumption()) for node in nodes if goes_on(node)]
        if self._context is None or not any(assumption for _, assumption in found):
            return None
        return beginning([[self._context.node_id(node), assumption] for node, assumption in found])

    def _check_replay(self, count: int, last: Any, check: Any) -> None:
        if count and checksum_of(last) != check:
            names = " or ".join(item.to_replay()[0] for item in self._replays()) or "the graph"
            words = _items_word(self.graphs[self.branch])
            raise StateMismatchError(
                f"{names} does not give again what it gave: a replay of {count} {words} does not end with the one that "
                f"was handed out, so nothing says what is left. {_CAUSES}"
            )

    def _replays(self) -> list[MayReplay[Any]]:
        return [] if self._context is None else self._context.shared.replaying()

    def _state_now(self, last: Any = _NOT_KNOWN) -> dict[str, Any] | None:
        random_state = None if self._random is None else self._random.state_dict()
        before = {} if self._context is None else self._context.shared.random.state()
        replays = self._replays()
        lengths = [item.to_replay() for item in replays]
        # A replayed node may have drawn from the global states, or have read what others have read on from: then only
        # a replay of the whole shard is exact. One that goes on from pass to pass may give something else: that shows
        # in a replay of the whole, in what was handed out.
        drawn = random_state is not None or any(before.values())
        draws_nothing = not drawn and not self._goes_on
        whole = any(item.replayed and (not draws_nothing or reads_shared(item.node)) for item in replays)
        own = None if whole else self._iterator.state_dict()
        torn = "" if whole or self._context is None or not drawn else self._context.shared.torn()
        if torn:
            lengths.append((f"{torn}, before which functions draw from the global random states,", self.produced))
        state: dict[str, Any] = {REPLAYS: [[name, length] for name, length in lengths if length]} | self._assumption()
        if own is None or torn:
            if last is _NOT_KNOWN:
                return None
            return state | {"iterator": Cursor(None, self.produced).to_state(), "check": checksum_of(last)}
        return state | {"iterator": own, "random": random_state} | ({_BEFORE: before} if before else {})

    def close(self) -> None:
        """Let go of the pass. Idempotent."""
        context, self._context = self._context, None
        self._stream = iter(())
        if context is not None:
            self._iterator.close()


def _items_word(graph: DataPipe) -> str:
    """The word for items of a graph, in the plural."""
    word = _word_of(graph)
    return f"{word}es" if word.endswith("ch") else f"{word}s"


def _word_of(graph: DataPipe) -> str:
    """The word for an item of a graph."""
    word: str = getattr(graph, "item_words", ("item",))[0]
    return word


_CAUSES = (
    "Its code or its data have changed, it keeps something from one item or pass to the next (a counter, what it has "
    "seen), or draws from what is not reproducible (a random generator of its own, the time, what threads do). Give it "
    "state_dict() and load_state_dict(); or let what it does depend on the item and on plain attributes alone (an "
    "epoch's number that set_epoch() puts there, a random generator)"
)


class ShardGraphs:
    """The branches that ``init_fn`` makes: once for each shard in each process that hosts it, when it begins to.

    Each shard has nodes of its own, and objects that they call: what ``init_fn`` or ``reset_fn`` sets in them is that
    shard's alone, whichever others the process hosts.
    """

    def __init__(self, branches: tuple[DataPipe, ...], init_fn: InitFn | None, reset_fn: ResetFn | None) -> None:
        self.branches = branches
        self._init_fn = init_fn
        self._are_changed = init_fn is not None or reset_fn is not None
        self._made: dict[tuple[int, int], tuple[DataPipe, ...]] = {}

    def of(self, spec: ShardSpec) -> tuple[DataPipe, ...]:
        """The branches of a shard; ``init_fn`` has global random states of its own meanwhile."""
        init_fn, key = self._init_fn, (spec.num_shards, spec.shard)
        if not self._are_changed:
            return self.branches
        if key not in self._made:
            own = _copies(self.branches)
            if init_fn is None:
                self._made[key] = own
                return own
            info = WorkerInfo(spec.num_shards, spec.shard)
            random = GlobalRandom((spec.seed, spec.total_shards, spec.global_shard, _INIT_SEEDS))
            self._made[key] = random.within(
                lambda: tuple(_expect_node(init_fn(item, info), "worker_init_fn") for item in own)
            )
        return self._made[key]

    def forget(self, spec: ShardSpec) -> None:
        """This process hosts the shard no more: if it does again, all begins from the branches as they were given."""
        self._made.pop((spec.num_shards, spec.shard), None)


def _copies(branches: tuple[DataPipe, ...]) -> tuple[DataPipe, ...]:
    """Copies of the nodes, joined as these are, with copies of the objects of the user's that they call."""
    made: dict[int, DataPipe] = {}

    def copied(node: DataPipe) -> DataPipe:
        if id(node) not in made:
            clone: DataPipe = with_inputs(node, copied, private=not is_ours(type(node).__module__))
            for name, value in list(vars(clone).items()):
                if callable(value) and hasattr(value, "__dict__") and not isinstance(value, type | Module | Dataset):
                    vars(clone)[name] = value if isroutine(value) else private_copy(value)
            made[id(node)] = clone
        return made[id(node)]

    return tuple(map(copied, branches))


def _expect_node(value: Any, function: str) -> DataPipe:
    if not is_node(value):
        raise TypeError(f"{function} must return the datapipe (changed or not), got {value!r}: is a return missing?")
    return value  # type: ignore[no-any-return]
