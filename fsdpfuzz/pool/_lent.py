"""Fork servers that one process has from another one, where many start at the same time."""

from __future__ import annotations

import msgspec

from fsdpfuzz.forkserver import ForkServer, Interpreter, Lent
from fsdpfuzz.wire import DEVICES, Backend


def lend(backend: Backend, python: Interpreter | None = None) -> Lent | None:
    """A server for the ranks of another process, if this one has a server of that kind.

    Many that import torch at the same time take several times as long as one.
    """
    return ForkServer.lend(gpus=DEVICES[backend] == "cuda", python=python)


def adopt(server: str, backend: Backend, python: Interpreter | None = None) -> None:
    """Has the ranks of this process forked by the server that was lent to it."""
    lent = msgspec.json.decode(server, type=Lent)
    ForkServer.adopt(lent, gpus=DEVICES[backend] == "cuda", python=python)


def as_argument(lent: Lent) -> str:
    """A server as one argument, on the command line of the process that it is lent to."""
    return msgspec.json.encode(lent).decode()
