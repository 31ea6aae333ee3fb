"""``python -m torchpipe.observe.cli``: the same as ``torchpipe``."""

import sys

from torchpipe.observe.cli.main import main

if __name__ == "__main__":  # processes that are spawned import this module
    sys.exit(main())
