"""The policies of a service's workers. Runs in the main process."""

from __future__ import annotations

from reading_services.engine.autotune import Autotune
from reading_services.engine.balance import Balance
from reading_services.engine.policy import Policy
from torchpipe.machine import Budget

__all__ = ["policies"]


def policies(budget: Budget | None, most: int, *, balance: bool = False) -> list[Policy]:
    """With ``budget``, as many of at most ``most`` as are of use. ``balance``: shards are moved between them."""
    tuning: list[Policy] = [] if budget is None else [Autotune(budget, most)]
    return [*tuning, Balance()] if balance else tuning
