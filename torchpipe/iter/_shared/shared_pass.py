"""One pass over an input, shared by the passes over several branches of it: ``fork``, ``demux``, ``unzip``.

A *container* node stands between the input and its branches, which are nodes too. In each iteration context, the
branches that are read join one :class:`SharedPass` over the input; what one branch reads ahead waits there for others.
A branch that is read several times (``zip(a, a)``) takes part in as many shared passes. Branches that nothing in the
graph reads get nothing, so ``first, _ = dp.fork(2)`` holds no items.

State: each branch has the number of items that it has handed out; the shared pass has these numbers, what waits, and
the input's state. Branches may be saved at different moments (before an item that is being taken apart, say); then the
oldest state of the shared pass is taken, and each branch drops what it has handed out since. That is exact unless
functions before draw from the global random states; a shard with these is run again from its start (``Context.torn``).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from torchpipe.errors import StateError
from torchpipe.formats.storage.streams import close_streams
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.iterator import NodeIterator, refusing_misfits, stored_count, stored_items
from torchpipe.node.ownership import keeper_of, watch_inputs
from torchpipe.node.pass_copy import own_functions
from torchpipe.node.traits import DataPipe, inputs_of, node_name, pairs, walk
from torchpipe.node.user_warnings import warn_user
from torchpipe.node.validate import check_count, check_input
from torchpipe.state.copying import copy_item

__all__ = ["Branch", "Container", "SharedPass"]

_END: Any = object()


class Container(IterDataPipe[Any]):
    """The common node of branches, which share one pass over its input. Not iterated itself. Define :meth:`deal`."""

    shared = True
    names_files = True  # if its input does
    in_step = True  # True if something of every item is for each branch: then how far a branch is behind is bounded
    alike = False  # True if it is the item itself
    fingerprint_ignores = ("buffer_size",)  # a bound: it says when there is an error, not what is dealt
    form: ClassVar[str]

    @property
    def node_title(self) -> str:
        return f"{self.form}()"

    def __init__(self, datapipe: IterDataPipe[Any], num_instances: int, buffer_size: int) -> None:
        check_input(self.form, datapipe)
        self.source = datapipe
        self.num_instances = check_count("num_instances", num_instances, at_least=1)
        self.buffer_size = check_count("buffer_size", buffer_size, at_least=-1)
        if buffer_size < 0:
            warn_user(
                f"{self.form} has no bound: if one branch runs far ahead of another, its buffer grows until memory is "
                "full. Give it a buffer_size",
                UserWarning,
            )

    def branches(self) -> list[Any]:
        return [Branch(self, index) for index in range(self.num_instances)]

    def __len__(self) -> int:
        return len(self.source)

    def length_of(self, branch: int) -> int:
        """The number of items of one branch. Raises: TypeError if it is unknown."""
        return len(self.source)

    def function(self) -> Any:
        """The user's function or None; if stateful, each pass gets a copy."""
        return None

    @abstractmethod
    def deal(self, item: Any, number: int, fn: Any, branches: Collection[int]) -> Iterable[tuple[int, Any]]:
        """Pairs (branch, value) that item ``number`` of the input gives; ``branches`` are read, others are not."""

    def hand_out(self, value: Any, waits: bool) -> Any:
        """The item that a branch yields for a value dealt to it, which ``waits`` for another branch, too."""
        return value

    def iterate(self, context: Context) -> NodeIterator[Any]:
        raise TypeError(f"{node_name(self)} is read by its branches")


class Branch(IterDataPipe[Any]):
    """One of the streams that a container makes. State: the number of items handed out, and the shared pass."""

    names_files = True

    def __init__(self, main_datapipe: Container, instance_id: int) -> None:
        self.source = main_datapipe
        self.instance_id = instance_id

    @property
    def node_title(self) -> str:
        return f"branch {self.instance_id} of {node_name(self.source)}"

    def __len__(self) -> int:
        return self.source.length_of(self.instance_id)

    def iterate(self, context: Context) -> NodeIterator[Any]:
        return _BranchIterator(self, context)


class SharedPass(NodeIterator[Any]):
    """One pass over a container's input. Its iterators are in one thread, or none of them has one of its own."""

    node: Container
    keeps_items = True

    def __init__(self, node: Container, context: Context, expected: set[int]) -> None:
        # Of which branch the context is, is by chance: it is the graph that says what is paired
        failures = context.failures
        if failures is not None:
            failures = failures.at_position if _reads_once(node, context) else failures.of_branches()
        super().__init__(node, replace(context, lends=True, failures=failures), node.source)
        watch_inputs(self)
        own, functions = own_functions(node)
        self.pass_engine.functions += functions
        self.expected = expected  # the branches that take part
        self.readers: set[int] = set()  # those of them that have joined
        self.started = False
        self.torn = False
        self.overflown = False
        self._pulls = False  # True while an item of the input is asked for, and once that has raised
        context.let_draw_alike(self, node)
        fn = self.with_retries(own.function())
        self._fn = None if fn is None else self.pass_engine.drawing(fn)
        self._pulled = 0
        self._ended = False
        self._waiting: list[deque[Any]] = [deque() for _ in range(node.num_instances)]
        self._read = [0] * node.num_instances
        self._floor = [0] * node.num_instances  # what was read when the state was saved
        self._loaded: int | None = None  # the moment of the state that was loaded

    def run(self) -> Iterator[Any]:
        raise TypeError(f"{node_name(self.node)} is read by its branches")

    # --- reading

    def next_for(self, branch: int, *, bounded: bool = True) -> Any:
        """The next item of ``branch``, or the end's mark. Raises: BufferError if another one lags too far behind."""
        waiting = self._waiting[branch]
        while not waiting:
            if self._ended:
                return _END
            if self.node.in_step and bounded:
                self._check_limit(branch)
            self._pulls = True
            item = next(self.source.items(), _END)
            self._pulls = False
            if item is _END:
                self._ended = True
                return _END
            number = self._pulled
            self._pulled += 1
            for target, value in self.node.deal(item, number, self._fn, self.expected):
                if target not in self.expected:
                    close_streams(value)
                    continue
                if bounded and target != branch and not self.node.in_step:
                    self._check_room(branch, target)
                self._waiting[target].append(value)
            del item
        self._read[branch] += 1
        if (keeper := keeper_of(self)) is not None:
            keeper.used(waiting[0], stays=self.waits_elsewhere(branch))
        return waiting.popleft()

    def can_leave_out(self) -> bool:
        """An exception came out of :meth:`next_for`: can the item be left out, and does the pass go on behind it?

        Not if it is the input's, which has no ``on_error`` behind it here, or does not go on.
        """
        return not self.overflown and not self._pulls and _reads_once(self.node, self.context)

    def waits_elsewhere(self, branch: int) -> bool:
        """True if branches are ``alike`` and another one has yet to read the item that ``branch`` has read last."""
        return self.node.alike and any(self._read[other] < self._read[branch] for other in self.expected)

    def _not_read_again(self, branch: int) -> int:
        """Items that had been read when the state was saved, and were not yet again."""
        return max(0, self._floor[branch] - self._read[branch])

    def _check_limit(self, branch: int) -> None:
        limit = self.node.buffer_size
        for other in self.expected:
            if other != branch and len(self._waiting[other]) - self._not_read_again(other) >= limit >= 0:
                raise self._overflow(branch, other)

    def _check_room(self, branch: int, target: int) -> None:
        limit = self.node.buffer_size
        if sum(map(len, self._waiting)) - sum(map(self._not_read_again, self.expected)) >= limit >= 0:
            raise self._overflow(branch, target)

    def _overflow(self, branch: int, other: int) -> BufferError:
        self.overflown = True
        ever = "is read by nothing so far" if not self._read[other] else f"has read {self._read[other]} items"
        return BufferError(
            f"{node_name(self.node)} buffer overflow, buffer size {self.node.buffer_size} is insufficient: branch "
            f"{branch} has read {self._read[branch]} items, while branch {other} {ever}. Read the branches in step "
            "(zip, mux), leave out the one that is not needed, or raise buffer_size"
        )

    # --- joining and leaving

    def catch_up(self, branch: int, count: int, name: str) -> None:
        """Drop items of ``branch`` until ``count`` of them are read: those it has handed out since the state."""
        self.started = True
        if any(self._floor) and self._loaded is None:
            raise StateError(f"the state of {node_name(self.node)} is not in the state of any of its branches")
        if self._read[branch] > count:
            raise StateError(
                f"{name} was read up to item {count}, and {node_name(self.node)} has kept none before "
                f"{self._read[branch]}: the state was changed, or put together from several"
            )
        with self.context.making_again():
            while self._read[branch] < count:
                if self.next_for(branch, bounded=False) is _END:
                    raise StateError(
                        f"{name} ended after {self._read[branch]} of {count} items that the state says were handed "
                        "out: has the data become shorter, or does a function not depend on its input alone?"
                    )

    def leave(self, branch: int) -> None:
        """``branch`` is read no further."""
        if branch not in self.readers:
            return
        self.readers.discard(branch)
        if not self.started:
            return
        self.expected.discard(branch)
        left, self._waiting[branch] = self._waiting[branch], deque()
        kept = {id(item) for waiting in self._waiting for item in waiting}
        for item in left:
            if id(item) not in kept:
                close_streams(item)

    def close(self) -> None:
        if not self.readers:
            super().close()

    # --- state

    def state_dict(self) -> dict[str, Any]:
        for item in self.context.shared.replaying():
            if item.replayed and self.node in walk(item.node):
                raise StateError(
                    f"{node_name(item.node)} reads a branch of {node_name(self.node)} and has no state: it would be "
                    "run again from its start, while other branches go on. Give it state_dict() and load_state_dict(), "
                    "or run the graph in a loader, which replays all of it then"
                )
        return super().state_dict()

    def state_for(self, branch: int) -> dict[str, Any]:
        """The state of this pass for ``branch``: another branch's state, beside it, may have all of it already."""
        return {"reached": self._reached()} if self.context.shared.gather(self, branch) else self.state_dict()

    def gathered(self, branches: set[int]) -> None:
        """A state was taken, in which these branches are as they are now; others are as they were before."""
        self.torn = not self.readers <= branches

    def get_state(self) -> dict[str, Any]:
        longest: list[Any] = max(map(list, self._waiting), key=len)
        items = longest if self.node.alike else [item for waiting in self._waiting for item in waiting]
        return {
            "reached": self._reached(),
            "read": list(self._read),
            "pulled": self._pulled,
            "ended": self._ended,
            "waiting": [len(waiting) for waiting in self._waiting],
            "items": self.kept_items(items),
        }

    def _reached(self) -> list[int]:
        """The number of items read from each branch, those included that are read again after a restore."""
        return list(map(max, self._read, self._floor))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Called by each branch that is loaded: the oldest of their states counts."""
        if self.started:
            raise StateError(f"{node_name(self.node)} has already started: load a state into a new iterator")
        with refusing_misfits(node_name(self.node)):
            self._floor = list(map(max, self._floor, self._counts(state, "reached")))
            if "items" not in state:
                return
            moment = sum(self._counts(state, "read"))
        if self._loaded is not None:
            if self._loaded <= moment:
                return
            self.source.close()
            self.inputs = (self.context.iterate(self.node.source),)
            watch_inputs(self)
        super().load_state_dict(state)
        self._loaded = moment

    def set_state(self, state: dict[str, Any]) -> None:
        self._read = self._counts(state, "read")
        self._pulled = stored_count(state, "pulled")
        self._ended = bool(state["ended"])
        counts, items = self._counts(state, "waiting"), stored_items(state, "items")
        if (max(counts) if self.node.alike else sum(counts)) != len(items):
            raise StateError(f"{len(items)} items wait in the state, which says that there are {counts}")
        for branch, count in enumerate(counts):
            if self.node.alike:
                self._waiting[branch] = deque(items[len(items) - count :])
            else:
                self._waiting[branch] = deque(items[:count])
                del items[:count]

    def _counts(self, state: dict[str, Any], name: str) -> list[int]:
        counts = stored_items(state, name)
        if len(counts) != self.node.num_instances:
            raise StateError(f"{len(counts)} branches in the state, and {self.node.num_instances} here")
        return [stored_count({name: count}, name) for count in counts]


class _BranchIterator(NodeIterator[Any]):
    node: Branch

    def __init__(self, node: Branch, context: Context) -> None:
        super().__init__(node, context)
        self.count = 0
        self._deals = False  # True while an item of the input is being pulled, or dealt
        key = (id(node.source), context.rounds)
        self.shared: SharedPass = context.shared.passes.setdefault(key, _Passes()).join(node, context)
        self.inputs = (self.shared,)

    def get_state(self) -> dict[str, Any]:
        return {"count": self.count}

    def set_state(self, state: dict[str, Any]) -> None:
        self.count = stored_count(state, "count")

    def state_dict(self) -> dict[str, Any]:
        return self.get_state() | {"inputs": [self.shared.state_for(self.node.instance_id)]}

    def leave_out(self) -> bool:
        return not self._deals or self.shared.can_leave_out()

    def lost(self, of_input: bool) -> int | None:
        if of_input or not self.leave_out():
            return None
        return 0 if self._deals else 1  # what is lost before it is dealt is lost where it is

    def run(self) -> Iterator[Any]:
        shared, branch, hand_out = self.shared, self.node.instance_id, self.node.source.hand_out
        shared.catch_up(branch, self.count, node_name(self.node))
        while True:
            self._deals = True
            held = [shared.next_for(branch)]
            self._deals = False
            if held[0] is _END:
                return
            self.count += 1
            if self.context.shared.lent:
                held.append(copy_item(held.pop()))
            yield hand_out(held.pop(), shared.waits_elsewhere(branch))

    def close(self) -> None:
        if not self.pass_engine.is_closed:
            self.shared.leave(self.node.instance_id)
        super().close()


def _reads_once(container: Container, context: Context) -> bool:
    """True if items lost before ``container`` are lost in all branches alike, so that pairs behind it still match: each
    node that pairs its inputs reads them through one node, which loses the same for all of them. That is ``container``
    itself, say, unless it or one behind it deals each item to one branch: nobody can tell which branch would have got
    what is lost.
    """
    graph = context.graph
    node = graph.original(container)
    ends = {id(node)}
    dealers = {
        id(item)
        for item in graph.nodes
        if isinstance(item, Container) and not item.in_step and any(found is node for found in walk(item))
    }
    for other in filter(pairs, graph.nodes):
        behind = [{id(item) for item in walk(branch)} for branch in inputs_of(other)]
        if any(id(node) in reached for reached in behind):
            gates = set.intersection(*behind) - dealers
            if not any(_all_ways_pass(gate, other, ends | dealers) for gate in gates):
                return False
    return True


def _all_ways_pass(gate: int, top: DataPipe, ends: set[int]) -> bool:
    """Does every way from ``top`` to one of ``ends`` pass ``gate``? All but ``top`` are ids of nodes."""
    waiting, seen = [top], {gate}
    for item in waiting:
        if id(item) in seen:
            continue
        if id(item) in ends:
            return False
        seen.add(id(item))
        waiting += inputs_of(item)
    return True


@dataclass
class _Passes:
    """The passes over one container, in one context and round."""

    live: list[SharedPass] = field(default_factory=list)
    begun: int = 0

    def torn(self) -> str:
        return next((node_name(item.node) for item in self.live if item.torn), "")

    def join(self, node: Branch, context: Context) -> SharedPass:
        """The first one in which the branch does not take part yet, and can; else a new one."""
        branch = node.instance_id
        self.begun -= sum(1 for item in self.live if not item.readers and not item.started)
        self.live = [item for item in self.live if item.readers]
        for shared in self.live:
            if branch not in shared.readers and (branch in shared.expected or not shared.started):
                break
        else:
            shared = SharedPass(node.source, context, self._expected(node.source, context))
            self.live.append(shared)
            self.begun += 1
        shared.readers.add(branch)
        shared.expected.add(branch)
        return shared

    def _expected(self, container: Container, context: Context) -> set[int]:
        """The branches that will join too, as far as the graph tells."""
        branches = (node for node in context.graph.nodes if isinstance(node, Branch) and node.source is container)
        return {node.instance_id for node in branches if context.graph.reads(node) > self.begun}
