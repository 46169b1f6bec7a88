"""``python -m fsdpfuzz``."""

from __future__ import annotations

import sys

from fsdpfuzz.cli import main

if __name__ == "__main__":
    sys.exit(main())
