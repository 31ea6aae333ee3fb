"""torch's ``DataLoader`` on torchpipe's engine; its argument ``distributed`` in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchpipe.on_demand import on_demand

if TYPE_CHECKING:
    from torchpipe.data.ranks.balance import Balance
    from torchpipe.data.ranks.batches import Ranks
else:
    __getattr__, __dir__ = on_demand(__name__)

__all__ = ["Balance", "Ranks"]
