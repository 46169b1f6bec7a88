"""Standard output, for text that may not fit the terminal's encoding, colours or width."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 100
CUT = "..."


def console(*, stderr: bool = False) -> Console:
    """A console on standard output; `PLAIN_WIDTH` wide and without colour if it is no terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr,
        highlight=False,
        markup=False,
        emoji=False,
        # Under NO_COLOR rich still prints bold and dim; without a colour system it has no style.
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        width=None if stream.isatty() else PLAIN_WIDTH,
    )


def is_ascii() -> bool:
    """Whether standard output has ASCII alone."""
    return (sys.stdout.encoding or "").lower().replace("-", "") in ("ascii", "usascii")


def fitting(line: str) -> str:
    """A line cut to the width of the terminal; whole where standard output is none."""
    if not sys.stdout.isatty():
        return line
    width = max(shutil.get_terminal_size().columns, len(CUT))
    return line if len(line) <= width else line[: width - len(CUT)] + CUT
