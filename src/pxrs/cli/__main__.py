"""``python -m pxrs.cli`` is ``pxrs``."""

from __future__ import annotations

import sys

from pxrs.cli import main

if __name__ == "__main__":
    sys.exit(main())
