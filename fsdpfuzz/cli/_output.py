"""Standard output, for text that may not fit the terminal's encoding or width."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 100


def console() -> Console:
    """A console on standard output; `PLAIN_WIDTH` wide and without colour if it is no terminal."""
    from rich.console import Console

    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        # What the encoding cannot say becomes a question mark, not a traceback.
        reconfigure(errors="replace")
    return Console(
        highlight=False,
        markup=False,
        emoji=False,
        width=None if sys.stdout.isatty() else PLAIN_WIDTH,
    )
