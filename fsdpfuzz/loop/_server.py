"""The fork server of a job, which its campaign may lend to it."""

from __future__ import annotations

import msgspec

from fsdpfuzz.forkserver import ForkServer, Lent
from fsdpfuzz.loop._settings import RunSettings
from fsdpfuzz.wire import DEVICES


def lend_to(settings: RunSettings) -> Lent | None:
    """A server that a job's ranks can be forked by, if this process has one of that kind.

    Many jobs that import torch at the same time take several times as long as one.
    """
    session = settings.session
    return ForkServer.lend(gpus=_gpus(settings), python=session.python)


def take_over(server: str, settings: RunSettings) -> None:
    """Has the ranks of this job forked by the server that was lent to it."""
    lent = msgspec.json.decode(server, type=Lent)
    ForkServer.adopt(lent, gpus=_gpus(settings), python=settings.session.python)


def _gpus(settings: RunSettings) -> bool:
    return DEVICES[settings.session.backend] == "cuda"
