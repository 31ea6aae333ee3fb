"""torchdata's ``stateful_dataloader``: its loader's name and arguments, on torchpipe's ``DataLoader``."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from torchpipe.data.loader import DataLoader

__all__ = ["StatefulDataLoader"]

T_co = TypeVar("T_co", covariant=True)


class StatefulDataLoader(DataLoader[T_co]):
    """:class:`torchpipe.DataLoader` for code written for torchdata's class of this name.

    ``snapshot_every_n_steps`` is taken for the sake of that code; a state is exact anyhow.
    """

    def __init__(self, *arguments: Any, snapshot_every_n_steps: int | None = 1, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.snapshot_every_n_steps = snapshot_every_n_steps


def _with_own_argument() -> inspect.Signature:
    """The signature by which trainers make such a loader again: they give by name what it says."""
    signature = inspect.signature(DataLoader.__init__)
    own = inspect.signature(StatefulDataLoader.__init__).parameters["snapshot_every_n_steps"]
    return signature.replace(parameters=[*signature.parameters.values(), own])


StatefulDataLoader.__init__.__signature__ = _with_own_argument()  # type: ignore[attr-defined]
