"""``python -m nbdist``: the command line, as ``nbdist``."""

import sys

from nbdist.cli.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
