"""A loader that a driver has taken over: it takes the items for others, and answers for the state meanwhile (claims).

Runs in the user's process. The loader holds its driver, and the driver holds no loader: there is no cycle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from torchpipe.loader.epochs import Epochs, Fresh
from torchpipe.rings import from_ring
from torchpipe.state.flat import CLAIMS

__all__ = ["Driven", "Driver"]


class Driver(Protocol):
    """Whoever has taken over a loader, which each call names."""

    def let_go(self, loader: Any, what: str) -> None:
        """Somebody else asks the loader for ``what``. Raises: RuntimeError where that loses what the driver has."""

    def would_lose(self, loader: Any) -> str:
        """What is lost without the driver, in words; "" if nothing."""

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

    def _position_now(self) -> Any:
        """The position that a state describes, which has an ``epoch`` and the number of items ``delivered``."""
        raise NotImplementedError

    def _state_at(self, position: Any) -> dict[str, Any]:
        """The loader's own state at a position of :meth:`_position_now`."""
        raise NotImplementedError

    def _coming(self) -> tuple[tuple[int, int], bool]:
        """(epoch, items before) of what the next ``iter()`` begins; True if the position is another one: that of an
        epoch at work, or of one that was left in its midst.
        """
        coming = self._epochs.coming
        if isinstance(coming, Fresh):
            return (coming.epoch, 0), self._epochs.left is not None
        return (coming.position.epoch, coming.position.delivered), False

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
