"""Nodes that say how those before them are run.

- ``on_error``: leave out items for which a node before it raises, or end.
- ``prefetch``: a thread runs ahead of the consumer.
- ``retry``: call again what fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, TypeVar

from torchpipe.ahead.iterators import RunAheadIterator
from torchpipe.ahead.stage import Stage
from torchpipe.iter._shared.bases import OneInput, OnePerItem
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator, Positions
from torchpipe.node.retries import Retries
from torchpipe.node.tolerance import Failures
from torchpipe.node.validate import check_choice, check_count, check_error_types, check_seconds
from torchpipe.state.left_out import LEFT_OUT

__all__ = ["OnError", "Prefetcher", "Retrier"]

T_co = TypeVar("T_co", covariant=True)


@functional_datapipe("on_error")
class OnError(OneInput[T_co]):
    """Says of all nodes before it, up to another ``on_error``, what happens when an item makes one raise.

    With ``"skip"`` the item is left out (of ``batch`` and the like, the batch) and the stream goes on; with ``"raise"``
    it ends, as without this node. ``errors`` are the types that are meant, by default every Exception. At most
    ``budget`` items (None: any number) are left out in a pass, and each shard counts alone; the next one raises. Each
    is an event of ``loader.stats()``, and the first ten, the 100th, the 1,000th ... are warnings of the logger
    ``torchpipe``; the state counts them and lists the first 1,000 with node, error and item:
    ``torchpipe.state.left_out(state)``.

    Within a graph that ``flatmap``, ``interleave`` or ``shuffled_flatmap`` opens, and before ``cycle``, a pass is one
    over what was opened, or one round: each has a ``budget`` of its own. What was left out in it stays in the state of
    the whole, counted once, when it is over.

    Where a node pairs its inputs by their positions (``zip``, ``zip_longest``, nodes of yours with several inputs,
    unless they say ``pairs = False``), the
    whole tuple is left out, so that its branches stay in step. In between, each item has to stand for one item (``map``
    and the like, readers, ``sharding_filter``; of ``batch``, the batch goes); behind a ``filter``, ``shuffle`` or
    ``flatmap`` in a branch the exception is raised, as nobody can tell what belongs to it, and so is one before
    ``demux`` or ``round_robin_demux`` (or of the classifier) if their branches are paired. In such a branch
    ``prefetch`` does not run ahead. An ``on_error`` within a branch leaves out of that branch alone, as a filter does;
    for what the branches share (before ``fork``, say), put one behind where they meet.

    What a signal's handler raises while an item is made in this process is the item's to all who look: name the
    ``errors`` that are meant, or let the handler raise a BaseException, which is never skipped.

    Items that fail together (in a batch, say) count one by one, in the budget too: one that they would exceed raises.

    Put it behind the nodes that it is for. With ``"skip"`` items are made here, also those that a ``shuffle`` or
    ``sharding_filter`` behind it would have had made late. It reaches up to a dispatcher, not into what runs there, and
    up to ``cache``, which needs an ``on_error`` of its own before it. What cannot go on after an exception is not
    skipped: iterables and generators of yours, nodes of others that do not define
    :meth:`~torchpipe.NodeIterator.leave_out`. An item that kills its process is another matter.

    A resume or recovery makes items again, and must find the same ones bad; a resume that is seen not to is refused.
    For errors that come and go (a network), put ``retry`` before it.

    State: the input's, and what was left out. A state loads into the same graph without this node, or with another
    budget, and the other way round.

    Raises: ValueError for another policy or a negative budget; TypeError for ``errors`` that are no exception types.
    """

    alters_stream = False  # a run that has met a bad item goes on from its checkpoint, with this node put in
    selects = True
    handles_errors = True

    def __init__(
        self,
        source_datapipe: IterDataPipe[T_co],
        policy: Literal["raise", "skip"],
        *,
        budget: int | None = 100,
        errors: type[Exception] | tuple[type[Exception], ...] = Exception,
    ) -> None:
        super().__init__(source_datapipe)
        check_choice("policy", policy, ("raise", "skip"))
        self.policy = policy
        self.budget = None if budget is None else check_count("budget", budget, at_least=0)
        self.errors = check_error_types("errors", errors)

    def __len__(self) -> int:
        if self.policy == "skip":
            raise TypeError("the length after on_error('skip') is not known: items may be left out")
        return len(self.source)

    def iterate(self, context: Context) -> NodeIterator[T_co]:
        return _OnErrorIterator(self, context, Failures(self.policy == "skip", self.budget, self.errors))


class _OnErrorIterator(NodeIterator[T_co]):
    def __init__(self, node: OnError[T_co], context: Context, failures: Failures) -> None:
        super().__init__(node, context)
        self.failures = failures
        self.inputs = (replace(context, failures=failures).iterate(node.source),)

    @property
    def by_position(self) -> Positions | None:
        found = self.source.by_position
        return replace(found, begin=None) if found is not None and self.failures.skips else found

    def run(self) -> Iterator[T_co]:
        return self.source.items()

    def state_dict(self) -> dict[str, Any]:
        state = self.source.state_dict()
        return {**state, LEFT_OUT: self.failures.state()} if self.failures.count else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pass_engine.check_unstarted()
        if isinstance(state, dict) and LEFT_OUT in state:
            self.failures.load(state[LEFT_OUT])
            self.context.shared.skipping.update(entry[0] for entry in self.failures.recorded)
            state = {key: value for key, value in state.items() if key != LEFT_OUT}
        self.source.load_state_dict(state)


@functional_datapipe("prefetch")
class Prefetcher(OnePerItem[T_co]):
    """Pulls up to ``buffer_size`` items of ``source_datapipe`` ahead in one thread, and hands them on in order.

    Helps where the input waits for files or the network, or computes without holding Python's interpreter lock. The
    items and their order stay as they are. The thread starts with the first item and ends with the pass: at
    ``close()``, or when the iterator is dropped. An exception of the input is raised at its place in the stream.

    State: describes the items handed out; those in the buffer are pulled again after a restore. A state saved with
    this node loads into the same graph without it, and the other way round.

    Raises: TypeError or ValueError if ``buffer_size`` is no integer of at least 1.
    """

    alters_stream = False
    one_to_one = True
    selects = True

    def __init__(self, source_datapipe: IterDataPipe[T_co], buffer_size: int = 10) -> None:
        super().__init__(source_datapipe)
        self.buffer_size = check_count("buffer_size", buffer_size, at_least=1)

    def iterate(self, context: Context) -> NodeIterator[T_co]:
        travels = context.failures is not None and context.failures.travels
        # Branches of one pass are read in one thread; a thread that has met an exception does not go on behind it
        if not context.host.threads or travels or context.graph.reads_separately(self):
            return context.iterate(self.source)
        return RunAheadIterator(self, context, self.source, Stage(depth=self.buffer_size))


@functional_datapipe("retry")
class Retrier(OnePerItem[T_co]):
    """Calls functions of the nodes before it again when they raise one of ``errors``: ``attempts`` times in all.

    Meant for what comes and goes: networks, file systems. It concerns the functions that you gave to nodes, items that
    are read by index, and the opening of files; up to another ``retry``. Between two attempts it waits ``backoff_s``
    seconds, twice as long each time, at most ``max_backoff_s``, less up to a half at random; a warning of the logger
    ``torchpipe`` tells. The last error is raised as it is, with a note. Under it the ``retries=`` of a
    reader do not count for opening a file: ``attempts`` do.

    Items stay the same: every attempt draws the random numbers that the first one would have drawn, for which the
    global random states are taken down before each call (0.1 ms), and further attempts are called with a copy of what
    the argument was, if that can be changed in place. A function that is given an open file or an iterator is called
    once, since it may have read from it: let one function open and read.

    State: that of its input. A state loads with and without this node.

    Raises: ValueError for ``attempts`` below 1 or negative times; TypeError for ``errors`` that are no exception types.
    """

    alters_stream = False
    one_to_one = True
    selects = True

    def __init__(
        self,
        source_datapipe: IterDataPipe[T_co],
        attempts: int = 3,
        *,
        errors: type[Exception] | tuple[type[Exception], ...] = OSError,
        backoff_s: float = 0.5,
        max_backoff_s: float = 30.0,
    ) -> None:
        super().__init__(source_datapipe)
        self.attempts = check_count("attempts", attempts, at_least=1)
        self.errors = check_error_types("errors", errors)
        self.backoff_s = check_seconds("backoff_s", backoff_s)
        self.max_backoff_s = check_seconds("max_backoff_s", max_backoff_s)

    def iterate(self, context: Context) -> NodeIterator[T_co]:
        retries = Retries(self.attempts, self.errors, self.backoff_s, self.max_backoff_s)
        return replace(context, retries=retries).iterate(self.source)
