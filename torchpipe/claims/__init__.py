"""Claims: a loader's items for consumers that run ahead and finish out of order, with a state of what is finished.

A loader's own state counts what it has handed out. Where items are taken far ahead and finish in any order (rollouts,
generation, scoring), a resume from it would skip what was still open. A claim is open until it is done or dropped,
whoever finishes first.

It uses a loader's public calls, and the hooks of :class:`torchpipe.loader.driven.Driven`: ``driver``, ``_coming``, and
``_position_now`` with ``_state_at``; of the rest of the core, what says which rank a loader is of and how it is divided
(``data.order.samplers``, ``data.ranks.batches``, ``data.ranks.graph``, ``compat.torch_private``), the codec of states,
and what all packages share (``errors``, ``node``, ``randomness``). The loader holds its driver (``driver.py``), which
holds no loader; :class:`Claims` and a loop over them hold both; a :class:`Claim` holds the window of open ones
(``window.py``) alone: whoever keeps one keeps no loader and no worker alive.
"""

from __future__ import annotations

from torchpipe.claims.claims import Claims
from torchpipe.claims.window import Claim, ClaimStats, Number

__all__ = ["Claim", "ClaimStats", "Claims", "Number"]
