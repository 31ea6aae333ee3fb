"""Values of the user's: what an object keeps, taken down as plain data and put back into the present objects.

One traversal follows objects as pickle does. ``object_contents`` has the table of kinds, ``object_tracker`` the
traversal, ``state_table`` and ``restoring`` the way back, and ``old_states`` reads what states from before hold.
"""

from typing import Any

from torchpipe.values.large_data import MOST_KEPT
from torchpipe.values.object_tracker import ObjectTracker, Saved
from torchpipe.values.restoring import check, put

__all__ = ["ObjectTracker", "Saved", "check", "kept_of", "put"]


def kept_of(dataset: Any) -> ObjectTracker:
    """An iterable dataset as it is now, but for its data."""
    return ObjectTracker([dataset], at_most=MOST_KEPT)
