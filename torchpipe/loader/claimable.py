"""The loaders' side of claims: at most one :class:`Claims` is at work, whose state is then the loader's.

Runs in the user's process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torchpipe.errors import IteratorInvalidated, StateError
from torchpipe.loader.claims import Claims
from torchpipe.loader.claims_state import SavedClaims
from torchpipe.state.flat import CLAIMS

__all__ = ["Claimable"]


class Claimable:
    """Mixed into the loaders."""

    _claims: Claims[Any] | None = None
    _claims_to_load: SavedClaims | None = None  # of a loaded state, if nobody has made claims yet
    _has_had_claims = False
    _for_claims = False  # True while claims begin an epoch, or load a state

    def claims(
        self,
        ahead: int = 64,
        *,
        groups: int = 1,
        timeout: float | None = None,
        max_staleness: int | None = None,
        stale: Literal["again", "drop"] = "again",
        keep_results: bool = False,
    ) -> Claims[Any]:
        """The items as claims, for consumers that finish them out of order: see :class:`Claims` for the arguments.

        Raises: RuntimeError while claims that were made before are open.
        """
        made: Any = Claims(
            self,  # type: ignore[arg-type]
            ahead,
            groups=groups,
            timeout=timeout,
            max_staleness=max_staleness,
            stale=stale,
            keep_results=keep_results,
        )
        loaded, self._claims_to_load = self._claims_to_load, None
        if self._claims is not None and self._claims.as_loaded is not None:
            loaded = self._claims.as_loaded
            self._claims.close()
        self._check_no_claims("other claims")
        self._claims, self._has_had_claims = made, True
        if loaded is not None:
            made._load(loaded)
        return made  # type: ignore[no-any-return]

    @property
    def has_claims(self) -> bool:
        """True once claims have been made, or loaded: a state is then one of this rank alone. It stays so when they are
        closed, since ranks must agree on it.
        """
        return self._has_had_claims

    def _iterate_claims(self, claims: Claims[Any]) -> Any:
        if self._claims is not claims:
            raise IteratorInvalidated("these claims are those of the loader no more: use the ones made last")
        self._for_claims = True
        try:
            return iter(self)  # type: ignore[call-overload]
        finally:
            self._for_claims = False

    def _load_for_claims(self, state: dict[str, Any], allow_pickle: bool) -> None:
        self._for_claims = True
        try:
            self.load_state_dict(state, allow_pickle=allow_pickle)  # type: ignore[attr-defined]
        finally:
            self._for_claims = False

    def _forget_claims(self, claims: Claims[Any]) -> None:
        if self._claims is claims:
            self._claims = None

    def _check_no_claims(self, what: str) -> None:
        """Raises: RuntimeError where what follows would lose open claims."""
        if self._for_claims:
            return
        if self._claims_to_load is not None:
            raise RuntimeError(
                f"the loaded state has claims, which {what} would lose: go on with loader.claims(...), or load another "
                "state"
            )
        if self._claims is not None:
            lost = self._claims.would_lose()
            if lost:
                raise RuntimeError(f"{lost}, which {what} would lose: go on with the claims, or call their close()")
            self._claims.close()

    def _interrupt_claims(self) -> None:
        if self._claims is not None:
            self._claims.interrupt()

    def _state_of_claims(self, exact: bool) -> dict[str, Any] | None:
        """The state, if claims are at work or loaded. Raises: StateError for one that is to be ``exact``."""
        claims, loaded = self._claims, self._claims_to_load
        if loaded is None and (claims is None or not claims.at_work):
            return None
        if exact:
            raise StateError(
                "exact=True is for a loop without claims: open items are made again when the state is loaded. Save "
                "without it, or call claims.close() and iterate the loader itself"
            )
        if loaded is None:
            assert claims is not None
            return claims.state_dict()
        own: Any = self
        return loaded.beside(own._state_at(own._position_now()), loaded.encoded())

    def _split_state(self, state: Any, allow_pickle: bool) -> tuple[Any, SavedClaims | None]:
        """The loader's own part of a state, and what it says of claims. Raises: StateError for damage."""
        if not isinstance(state, Mapping) or CLAIMS not in state:
            return state, None
        own: Any = self
        rest = {name: value for name, value in state.items() if name != CLAIMS}
        saved = SavedClaims.read(state[CLAIMS], rest, own._ranks_of_claims(), allow_pickle)
        for _, later in saved.later:
            own._read_state(later, allow_pickle)  # raises now what it would raise once its epoch begins
        return rest, saved

    def _load_claims(self, saved: SavedClaims | None) -> None:
        """The loader has taken up a state, which says this of claims."""
        if self._for_claims:
            return
        self._has_had_claims |= saved is not None
        if self._claims is None:
            self._claims_to_load = saved
        else:
            self._claims._load(saved)
