"""``python -m pxrs.apps.cli`` is ``pxrs``."""

from __future__ import annotations

import sys

from pxrs.apps.cli import main

if __name__ == "__main__":
    sys.exit(main())
