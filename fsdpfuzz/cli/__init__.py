"""The command line, ``fsdpfuzz``.

Exit codes: 0 nothing new found, 1 findings, 2 bad usage or input, 3 this machine cannot run
it, 129, 130 and 143 ended by SIGHUP, SIGINT and SIGTERM.
"""

from __future__ import annotations

from fsdpfuzz.cli._main import main

__all__ = ["main"]
