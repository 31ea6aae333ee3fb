"""The position of a run over claims: the rest of a loaded state, and the item from which a resume begins.

Runs in the user's process. The loader holds the driver, which holds no loader: each call names it. ``window.lock``
guards what changes here too. A loop that is over writes nothing more: the items that it still pulls count as not taken.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from torchpipe.claims.saved import Item, SavedClaims, ranks_of_claims
from torchpipe.claims.window import Claim, Window, are_open
from torchpipe.errors import IteratorInvalidated, StateError
from torchpipe.node.opaque_warnings import OpaqueWarnings
from torchpipe.state.codec import as_text
from torchpipe.state.flat import CLAIMS

if TYPE_CHECKING:
    from torchpipe.claims.claims import EpochOfClaims

__all__ = ["ClaimsDriver"]


class _Coming(NamedTuple):
    """A loop begins at ``first``, to which ``state`` takes the loader; None: it stands there. ``resumes``: in an epoch
    of the loaded state, of which the run before had ``finished`` all. ``left``: in an epoch that has begun.
    """

    first: Item
    state: dict[str, Any] | None = None
    resumes: bool = False
    finished: bool = False
    left: bool = False


class ClaimsDriver:
    """The loader's :class:`~torchpipe.loader.driven.Driver` while items are taken as claims, or are to be so."""

    def __init__(self) -> None:
        self.window: Window[Any] = Window()
        self.closed = self._allow_pickle = False
        self._opaque = OpaqueWarnings()
        self._begins = threading.Lock()
        self._beginner = 0  # the thread in which this, and nobody else, calls the loader
        self._reset()

    def _reset(self) -> None:
        self.window.reset()
        self._loop: Callable[[], EpochOfClaims[Any] | None] = _nobody  # at work, unless it was dropped (break)
        self.next: Item | None = None  # what it gives next, or what the last one would have; None: none has begun
        self._positions: list[tuple[Item, Any]] = []  # of the loader, each before that item, as time went
        self.since_remembered = 0  # items
        self.loaded: tuple[SavedClaims, Any] | None = None  # and the position; until a loop has had something of it
        self._rests: dict[int, _Coming] = {}  # of the loaded state: of the epochs of which no loop has had anything
        self._finished_to: Item | None = None  # of it, while loops go on with it: all but what is unseen was finished

    # -- epochs --------------------------------------------------------------------------------------------------------

    def begin(self, loader: Any, loop: EpochOfClaims[Any]) -> None:
        """Let ``loop`` have the loader's next epoch, or what has come back."""
        with self._begins:
            self.check_open()
            with self.window.lock:
                if self.window.back:
                    self._put_to_work(loop)
                    return
            coming = self._coming(loader)
            self._check_nothing_is_lost(coming)
            self._beginner = threading.get_ident()
            try:
                if coming.finished:
                    loader.set_epoch(coming.first[0] + 1)
                else:
                    if coming.state is not None:
                        loader.load_state_dict(coming.state, allow_pickle=self._allow_pickle)
                    stream = iter(loader)
                    position = loader._position_now()
            finally:
                self._beginner = 0
            with self.window.lock:
                self.check_open()
                self._put_to_work(loop)
                if coming.finished:
                    self.next = coming.first
                else:
                    if not coming.resumes:
                        self.loaded, self._rests, self._finished_to = None, {}, None
                    loop.stream, loop.epoch, loop.first = stream, stream.epoch, stream.delivered
                    self.remember(position)

    def _put_to_work(self, loop: EpochOfClaims[Any]) -> None:
        """Put ``loop`` to work. Like the loader's own iterator, it ends when nobody holds it any more, with the items
        that it has at hand. A consumer that waits for room in an older one is told.
        """
        loop.begun, self._loop = True, weakref.ref(loop)
        self.window.wake()

    def _coming(self, loader: Any, *, at_work: bool = False) -> _Coming:
        """The start of the next loop; of one ``at_work``, or left, the start of its rest. An epoch that the user has
        set is that epoch, as with the loader.
        """
        first, left = loader._coming()
        if at_work and left and self.next is not None:
            return _Coming(self.next, resumes=True, left=True)
        rest = self._rests.get(first[0])
        if rest is not None:
            return rest._replace(first=first, state=None) if first[1] else rest
        between = bool(self._rests and self.next is not None and self.next[0] < first[0] < max(self._rests))
        return _Coming(first, resumes=between, finished=between)

    def _check_nothing_is_lost(self, coming: _Coming) -> None:
        with self.window.lock:
            twice = [item for item in self.window.open if item >= coming.first]
            lost = [item for item in self.window.unseen if item < coming.first or not coming.resumes]
        if twice:
            raise RuntimeError(
                f"{are_open(twice, f' of epoch {max(twice)[0]}')}, and epoch {coming.first[0]} would begin again from "
                f"item {coming.first[1]}: let them be done, or call close()"
            )
        if lost:
            raise RuntimeError(
                f"{are_open(lost, f' of epoch {min(lost)[0]}')} in the state and not given yet, and epoch "
                f"{coming.first[0]} would begin without them: load the state and take them before you leave that "
                "epoch, or call close()"
            )

    # -- for the loop at work ------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        if self.closed:
            raise IteratorInvalidated("these claims are closed: make others with loader.claims(...)")

    def is_at_work(self, loop: EpochOfClaims[Any]) -> bool:
        return loop is self._loop()

    def check_at_work(self, loop: EpochOfClaims[Any]) -> None:
        self.check_open()
        if not self.is_at_work(loop):
            raise IteratorInvalidated(
                "this loop over claims has been ended by a newer one, load_state_dict() or shutdown(): iterate the "
                "claims again"
            )

    def has_room(self, loop: EpochOfClaims[Any]) -> bool:
        self.check_at_work(loop)
        return len(self.window.open) - len(self.window.back) < self.window.ahead

    def take(self, loop: EpochOfClaims[Any]) -> Claim[Any] | None:
        """A claim; there is room. None: another thread has taken it."""
        comes_back = bool(self.window.back)
        claim = self.window.give(loop.at_hand)
        if claim is not None and not comes_back:
            self.next, loop.at_hand = (claim.epoch, claim.ordinal + 1), None
        return claim

    def came(self, loop: EpochOfClaims[Any]) -> None:
        """``loop`` has had an item of the loader, or its end, and no failure takes that back: what the loaded state
        leaves of its epoch has been given up.
        """
        if self.is_at_work(loop):
            self.loaded = None
            self._rests = {epoch: rest for epoch, rest in self._rests.items() if epoch > loop.epoch}

    def has_no_more(self, epoch: int) -> bool:
        """True if the run of the loaded state had left this epoch, and all that was open of it has been given."""
        left = self._finished_to is not None and self._finished_to[0] > epoch
        return left and not any(item[0] == epoch for item in self.window.unseen)

    def was_finished(self, item: Item) -> bool:
        return self._finished_to is not None and item < self._finished_to and item not in self.window.unseen

    def remember(self, position: Any) -> None:
        """Remember the loader's position, and forget those that no state needs any more."""
        self.next, self.since_remembered = (position.epoch, position.delivered), 0
        self._positions.append((self.next, position))
        chosen = self._first_items(self.next, self._finished_to, self._positions).values()
        least = {self._positions[index][0][0]: index for index in chosen if index is not None}
        self._positions = [
            entry for index, entry in enumerate(self._positions) if index >= least.get(entry[0][0], 1 << 62)
        ]

    def _first_items(
        self, following: Item, floor: Item | None, positions: list[tuple[Item, Any]]
    ) -> dict[Item, int | None]:
        """The first item of each epoch that a resume has to come to, and which of the positions is the last one before
        it, in its epoch. What is before ``floor`` was done long ago.
        """
        wanted = sorted((*self.window.open, *self.window.unseen, max(following, floor or following)), reverse=True)
        found: dict[Item, int | None] = dict.fromkeys(sorted({item[0]: item for item in wanted}.values()))
        for item in found:
            for index, (first, _) in enumerate(positions):
                if first[0] == item[0] and first <= item:
                    found[item] = index
        return found

    # -- the loader's driver -------------------------------------------------------------------------------------------

    def let_go(self, loader: Any, what: str) -> None:
        if self._beginner == threading.get_ident():
            return
        if lost := self.would_lose(loader):
            raise RuntimeError(
                f"{lost}, which {what} would lose: go on with the claims, those of loader.claims(...), or call their "
                "close()"
            )
        self.close()

    def would_lose(self, loader: Any) -> str:
        with self.window.lock:
            results, at_hand = self.window.results, getattr(self._loop(), "at_hand", None) is not None
            lost = range(len(self.window.open) + len(self.window.unseen) + at_hand)
            if lost:
                return are_open(lost) + (" in the loaded state" if self.loaded else "")
            coming = self._coming(loader, at_work=True)
            if coming.resumes and self._finished_to is not None and coming.first < self._finished_to:
                return "items behind the loader's position are done"
            if coming.left and self.loaded:
                return "items of the loaded state are to come"
            return f"{len(results)} result{' was' if len(results) == 1 else 's were'} not taken" if results else ""

    def close(self) -> None:
        with self.window.lock:
            self._reset()
            self.closed = True
            self.window.wake()

    def interrupt(self) -> None:
        with self.window.lock:
            self._loop = _nobody
            self.window.wake()

    def load(self, loader: Any, saved: SavedClaims | None) -> None:
        if self._beginner == threading.get_ident():
            return
        if self.closed:  # whoever has closed these sees nothing of what the next ones have
            loader.driver = ClaimsDriver()
            loader.driver.load(loader, saved)
        else:
            self.take_up(None if saved is None else (saved, loader._position_now()))

    def take_up(self, loaded: tuple[SavedClaims, Any] | None) -> None:
        """Begin with a state, and the loader's position as it was when that was loaded."""
        window = self.window
        with window.lock:
            self._reset()
            if loaded is not None:
                saved, position = self.loaded = loaded
                window.unseen, window.results = set(saved.open), deque(saved.results)
                window.version, window.reasons = saved.version, dict(saved.reasons)
                window.counts |= saved.counts
                self._allow_pickle = saved.allow_pickle
                own = saved.own if saved.first[1] else None  # at its start, an epoch begins by itself
                self._rests = {at[0]: _Coming(at, state, True) for at, state in ((saved.first, own), *saved.later)}
                self._finished_to = saved.following
                self.remember(position)
            window.wake()

    def state_dict(self, loader: Any, *, exact: bool) -> dict[str, Any] | None:
        window = self.window
        with window.lock:
            if self.next is None:
                return None
            if exact:
                raise StateError(
                    "exact=True is for a loop without claims: open items are made again when the state is loaded. Save "
                    "without it, or call claims.close() and iterate the loader itself"
                )
            coming, positions = self._coming(loader, at_work=True), self._positions
            still_open = sorted({*window.open, *window.unseen})
            if not coming.resumes and (twice := [item for item in still_open if item >= coming.first]):
                raise StateError(
                    f"{are_open(twice, f' of epoch {twice[-1][0]}')}, and the loader was set back to the start of "
                    f"epoch {coming.first[0]}, which no state says: let them be done, load their state again, or call "
                    "close()"
                )
            if not (coming.left or coming.finished or coming.state is not None):
                positions = [*positions, (coming.first, loader._position_now())]
            floor = self._finished_to if coming.resumes else None
            found: list[tuple[Item, dict[str, Any]]] = []  # (item, the loader's state before it) of each epoch
            for item, index in self._first_items(coming.first, floor, positions).items():
                if index is not None:
                    found.append((positions[index][0], loader._state_at(positions[index][1])))
                elif (rest := self._rests.get(item[0])) is not None and rest.state is not None:
                    found.append((rest.first, rest.state))
                else:
                    raise StateError(f"no position of the loader before item {item[1]} of epoch {item[0]} is known")
            (first, state), *later = found
            saved = SavedClaims(
                first=first,
                following=max(coming.first, floor or first, *((epoch, last + 1) for epoch, last in still_open)),
                open=still_open,
                later=later,
                version=window.version,
                counts=window.counts,
                reasons=window.reasons,
                results=list(window.results),
                ranks=ranks_of_claims(loader),
            )
            payload = saved.encoded()
        self._opaque.tell(payload)
        return state | {CLAIMS: as_text(payload)}


def _nobody() -> None:
    return None
