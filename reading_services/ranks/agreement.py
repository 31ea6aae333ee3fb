"""Ranks with uneven numbers of items end together: what they tell each other, what follows from it, and the stream.

Runs in the consumer's thread of every rank. How the ranks talk is behind :class:`Exchange`.

The stream is handed out in blocks of ``every`` items. Before a block, each rank fills a buffer of as many items and
tells the others how many it has got and why there are no more. All then draw the same conclusion (:func:`decide`).
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

from torchpipe.errors import RankError, StateError
from torchpipe.execution.epoch import LeftOver, Uneven, no_item
from torchpipe.execution.merge_variants import RoundsMerge, merge_below
from torchpipe.node.iterator import NodeIterator, refusing_misfits, stored_count
from torchpipe.state.copying import copy_item

__all__ = ["AgreementIterator", "Exchange", "RankReport", "StreamOfRank", "Then", "Verdict", "decide", "inner_state"]

_KEY = "agreement"

Mark: TypeAlias = Callable[[], dict[str, Any]]


class StreamOfRank(enum.IntEnum):
    """The state of a rank's own stream."""

    OPEN = 0
    ENDED = 1
    FAILED = 2


@dataclass(frozen=True, slots=True)
class RankReport:
    """A rank has ``ready`` items for the block; ``any_item`` says that it has an item of the epoch at all, or had, or
    may have had before it was loaded."""

    ready: int
    source: StreamOfRank
    any_item: bool


class Then(enum.Enum):
    """The event that follows a block."""

    NEXT = "the next block"
    END = "the end"
    FAILURE = "an error: a rank has failed"
    UNEVEN = "an error: some ranks have ended, others not"
    NOTHING = "an error: a rank has no item at all"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Every rank hands out ``count`` items, then comes ``then``, because of ``ranks``."""

    count: int
    then: Then
    ranks: tuple[int, ...] = ()


def decide(reports: Sequence[RankReport], uneven: Uneven, every: int) -> Verdict:
    """The step that all ranks take now: a pure function, so that all decide the same. A failure goes before an end."""
    counts = [min(report.ready, every) for report in reports]
    short = [rank for rank, count in enumerate(counts) if count < every]
    failed = [rank for rank in short if reports[rank].source is StreamOfRank.FAILED]
    if uneven is Uneven.PAD:
        if failed:
            first = min(counts[rank] for rank in failed)
            return Verdict(first, Then.FAILURE, tuple(rank for rank in failed if counts[rank] == first))
        most = max(counts)
        empty = tuple(rank for rank in short if not reports[rank].any_item)
        if empty and most:
            return Verdict(0, Then.NOTHING, empty)
        return Verdict(most, Then.NEXT if most == every else Then.END)
    fewest = min(counts)
    if fewest == every:
        return Verdict(every, Then.NEXT)
    first_out = tuple(rank for rank in short if counts[rank] == fewest)
    if any(rank in first_out for rank in failed):
        return Verdict(fewest, Then.FAILURE, tuple(rank for rank in failed if rank in first_out))
    empty = tuple(rank for rank in first_out if not reports[rank].any_item)
    if empty and any(report.any_item for report in reports):
        return Verdict(0, Then.NOTHING, empty)
    if uneven is Uneven.RAISE and len(first_out) < len(reports):
        return Verdict(fewest, Then.UNEVEN, first_out)
    return Verdict(fewest, Then.END, first_out)


class Exchange(ABC):
    """The exchange between ranks. All call the same method in the same order; each call waits for all."""

    rank: int

    @abstractmethod
    def numbers(self, mine: Sequence[int]) -> list[list[int]]:
        """Three of each rank. Raises: RankError if one does not answer in time."""

    def reports(self, mine: RankReport) -> list[RankReport]:
        """The reports of all ranks. Raises: as :meth:`numbers`."""
        answers = self.numbers((mine.ready, mine.source, mine.any_item))
        return [RankReport(ready, StreamOfRank(source), bool(any_item)) for ready, source, any_item in answers]

    @abstractmethod
    def texts(self, mine: str) -> list[str]:
        """The texts of all ranks. Raises: RankError if one does not answer in time."""


def inner_state(state: dict[str, Any] | None, delivered: int) -> dict[str, Any] | None:
    """The state of the stream below, within one of :class:`AgreementIterator`, which stands after ``delivered`` items.

    Raises: StateError if it is none.
    """
    if state is None or _KEY not in state:
        return state
    with refusing_misfits("the ranks' agreement"):
        agreed = state[_KEY]
        stored_count(agreed, "offset", at_most=delivered)
        stored_count({"repeated": 0} | agreed, "repeated", at_most=delivered)
        if type(agreed["repeating"]) is not bool:
            raise TypeError(f"repeating is {agreed['repeating']!r:.40}")
        (inner,) = state["inputs"]
        if not isinstance(inner, dict):
            raise TypeError(f"the state below is a {type(inner).__name__}")
        return inner


class AgreementIterator(NodeIterator[Any]):
    """``inner``, ended on all ranks together. It holds up to ``every`` items that were not delivered yet.

    State: the inner state after the items delivered; for a rank that repeats its last item, the one before that item as
    well. ``state`` is such a state, whose inner part ``inner`` has already loaded; ``delivered`` items are before it.
    ``last`` makes the last item before ``state`` anew, for a rank that has none behind it. ``length``: how many items
    this rank has in the epoch, if that is known. ``parts``: how many shards all ranks have.
    """

    exact_after_error = True

    def __init__(
        self,
        inner: NodeIterator[Any],
        exchange: Exchange,
        *,
        uneven: Uneven,
        every: int,
        state: dict[str, Any] | None,
        delivered: int = 0,
        last: Callable[[], list[Any]] = list,
        length: Callable[[], int | None] = lambda: None,
        parts: int = 1,
    ) -> None:
        super().__init__(inner.node, inner.context)
        self.inputs = (inner,)
        self._exchange = exchange
        self._uneven = uneven
        self._every = every
        # To repeat its last item, a rank has to know that it is the last before it hands it out.
        self._room = every + (uneven is Uneven.PAD)
        self._buffer: deque[tuple[Any, Mark]] = deque()  # items and the inner state after each
        self._last: list[Any] = []  # a copy of the last item, once it is known to be the last
        self._make_last = last
        self._ended = StreamOfRank.OPEN
        self._error: Exception | None = None
        self._loaded = state if state is not None and _KEY in state else None  # until the first item
        begun = inner.state_dict()
        self._before: Mark = lambda: begun  # the inner state before the last item delivered
        self._after = self._before
        self._at_end = self._after  # the inner state when it had no more
        self._repeated = 0  # how often it was delivered again
        self._delivered = delivered
        self._begun = state is not None
        self._length = length
        self._parts = parts
        self.left_over: LeftOver | None = None  # by an end with the first rank that has no more

    def state_dict(self) -> dict[str, Any]:
        if self._loaded is not None:
            return self._loaded
        if not self._last:
            return self._after()
        agreed = {"offset": 0, "repeating": True, "repeated": self._repeated}
        return {_KEY: agreed, "inputs": [self._before()], "after": [self._after()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise StateError("the stream of several ranks takes its state when an epoch begins, not afterwards")

    def run(self) -> Iterator[Any]:
        if self._loaded is not None:
            self._go_on(self._loaded[_KEY])
        then = Then.NEXT
        while then is Then.NEXT:
            self._fill()
            verdict = decide(self._exchange.reports(self._report()), self._uneven, self._every)
            then = verdict.then
            error = self._error_for(verdict)
            if then is Then.END and self._uneven is Uneven.DROP:
                self._note_left_over(verdict)  # before the block: in its midst, a rank may stop to ask for items
            for _ in range(verdict.count):
                if then is Then.NEXT:
                    self._fill()
                item = self._take()
                yield item
                del item
            if error is not None:
                raise error

    def _report(self) -> RankReport:
        had = self._begun and self._uneven is not Uneven.PAD  # and need not repeat it
        return RankReport(len(self._buffer), self._ended, bool(self._buffer or self._last or had))

    def _note_left_over(self, verdict: Verdict) -> None:
        """Agree on what is left out, now that all end after this block."""
        left, exact = self._left(len(self._buffer) - verdict.count)
        merge, _ = merge_below(self.source)
        ended = merge.ended_first if isinstance(merge, RoundsMerge) else []
        first = ended[0] if ended else -1
        answers = self._exchange.numbers((left, exact, first))
        if any(count or not all_of_them for count, all_of_them, _ in answers):
            self.left_over = LeftOver(
                ended=", ".join(
                    f"rank {rank}" + (f" (shard {answers[rank][2]})" if answers[rank][2] >= 0 else "")
                    for rank in verdict.ranks
                ),
                by_rank=tuple(count for count, _, _ in answers),
                exact=all(all_of_them for _, all_of_them, _ in answers),
                parts=self._parts,
            )

    def _left(self, held: int) -> tuple[int, bool]:
        """The number of items that this rank leaves out, of which it holds ``held``; and whether these are all."""
        merge, part = merge_below(self.source)
        length = self._length()
        if length is not None:
            taken = self._delivered + len(self._buffer) if merge is None or part.turns > 1 else merge.delivered
            return max(held, length - taken + held), True
        if merge is not None:
            more, exact = merge.left()
            return held + part.share(more), exact
        return held, self._ended is StreamOfRank.ENDED

    def _fill(self) -> None:
        while self._ended is StreamOfRank.OPEN and len(self._buffer) < self._room:
            try:
                item = next(self.source)
            except StopIteration:
                self._end()
            except Exception as error:  # to be raised at its place
                self._ended, self._error = StreamOfRank.FAILED, error
            else:
                self._buffer.append((item, self._mark()))

    def _end(self) -> None:
        self._ended = StreamOfRank.ENDED
        self._at_end = self._mark()
        if self._uneven is Uneven.PAD and not self._buffer and not self._last:
            self.source.close()  # one pass at a time
            self._last = self._make_last()

    def _mark(self) -> Mark:
        mark = self.source.state_later()
        if mark is None:
            state = self.source.state_dict()
            return lambda: state
        return mark

    def _take(self) -> Any:
        self._loaded = None
        if not self._buffer:
            self._repeated += 1
            self._after = self._at_end  # ranks that take turns with this one may have had an item more
            return copy_item(self._last[0])
        item, mark = self._buffer.popleft()
        self._delivered += 1
        self._begun = True
        self._before, self._after = self._after, mark
        if self._uneven is Uneven.PAD and not self._buffer and self._ended is StreamOfRank.ENDED:
            self._last = [copy_item(item)]  # the user may change what is handed out
        return item

    def _go_on(self, agreed: dict[str, Any]) -> None:
        """Go again to where a rank stood that repeated its last item, or, in former states, in the midst of a block."""
        left = None if agreed["repeating"] else agreed["offset"]
        done = 0
        for item in islice(self.source.items(), left):
            self._before, self._after, self._last = self._after, self._mark(), [item]
            done += 1
        if done == left:
            self._last = []
            return
        if self._uneven is not Uneven.PAD:
            raise StateError(
                f"the stream of all ranks ended {left or 0} items before the position that the state describes: has "
                "the data become shorter on one of them, or was it saved with another uneven=...?"
            )
        self._repeated = agreed.get("repeated", 0)
        self._end()

    def _error_for(self, verdict: Verdict) -> BaseException | None:
        """The error that this rank raises after the block; all ranks raise one, or none does."""
        ranks = ", ".join(map(str, verdict.ranks))
        match verdict.then:
            case Then.FAILURE:
                failed = self._error is not None and self._exchange.rank in verdict.ranks
                texts = self._exchange.texts(f"{type(self._error).__name__}: {self._error}" if failed else "")
                if failed:
                    return self._error
                answers = "\n".join(f"  rank {rank}: {texts[rank]}" for rank in verdict.ranks)
                return RankError(f"the stream of rank {ranks} has failed, and all ranks end with it:\n{answers}")
            case Then.UNEVEN:
                return RankError(
                    f"rank {ranks} has no more items, while other ranks have: the numbers of items are uneven. Choose "
                    'uneven="drop" to end everywhere with the first, "pad" to let those that have ended repeat their '
                    "last item, or make the numbers even"
                )
            case Then.NOTHING:
                return RankError(
                    f'rank {ranks} has no item at all, so there is none to repeat (uneven="pad"). Are there fewer '
                    "items than shards? Divide the stream where it has more items"
                    if self._uneven is Uneven.PAD
                    else no_item(f"rank {ranks}", "ranks and shards")
                )
            case _:
                return None
