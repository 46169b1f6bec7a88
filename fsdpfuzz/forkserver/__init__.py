"""The process that ranks are forked from, with torch loaded once, and its controller's side.

Importing this package does not import torch; only the forked process does.
"""

from __future__ import annotations

from fsdpfuzz.forkserver._environment import may_see_gpus, rank_environment
from fsdpfuzz.forkserver._interpreter import Interpreter, interpreter_at, own_interpreter
from fsdpfuzz.forkserver._server import ForkServer, Lent, ServerLostError, close_forkserver

__all__ = [
    "ForkServer",
    "Interpreter",
    "Lent",
    "ServerLostError",
    "close_forkserver",
    "interpreter_at",
    "may_see_gpus",
    "own_interpreter",
    "rank_environment",
]
