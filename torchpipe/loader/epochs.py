"""The epoch that a loader is in, and the one that ``iter()`` begins: one machine under all loaders.

Runs in the user's process. It is in one of four forms; docs/resume.md has the table of what each call does in them.
One ``for`` loop is one epoch, and a resume is the rest of that loop, which may be empty: no iterator enters another
epoch. The machine knows neither the loader nor its iterators, which both hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Generic, NoReturn, Protocol, TypeAlias, TypeVar

from torchpipe.errors import StateError
from torchpipe.loader.single_consumer import BeginGuard
from torchpipe.node.user_warnings import warn_user

__all__ = ["AtWork", "EpochPosition", "Epochs", "Fresh", "Live", "Loaded", "Parked"]


class EpochPosition(Protocol):
    """A position: so many items of an epoch are behind it."""

    @property
    def epoch(self) -> int: ...

    @property
    def delivered(self) -> int: ...


P = TypeVar("P", bound=EpochPosition)
P_co = TypeVar("P_co", bound=EpochPosition, covariant=True)


class AtWork(Protocol[P_co]):
    """An epoch that is being iterated."""

    @property
    def epoch(self) -> int: ...

    @property
    def delivered(self) -> int: ...

    @property
    def had(self) -> int:
        """The number of items that its loop has had; more than one if an error has come in the place of an item."""

    def position(self) -> P_co: ...


@dataclass(frozen=True, slots=True)
class Fresh:
    """The next ``iter()`` begins ``epoch``. ``announced``: True if all that has to know that number knows it."""

    epoch: int
    announced: bool = True


@dataclass(frozen=True, slots=True)
class Loaded(Generic[P]):
    """The next ``iter()`` has the rest of this epoch."""

    position: P


@dataclass(frozen=True, slots=True)
class Live(Generic[P]):
    """An iterator is at work, unless whoever had it (``holder()``) has dropped it. ``after`` it, this follows; if it
    was a look, what it began with, ``before``.
    """

    work: Callable[[], AtWork[P] | None]
    holder: Callable[[], object]
    after: Fresh
    before: Fresh | Loaded[P]
    numbered: bool  # it is no look: somebody wanted to know the epoch's number, or said it, or has just had a look


@dataclass(frozen=True, slots=True)
class Parked(Generic[P]):
    """``epoch`` was left in its midst, after ``delivered`` items; the next ``iter()`` begins another one."""

    epoch: int
    delivered: int
    position: Callable[[], P]
    after: Fresh
    before: Fresh | Loaded[P]
    numbered: bool
    had: int


Form: TypeAlias = Fresh | Loaded[P] | Live[P] | Parked[P]


def _epoch_of(start: Fresh | Loaded[P]) -> int:
    return start.epoch if isinstance(start, Fresh) else start.position.epoch


def _left(form: Form[P]) -> AtWork[P] | Parked[P] | None:
    if not isinstance(form, Live):
        return form if isinstance(form, Parked) else None
    work = form.work()
    dropped_unread = work is not None and not work.had and form.after.announced and form.holder() is None
    return None if dropped_unread else work


class Epochs(Generic[P]):
    """``form`` is replaced as a whole, so that other threads and signal handlers find one or the other."""

    def __init__(self) -> None:
        self.form: Form[P] = Fresh(0)
        self.begun = False  # True once an epoch has been iterated since a state was loaded
        self.beginning = BeginGuard()
        self.numbered = False  # somebody has asked for the next epoch's number, or said it, since one began
        self._looked = False  # the pass before was left behind its first item
        self._resumes: int | None = None  # this epoch, since a state was loaded; until another begins
        self._saved: tuple[int, int] | None = None  # (epoch, items) of the state that was saved last, in mid-epoch

    @property
    def work(self) -> AtWork[P] | None:
        """The epoch at work, if somebody still has its iterator."""
        form = self.form
        return form.work() if isinstance(form, Live) and form.holder() is not None else None

    @property
    def left(self) -> AtWork[P] | Parked[P] | None:
        """The epoch at work, or the one that was left, which a state describes; None at the start of one."""
        return _left(self.form)

    @property
    def coming(self) -> Fresh | Loaded[P]:
        """The start of the next ``iter()``."""
        form = self.form
        if not isinstance(form, Live | Parked):
            return form
        left = form.work() if isinstance(form, Live) else form
        return form.before if left is not None and self._is_look(form, left) else form.after

    def _is_look(self, form: Live[P] | Parked[P], left: AtWork[P] | Parked[P]) -> bool:
        """True if what was begun is no epoch: nothing was taken of it, or one item, once in a row, and nobody had
        asked for the epoch's number.
        """
        if not form.after.announced:  # set_epoch() has said meanwhile what follows
            return False
        saved = self._saved == (left.epoch, left.delivered)
        return not left.had or (left.had == 1 and not form.numbered and not saved)

    @property
    def epoch(self) -> int:
        """The epoch of the iterator at work; if there is none, of the next one."""
        coming, work = self.coming, self.work
        return _epoch_of(coming) if work is None else work.epoch

    def ask(self) -> int:
        """:attr:`epoch`, for who counts epochs."""
        self.numbered = True
        return self.epoch

    def set_epoch(self, epoch: int) -> bool:
        """Let the next ``iter()`` begin ``epoch``, or have its rest if that is loaded. False: one is still at work."""
        form, resumes = self.form, self._resumes
        if resumes is not None and epoch < resumes and _epoch_of(self.coming) == resumes:
            self._resumes = None
            _warn_of_going_back(resumes, epoch)
        if isinstance(form, Loaded) and form.position.epoch == epoch:
            return True
        if isinstance(form, Live) and form.holder() is not None:
            self.form = replace(form, after=Fresh(epoch, announced=False))
            return False
        self.form = Fresh(epoch)
        return True

    def load(self, form: Fresh | Loaded[P]) -> None:
        """A state was loaded, or what was is forgotten: let the next ``iter()`` begin there."""
        self.numbered, self._saved = False, None
        self._resumes = _epoch_of(form)
        self.go_back(form)

    def go_back(self, form: Fresh | Loaded[P]) -> None:
        """Let the next ``iter()`` begin ``form``, of which no more than a look was taken."""
        self.form, self.begun = form, False

    def next(self, things: str) -> Fresh | Loaded[P]:
        """The start of this ``iter()``."""
        self.tell_of_two_ways()
        left, coming, form = self.left, self.coming, self.form
        saved, self._saved = self._saved, None
        counted = isinstance(form, Live | Parked) and coming is form.after and coming.announced and form.numbered
        self._looked = left is not None and left.had == 1
        if counted and left is not None and left.had == left.delivered == 1 and saved != (left.epoch, left.delivered):
            _warn_of_a_look(left.epoch, things)
        return coming

    def tell_of_two_ways(self) -> None:
        """Warn if a state was saved that goes another way than the next ``iter()``."""
        left, coming = self.left, self.coming
        if left is not None and self._saved == (left.epoch, left.delivered) and isinstance(coming, Fresh):
            _warn_of_two_ways(left.epoch, coming.epoch)

    def begin(
        self, work: Callable[[], AtWork[P] | None], holder: Callable[[], object], before: Fresh | Loaded[P]
    ) -> None:
        """``before``, which :meth:`next` gave, is being iterated. Nothing is kept alive but what ``work`` holds."""
        epoch = _epoch_of(before)
        numbered = self.numbered or self._looked  # the second look in a row counts
        self.form, self.begun = Live(work, holder, Fresh(epoch + 1), before, numbered), True
        self.numbered = False
        if epoch != self._resumes:
            self._resumes = None

    def end(self, work: AtWork[P] | None = None) -> None:
        """The epoch at work is over (all of ``work`` was handed out), or given up."""
        form = self.form
        if isinstance(form, Live) and (work is None or form.work() in (work, None)):
            self.form = self.coming if work is None else form.after
            self._resumes = self._resumes if work is None else None

    def park(self, work: AtWork[P], position: Callable[[], P], *, failed: bool = False) -> None:
        """``work`` was left in mid-epoch, at ``position``. If it ``failed``, it was no look, unless nothing was handed
        out of a state that was loaded: that is still to come.
        """
        form = self.form
        if not isinstance(form, Live) or form.work() not in (work, None):  # None: the collector has dropped it
            return
        parked = Parked(work.epoch, work.delivered, position, form.after, form.before, form.numbered, work.had)
        if failed and not (isinstance(form.before, Loaded) and not work.had):
            parked = replace(parked, numbered=True, had=max(1, work.had))
        self.form = form.before if form.after.announced and not parked.had else parked

    def check_at_work(self) -> None:
        """Raises: StateError unless an iterator is at work: whoever makes its items makes an exact state."""
        if self.work is None:
            raise StateError(
                "an exact state is one of a loop that is at work, and this one has not begun, or was left (break). "
                "Load a state that is not exact, take an item, and save exact=True before the loop is left"
            )

    def keep(self) -> None:
        """Note the position of the epoch at work, which is going to be closed, or why there is none."""
        left = self.left
        if left is None:
            return
        form = self.form
        assert isinstance(form, Live | Parked)  # of what is left
        if form.after.announced and not left.had:
            self.form = form.before
            return
        kept = Parked(left.epoch, left.delivered, left.position, form.after, form.before, form.numbered, left.had)
        try:
            position = left.position()
        except Exception as error:
            failure = error.with_traceback(None)
            self.form = replace(kept, position=lambda: _refuse(failure))
        else:
            self.form = replace(kept, delivered=position.delivered, position=lambda: position)

    def position(self, start: Callable[[int], P]) -> P:
        """The position that a state describes; ``start`` makes that at the start of an epoch."""
        while True:
            form = self.form
            if isinstance(form, Loaded):
                return form.position
            left = _left(form)
            if left is None:
                coming = self.coming
                return coming.position if isinstance(coming, Loaded) else start(coming.epoch)
            position = left.position()
            if self.form is form:  # else it has ended meanwhile, in another thread
                return position

    @contextmanager
    def beside(self) -> Iterator[None]:
        """A state that is made meanwhile is nobody's to resume from."""
        saved = self._saved
        try:
            yield
        finally:
            self._saved = saved

    def note_saved(self, position: EpochPosition) -> None:
        """A state of ``position``, or of an iterator that stands there, was handed out."""
        if isinstance(self.form, Live | Parked):
            self._saved = (position.epoch, position.delivered)


def _refuse(failure: Exception) -> NoReturn:
    raise StateError(
        f"the loader was shut down in mid-epoch, and its position could not be saved: {type(failure).__name__}: "
        f"{failure}. Load an older state, or begin another epoch by iter(), set_epoch() or seed()"
    ) from failure


def _warn_of_two_ways(epoch: int, coming: int) -> None:
    warn_user(
        f"a state was saved where the loop over epoch {epoch} was left in its midst (break, islice). A run that is "
        f"resumed from it goes on with the rest of epoch {epoch}; this run begins epoch {coming}. If epochs are to be "
        "cut short, leave the loop, let go of its iterator, call loader.set_epoch(loader.epoch), and save then: both "
        f"go on with epoch {coming}",
        UserWarning,
    )


def _warn_of_going_back(resumes: int, epoch: int) -> None:
    warn_user(
        f"the loader was taken to a position of epoch {resumes} (load_state_dict, skip), and set_epoch or seed() sends "
        f"it back to epoch {epoch}: what came before comes once more. To go on with the position, let the loop over "
        "epochs begin at loader.epoch: for epoch in range(loader.epoch, epochs)",
        UserWarning,
    )


def _warn_of_a_look(epoch: int, things: str) -> None:
    warn_user(
        f"the loop over epoch {epoch} was left behind the first of its {things}, and counts as an epoch: epochs are "
        "counted by number (loader.epoch, set_epoch), or the one before was left so too, which was a look. To look at "
        "it, loader.peek() counts nothing. If epochs are to be cut short, leave the loop and call "
        "loader.set_epoch(loader.epoch)",
        UserWarning,
    )
