"""The examples run as a user would run them."""

import os

# Each training has one thread: those of several would spin while they wait for each other's cores.
ALONE = os.environ | {"OMP_NUM_THREADS": "1"}
