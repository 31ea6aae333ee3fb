"""A loader that a driver has taken over: it takes the items for others, and answers for the state meanwhile (claims).

Runs in the user's process. The loader holds its driver, and the driver holds no loader: there is no cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, Self

from torchpipe.loader.epochs import Epochs, Fresh, Loaded
from torchpipe.rings import from_ring
from torchpipe.state.flat import CLAIMS

__all__ = ["Driven", "Driver"]


class Driver(Protocol):
    """Whoever has taken over a loader, which each call names."""

    def let_go(self, loader: Any, what: str) -> None:
        """Somebody else asks the loader for ``what``. Raises: RuntimeError where that loses what the driver has."""

    def would_lose(self, loader: Any) -> str:
        """The loss without the driver, in words; "" if there is none."""

    def state_dict(self, loader: Any, *, exact: bool) -> dict[str, Any] | None:
        """The loader's state, with what the driver adds; None: the loader's own says all."""

    def load(self, loader: Any, saved: Any) -> None:
        """The loader has taken up a state, of which ``saved`` is the driver's part, if it has one."""

    def interrupt(self) -> None:
        """The loader is being shut down: whoever waits for an item is told."""


class Driven:
    """Mixed into the loaders: ``driver``, and three hooks by which it learns where the loader stands."""

    driver: Driver | None = None  # it stays when it has let go
    _epochs: Epochs[Any]
    _read_state: Any  # (state, allow_pickle): raises what loading it would raise
    shutdown: Any

    def _position_now(self) -> Any:
        """The position that a state describes, which has an ``epoch`` and the number of items ``delivered``."""
        raise NotImplementedError

    def _state_at(self, position: Any) -> dict[str, Any]:
        """The loader's own state at a position of :meth:`_position_now`."""
        raise NotImplementedError

    def _begin_epoch(self) -> Any:
        """The iterator that ``iter()`` returns."""
        raise NotImplementedError

    def _note_beginning(self) -> Callable[[], object]:
        """A function that lets all stand again as it stands now, before the next ``iter()``."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    @property
    def epoch(self) -> int:
        """The epoch of the iterator at work; if nobody has one any more, the epoch that the next ``iter()`` gives.

        After ``load_state_dict``, that of the state. Behind the last item its rest is empty: ``iter()`` ends at once,
        and the next epoch follows.
        """
        return self._epochs.ask()

    def peek(self) -> Any:
        """The first item of the next ``iter()``, which will give it again: a look counts nothing, and leaves the epoch,
        a loaded position and random generators as they are. It is made for this alone, by workers that then end.

        What cannot be read twice (an open file, a generator of yours) is refused by the ``iter()`` that follows.

        Raises: RuntimeError where an iterator is at work, or was left in mid-epoch; LookupError if there is no item.
        """
        epochs = self._epochs
        form, begun, numbered = epochs.form, epochs.begun, epochs.numbered
        if not isinstance(form, Fresh | Loaded):
            raise RuntimeError(
                "peek() is for a look at what the next loop begins with, and an iterator is at work, or was left in "
                "mid-epoch, whose position would be lost: save its state, and call loader.set_epoch(loader.epoch) first"
            )
        go_back = self._note_beginning()
        try:
            return next(self._begin_epoch())
        except StopIteration:
            raise LookupError("there is nothing to look at: the next iter() has no item") from None
        finally:
            go_back()
            epochs.form, epochs.begun, epochs.numbered = form, begun, numbered

    def _coming(self) -> tuple[tuple[int, int], bool]:
        """(epoch, items before) of what the next ``iter()`` begins; True if the position is another one: that of an
        epoch at work, or of one that was left in its midst.
        """
        coming = self._epochs.coming
        begins = (coming.epoch, 0) if isinstance(coming, Fresh) else (coming.position.epoch, coming.position.delivered)
        return begins, self._epochs.left is not None

    def claims(
        self,
        ahead: int = 64,
        *,
        groups: int = 1,
        timeout: float | None = None,
        max_staleness: int | None = None,
        stale: Literal["again", "drop"] = "again",
        keep_results: bool = False,
    ) -> Any:
        """The items as claims, for consumers that finish them out of order: a :class:`torchpipe.claims.Claims` of this
        loader, whose other arguments these are. Raises: RuntimeError while claims that were made before are open.
        """
        more = {"groups": groups, "timeout": timeout, "max_staleness": max_staleness, "stale": stale}
        return from_ring("torchpipe.claims:Claims")(self, ahead, keep_results=keep_results, **more)

    @property
    def has_claims(self) -> bool:
        """True once claims have been made, or loaded: a state is then one of this rank alone. It stays so when they are
        closed, since ranks must agree on it.
        """
        return self.driver is not None

    def _leave_driver(self, what: str) -> None:
        """Raises: RuntimeError where ``what`` follows would lose what a driver has."""
        if self.driver is not None:
            self.driver.let_go(self, what)

    def _driven_state(self, exact: bool) -> dict[str, Any] | None:
        """The state, if it is the driver's."""
        state = None if self.driver is None else self.driver.state_dict(self, exact=exact)
        if state is not None and (left := self._epochs.left) is not None:
            self._epochs.note_saved(left)
        return state

    def _split_state(self, state: Any, allow_pickle: bool) -> tuple[Any, Any]:
        """The loader's own part of a state, and the driver's. Raises: StateError for damage."""
        if not isinstance(state, Mapping) or CLAIMS not in state:
            return state, None
        own = {name: value for name, value in state.items() if name != CLAIMS}
        saved = from_ring("torchpipe.claims.saved:SavedClaims").read(self, state[CLAIMS], own, allow_pickle)
        for _, later in saved.later:
            self._read_state(later, allow_pickle)  # raises now what it would raise once its epoch begins
        return own, saved

    def _load_driver(self, saved: Any) -> None:
        """The loader has taken up its own part of a state; this is the driver's."""
        if saved is not None and self.driver is None:
            self.driver = from_ring("torchpipe.claims.driver:ClaimsDriver")()
        if self.driver is not None:
            self.driver.load(self, saved)
