"""torchdata's ``stateful_dataloader``: its loader's name and arguments, on torchpipe's ``DataLoader``."""

from __future__ import annotations

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
