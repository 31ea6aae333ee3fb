"""Values of the user's: what an object keeps, taken down as plain data and put back into the present objects.

One traversal follows objects as pickle does. ``pictures`` has the table of kinds, ``looked`` the traversal, ``reading``
and ``putting`` the way back, and ``older`` reads what states from before hold.
"""

from typing import Any

from torchpipe.values.data import MOST_KEPT
from torchpipe.values.looked import Looked, Saved
from torchpipe.values.putting import check, put

__all__ = ["Looked", "Saved", "check", "kept_of", "put"]


def kept_of(dataset: Any) -> Looked:
    """An iterable dataset as it is now, but for its data."""
    return Looked([dataset], at_most=MOST_KEPT)
