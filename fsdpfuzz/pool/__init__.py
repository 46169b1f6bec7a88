"""The controller's side of the ranks: start, send, deadline, post mortem, respawn. No torch."""

from __future__ import annotations

from fsdpfuzz.forkserver import Interpreter, Lent, interpreter_at, own_interpreter
from fsdpfuzz.pool._deadline import Deadlines
from fsdpfuzz.pool._imported import Seen, look_at
from fsdpfuzz.pool._lent import adopt, as_argument, lend
from fsdpfuzz.pool._machine import choose_backend, probe_machine
from fsdpfuzz.pool._pool import Pool
from fsdpfuzz.pool._signals import sigterm_exits
from fsdpfuzz.wire import Machine

__all__ = [
    "Deadlines",
    "Interpreter",
    "Lent",
    "Machine",
    "Pool",
    "Seen",
    "adopt",
    "as_argument",
    "choose_backend",
    "interpreter_at",
    "lend",
    "look_at",
    "own_interpreter",
    "probe_machine",
    "sigterm_exits",
]
