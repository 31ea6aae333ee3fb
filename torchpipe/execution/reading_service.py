"""Reading services run a graph: what all of them share, and in-process execution, the oracle.

Runs in the user's process.

Every service runs the same plan: shards produce, the merge takes from them in turn, the main section follows. A service
supplies the :class:`~torchpipe.execution.merge.ShardProvider`; the stream and its state are the same under all of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from torchpipe.ahead.iterators import exact_after_error
from torchpipe.errors import GraphError, ReplayWarning, ReplicatedSourceWarning, StateError
from torchpipe.execution.dispatch import Dispatched, DispatchSource, dispatch_start
from torchpipe.execution.epoch import EpochStart, ShardSpec, Uneven
from torchpipe.execution.exact import check_exact, cursor_from, made_exact, no_exact
from torchpipe.execution.figures import EventLog, Measuring, ServiceFigures
from torchpipe.execution.interface import ReadingServiceInterface, SubstitutesOf
from torchpipe.execution.merge import MergeIterator, MergeSet
from torchpipe.execution.merge_variants import RoundsMerge, TurnsIterator, UnorderedMerge
from torchpipe.execution.provider import ShardProvider
from torchpipe.execution.shard import Chunk, InitFn, ResetFn, Shard, ShardGraphs
from torchpipe.formats.pieces.undivided import advice
from torchpipe.formats.storage.paths import is_remote
from torchpipe.graph import draw, plan
from torchpipe.graph.draw import read_by_every_shard
from torchpipe.graph.plan import Plan
from torchpipe.graph.rewrite import replace_nodes
from torchpipe.iter.running import Prefetcher
from torchpipe.iter.to_device import ToDevice
from torchpipe.machine import format_bytes
from torchpipe.node.context import Context
from torchpipe.node.host import Host, Trace
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import DataPipe, inputs_of, node_name, traits_of, walk
from torchpipe.node.user_code import refuse_hidden_inputs
from torchpipe.node.user_warnings import warn_user
from torchpipe.node.validate import check_count
from torchpipe.state import Cursor, LeftOut, SnapshotPolicy
from torchpipe.state.copying import beside_the_loop
from torchpipe.state.flat import MAX_SHARDS

__all__ = [
    "EpochStart",
    "InProcessReadingService",
    "LocalShards",
    "ReadingServiceInterface",
    "ShardedReadingService",
    "warn_of_replicated",
]

_MUCH_BYTES = 1 << 30  # in all files together
_SEVERAL_SHARDS = 8  # from which on files at URLs are read too often, whatever their sizes


class ShardedReadingService(ReadingServiceInterface):
    """The base of all services: the plan, the merge and the main section."""

    def __init__(
        self,
        num_shards: int | None,
        init_fn: InitFn | None,
        reset_fn: ResetFn | None,
        policy: Callable[[], SnapshotPolicy],
    ) -> None:
        if num_shards is not None:
            num_shards = check_count("num_shards", num_shards, at_least=1, at_most=MAX_SHARDS)
        for name, fn in (("worker_init_fn", init_fn), ("worker_reset_fn", reset_fn)):
            if fn is not None and not callable(fn):
                raise TypeError(f"{name} must be callable, got {fn!r}")
        if not callable(policy):
            raise TypeError(f"policy must be a function that makes a SnapshotPolicy, got {policy!r}")
        self._num_shards = num_shards
        self._init_fn = init_fn
        self._reset_fn = reset_fn
        self._policy = policy
        self._plan: Plan | None = None
        self._measuring: Measuring | None = None
        self._merges: MergeSet | None = None  # of the last epoch
        self._events = EventLog()  # of this process
        self._graphs = ShardGraphs((), None, None)  # of each branch, with a stand-in for what is dispatched

    _local_chunk = (1, 0.0)  # items that are made in this process at a time, and in how many seconds

    @property
    def plan(self) -> Plan:
        if self._plan is None:
            raise RuntimeError(
                "the reading service has no graph yet: give it to DataLoader2(datapipe, reading_service=...)"
            )
        return self._plan

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        if self._plan is not None and self._plan.root is not datapipe:
            raise GraphError("this reading service belongs to another loader: make one for each loader")
        refuse_hidden_inputs(walk(datapipe))
        checked = plan(datapipe)
        checked.check_num_shards(self.default_num_shards)
        warn_of_replicated(checked, self.default_num_shards)
        checked.check_shares(self.fixed_num_shards or 1)  # else a state may say how many there are
        self._plan = checked
        # What is dispatched is replaced in its own branch alone: another one may read from there as well
        stands_in = {} if checked.dispatch is None else {id(checked.dispatch): Dispatched()}
        branches = tuple(
            replace_nodes(cut, stands_in if branch == checked.dispatch_branch else {})
            for branch, cut in enumerate(checked.cuts)
        )
        self._graphs = ShardGraphs(branches, self._init_fn, self._reset_fn)
        return datapipe

    def figures(self) -> ServiceFigures:
        figures = self._service_figures()
        events = sorted((*figures.events, *self._events.read()), key=lambda event: event.at)
        nodes, dispatches = self._measured().rows(figures.made), self.plan.dispatch is not None
        return replace(figures, nodes=nodes, events=tuple(events), dispatcher=dispatches)

    def _tell_left_out(self, shard: int | None, missing: LeftOut) -> None:
        """An item was left out, in this process."""
        self._events.skipped("main", shard, *missing)

    def _service_figures(self) -> ServiceFigures:
        """The figures of this service's processes."""
        return ServiceFigures()

    def _measured(self) -> Measuring:
        if self._measuring is None:
            plan = self.plan
            self._measuring = Measuring(plan, self._graphs.branches, self._main_root(plan.root), self._appended())
        return self._measuring

    def _appended(self) -> tuple[str, ...]:
        """The names of the stages that this service appends to the graph."""
        root = self._main_root(self.plan.root)
        return () if root is self.plan.root else (node_name(root),)

    @property
    def default_num_shards(self) -> int:
        return self._num_shards or 1

    @property
    def fixed_num_shards(self) -> int | None:
        return self._num_shards

    def initialize_iteration(self, start: EpochStart) -> NodeIterator[Any]:
        self._measured().begin_epoch()
        trace = self._measured().trace_main() if self.measuring and self.plan.main_nodes else None
        self._merges = MergeSet(partial(self._start_shards, start), len(self.plan.cuts))
        return self._stream(start, self._main_root(self.plan.root), self._merges, trace)

    def local_iteration(self, start: EpochStart, substitutes_of: SubstitutesOf | None = None) -> NodeIterator[Any]:
        graphs = self._graphs_beside()
        begin = partial(self._start_local_shards, start, graphs=graphs, substitutes_of=substitutes_of)
        root = self.plan.root
        while root not in self.plan.cuts and not traits_of(root).alters_stream:  # it moves items, to a device say
            (root,) = inputs_of(root)
        merges = MergeSet(partial(begin, manage_random=self._manages_random()), len(self.plan.cuts))
        return self._stream(start, root, merges)

    def _stream(
        self, start: EpochStart, root: DataPipe, merges: MergeSet, trace: Trace | None = None
    ) -> NodeIterator[Any]:
        plan = self.plan
        plan.check_num_shards(start.num_shards, start.world_size)

        def merge(branch: int, context: Context) -> NodeIterator[Any]:
            made = _kind_of_merge(start)(plan.cuts[branch], context, start, merges, branch)
            return made if start.part.turns == 1 else TurnsIterator(made, start.part)

        context = Context.for_graph(
            root,
            **start.per_rank.in_context,
            section=1,
            host=Host(
                strict=start.strict,
                threads=self._threads_in_main(),
                allow_pickle=True,  # the loader has checked the state
                trace=trace,
                policy=self._policy,
                on_left_out=partial(self._tell_left_out, None),
            ),
            substitutes={id(cut): partial(merge, branch) for branch, cut in enumerate(plan.cuts)},
        )
        iterator = exact_after_error(context.iterate(root))
        if start.state is not None:
            try:
                iterator.load_state_dict(start.state)
            except BaseException:
                iterator.close()  # it may have begun to drop items that the state counts
                raise
        return iterator

    def exact_position(self, start: EpochStart, *, may_replay: bool = False) -> dict[str, Any]:
        plan = self.plan
        if plan.dispatch is not None or len(plan.cuts) > 1:
            what = "items are dispatched" if plan.dispatch is not None else "branches meet behind the shards"
            raise StateError(f"there is no exact state where {what}: save without exact=True")

        def make(cursors: Mapping[int, Cursor]) -> dict[int, Cursor]:
            made = self._exact_cursors(start, {start.shards[place]: cursor for place, cursor in cursors.items()})
            return {place: made[start.shards[place]] for place in cursors}

        assert start.state is not None
        position = made_exact(start.state, len(start.shards), make)
        if not may_replay:
            check_exact(position, start.shards)
        return position

    def _exact_cursors(self, start: EpochStart, cursors: Mapping[int, Cursor]) -> dict[int, Cursor]:
        """Cursors of the same positions, by the numbers of shards, that drop nothing. Raises: StateError.

        A shard that stands there is asked. One that has had to make its next item already (shards that end together,
        ranks that agree) goes on as it is, and another beside it makes the last item before again, as in a resume.
        """
        if self._merges is None:
            raise StateError(
                "no loop has begun, so that in this process nothing stands at the position: take an item first, or "
                "ask a loader with worker processes"
            )
        made, merges = dict(cursors), self._merges
        with merges.between_pulls():
            for shard, cursor in cursors.items():
                try:
                    if self._manages_random() and merges.is_ahead(shard, cursor.count):
                        made[shard] = self._made_beside(start, shard, cursor)
                    elif (snapshot := merges.snapshot(shard, cursor.count)) is not None:
                        made[shard] = Cursor(snapshot, 0, cursor.count)
                except StateError as error:
                    raise no_exact(shard, cursor.count, str(error)) from error
        return made

    def _graphs_beside(self) -> ShardGraphs:
        return ShardGraphs(beside_the_loop(self._graphs.branches), self._init_fn, self._reset_fn)

    def _made_beside(self, start: EpochStart, shard: int, cursor: Cursor) -> Cursor:
        graphs = self._graphs_beside()
        before = {shard: cursor.before()}
        provider = self._start_local_shards(start, before, graphs=graphs, snapshot_first=True)
        try:
            return cursor_from(provider.pull(shard), shard, cursor)
        finally:
            provider.close()

    def _manages_random(self) -> bool:
        """True if each shard has global random states of its own."""
        return True

    def _main_root(self, root: DataPipe) -> DataPipe:
        """The graph with the stages that this service appends to the main section."""
        return root

    def _threads_in_main(self) -> bool:
        """True if nodes of the main section may run ahead in threads."""
        return False

    @abstractmethod
    def _start_shards(self, start: EpochStart, cursors: Mapping[int, Cursor]) -> ShardProvider:
        """Begin to produce the given shards."""

    def _start_local_shards(
        self,
        start: EpochStart,
        cursors: Mapping[int, Cursor],
        *,
        manage_random: bool = True,
        snapshot_first: bool = False,
        graphs: ShardGraphs | None = None,
        substitutes_of: SubstitutesOf | None = None,
    ) -> ShardProvider:
        """Produce the shards in this process. ``graphs``: for an epoch beside the service's own."""
        plan, source, measured, own = self.plan, None, self._measured(), graphs is None
        if plan.dispatch is not None and cursors:
            lanes = [(lane, *start.branch_and_shard(lane)) for lane in cursors]
            dealt = {shard: cursors[lane].snapshot for lane, branch, shard in lanes if branch == plan.dispatch_branch}
            source = DispatchSource.open(
                plan.dispatch,
                start.spec(0),
                dispatch_start(dealt, start.num_shards),
                host=Host(
                    policy=self._policy,
                    trace=measured.trace_shard(dispatching=True) if self.measuring and own else None,
                    on_left_out=partial(self._tell_left_out, None) if own else None,
                ),
                manage_random=manage_random,
            )
            if source.producer is not None and own:
                measured.follow(source.producer, dispatching=True)

        def shard(spec: ShardSpec, branch: int) -> Shard:
            made = Shard(
                (graphs or self._graphs).of(spec),
                spec,
                branch=branch,
                reset_fn=self._reset_fn,
                host=Host(
                    policy=self._policy,
                    supply=source,
                    trace=measured.trace_shard() if self.measuring and own else None,
                    on_left_out=partial(self._tell_left_out, spec.shard) if own else None,
                ),
                manage_random=manage_random,
                substitutes_of=substitutes_of,
            )
            if own:
                measured.follow(made)
            return made

        return LocalShards(shard, start, cursors, source, *self._local_chunk, snapshot_first=snapshot_first)


def _kind_of_merge(start: EpochStart) -> type[MergeIterator]:
    if not start.in_order:
        return UnorderedMerge
    return RoundsMerge if start.rounds in (Uneven.DROP, Uneven.RAISE) else MergeIterator


def warn_of_replicated(checked: Plan, num_shards: int) -> None:
    """Say which sources each shard reads whole, beside others that are divided."""
    replicated = checked.replicated_sources(num_shards)
    if replicated:
        warn_user(
            f"each of {num_shards} shards reads all items of {', '.join(replicated)}: no sharding point stands after "
            "that source, while others are divided. If every shard is meant to have it whole, ignore "
            "ReplicatedSourceWarning; else put .sharding_filter() after it",
            ReplicatedSourceWarning,
        )
    for node, is_straight in read_by_every_shard(checked):
        files = _much_read(node, is_straight, num_shards)
        if files:
            warn_user(
                f"each of {num_shards} shards reads all of {files} with {node_name(node)}, and keeps its own part of "
                f"the items. {_way_out(node, num_shards)}. If they are meant to be read so often, ignore "
                "ReplicatedSourceWarning",
                ReplicatedSourceWarning,
            )


def _way_out(node: Any, num_shards: int) -> str:
    """The change with which each shard would read its own part of the files or rows that ``node`` reads, as text."""
    source = inputs_of(node)[0]
    if not {"plan", "groups"}.isdisjoint(vars(source)):  # pieces, or row groups
        return (
            f"Put .sharding_filter() right behind {node_name(source)}, before {node_name(node)}, and each reads its "
            "own part alone"
        )
    unit, compression = getattr(node, "piece_unit", "files"), getattr(node, "compression", "infer")
    return advice(node_name(node), traits_of(node).divided_by, unit, vars(source)["paths"], compression, num_shards)


def _much_read(node: Any, is_straight: bool, num_shards: int) -> str:
    """The files of which each shard reads all, if that is worth a warning: a gigabyte, or URLs and several shards.

    A sharding point straight behind most readers lets them pass over what is not kept without reading it.
    """
    named = vars(inputs_of(node)[0]) if inputs_of(node) else {}
    if num_shards < 2 or "listed" not in named or (is_straight and getattr(node, "piece_unit", "") != "lines"):
        return ""
    (count, size, ends, *_), remote = named["listed"], any(map(is_remote, named["paths"]))
    if not (num_shards >= _SEVERAL_SHARDS if remote else (size or 0) >= _MUCH_BYTES):
        return ""
    names = repr(ends[0]) if count == 1 else f"{count} files, {ends[0]!r} to {ends[1]!r},"
    return names if remote else f"{names} ({format_bytes(size)})"


class InProcessReadingService(ShardedReadingService):
    """Runs everything in the user's process: the oracle that all other services are tested against, and for debugging.

    ``num_shards`` gives the stream that this number of shards gives anywhere (default 1). ``init_fn(datapipe,
    worker_info)`` runs once for each shard, ``reset_fn(datapipe, worker_info, seed_generator)`` for each shard and
    epoch; both return the datapipe, changed or not. Functions draw from global random states of their shard's own: the
    user's are not touched.

    Changing these states over costs an item some 20 us, where any code of the user's runs in the graph. An item is made
    when it is asked for, and nothing runs ahead.

    With ``prefetch_cnt`` > 0 a thread runs that many items ahead; if there is a ``to_device``, that runs ahead in its
    stead, as far as its own options say. A thread cannot have global random states of its
    own, so functions then draw from the process's: draw from ``random_map``'s generator to stay reproducible.

    Raises: ValueError or TypeError for arguments out of range.
    """

    def __init__(
        self,
        prefetch_cnt: int = 0,
        init_fn: InitFn | None = None,
        reset_fn: ResetFn | None = None,
        *,
        num_shards: int | None = None,
        policy: Callable[[], SnapshotPolicy] = SnapshotPolicy,
    ) -> None:
        super().__init__(num_shards, init_fn, reset_fn, policy)
        self._prefetch_cnt = check_count("prefetch_cnt", prefetch_cnt, at_least=0)

    @property
    def prefetch_cnt(self) -> int:
        return self._prefetch_cnt

    def explain(self, num_shards: int | None = None) -> str:
        count = num_shards or self.default_num_shards
        where = f"in this process, {count} shard{'s' if count > 1 else ''} one after the other"
        return draw(self.plan, where, "in this process", self._appended())

    def _appended(self) -> tuple[str, ...]:
        return (f"Prefetcher({self._prefetch_cnt})",) if super()._appended() else ()

    def _main_root(self, root: DataPipe) -> DataPipe:
        staged = any(isinstance(node, ToDevice) and node.prefetch_count for node in self.plan.main_nodes)
        if staged or not self._prefetch_cnt:
            return root  # a device stage runs ahead in threads of its own
        return Prefetcher(root, self._prefetch_cnt)  # type: ignore[arg-type]

    def _threads_in_main(self) -> bool:
        return self._prefetch_cnt > 0

    def _start_shards(self, start: EpochStart, cursors: Mapping[int, Cursor]) -> ShardProvider:
        return self._start_local_shards(start, cursors, manage_random=self._manages_random())

    def _manages_random(self) -> bool:
        return self._prefetch_cnt == 0


class LocalShards(ShardProvider):
    """Produces shards in this process, when an item is asked for: by itself, as a source may be a pipe; or ``most``
    at a time, of which none is begun after ``seconds``.
    """

    def __init__(
        self,
        make: Callable[[ShardSpec, int], Shard],
        start: EpochStart,
        cursors: Mapping[int, Cursor],
        source: DispatchSource | None,
        most: int = 1,
        seconds: float = 0.0,
        *,
        snapshot_first: bool = False,
    ) -> None:
        self._most, self._seconds = most, seconds
        self._shards: dict[int, Shard] = {}
        self._source = source
        try:
            for lane, cursor in cursors.items():
                branch, number = start.branch_and_shard(lane)
                shard = self._shards[lane] = make(start.spec(number), branch)
                shard.within(partial(shard.start, cursor, snapshot_first=snapshot_first))
        except BaseException:
            self.close()
            raise

    def pull(self, lane: int) -> Chunk:
        running = self._shards[lane]
        chunk = running.within(partial(running.produce, self._most, self._seconds))
        if chunk.notice is not None:
            warn_user(chunk.notice, ReplayWarning)
        return chunk

    def is_ahead(self, lane: int, count: int) -> bool:
        return lane in self._shards and self._shards[lane].produced > count

    def snapshot(self, lane: int, count: int) -> bytes | None:
        shard = self._shards.get(lane)
        if shard is None or shard.produced != count:
            return super().snapshot(lane, count)
        return shard.within(shard.snapshot)

    def next_pass(self, lane: int, count: int) -> Cursor | None:
        shard = self._shards.get(lane)
        stands = shard is not None and 0 < shard.produced == count
        return Cursor(shard.within(shard.next_pass), 0, 0) if shard is not None and stands else None

    def close(self) -> None:
        with ExitStack() as stack:
            if self._source is not None:
                stack.callback(self._source.close)
            for shard in self._shards.values():
                stack.callback(shard.within, shard.close)
            self._shards = {}
