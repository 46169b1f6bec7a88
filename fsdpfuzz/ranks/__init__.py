"""Ranks: what runs in them, and the pool by which the controller drives them.

Importing this package does not import torch; the ranks' own modules do, in the ranks.
"""

from __future__ import annotations

import msgspec

from fsdpfuzz.ranks._deadline import Deadlines
from fsdpfuzz.ranks._launch import close_forkserver, forkserver
from fsdpfuzz.ranks._machine import Machine, choose_backend
from fsdpfuzz.ranks._pool import Pool

__all__ = [
    "Deadlines",
    "Machine",
    "Pool",
    "choose_backend",
    "close_forkserver",
    "probe_machine",
]


def probe_machine() -> Machine:
    """What this machine and its torch can do; :class:`PoolError` if torch cannot be loaded."""
    return msgspec.json.decode(forkserver().describe(), type=Machine)
