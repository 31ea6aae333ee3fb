"""Values of the user's: what an object keeps, taken down as plain data and put back into the present objects.

One traversal follows objects as pickle does. ``pictures`` has the table of kinds, ``looked`` the traversal, ``reading``
and ``putting`` the way back, and ``older`` reads what states from before hold.
"""

from torchpipe.values.looked import Looked, Saved
from torchpipe.values.putting import check, put

__all__ = ["Looked", "Saved", "check", "put"]
