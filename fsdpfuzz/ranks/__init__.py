"""Real ranks: processes that train a case, and the controller that outlives them.

Importing this package does not import torch; only the ranks do.
"""

from __future__ import annotations

from fsdpfuzz.ranks._deadline import Deadlines
from fsdpfuzz.ranks._machine import Machine, choose_backend, probe_machine
from fsdpfuzz.ranks._pool import Backend, Pool
from fsdpfuzz.ranks._server import close_forkserver
from fsdpfuzz.ranks._signals import sigterm_exits

__all__ = [
    "Backend",
    "Deadlines",
    "Machine",
    "Pool",
    "choose_backend",
    "close_forkserver",
    "probe_machine",
    "sigterm_exits",
]
