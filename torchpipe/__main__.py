"""``python -m torchpipe``: the command ``torchpipe``, where the script that pip installs is not on the path."""

import sys

from torchpipe.observe.cli.main import main

if __name__ == "__main__":  # processes that are spawned import this module
    sys.exit(main())
