"""The life of a rank: join the process group, then run one case after the other."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import resource
import signal
import socket
import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore
from torch.distributed import ProcessGroup, distributed_c10d

from fsdpfuzz.case import CaseSpec, decode, digest
from fsdpfuzz.errors import ContractError, UsageError
from fsdpfuzz.observations import RankReport
from fsdpfuzz.ranks._collectives import note_collectives
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.ranks._imported import load
from fsdpfuzz.ranks._meshes import forget_meshes, keep_named
from fsdpfuzz.ranks._prepare import prepare
from fsdpfuzz.ranks._raised import describe
from fsdpfuzz.ranks._taps import tapped
from fsdpfuzz.ranks._train import run_case
from fsdpfuzz.wire import (
    DEVICES,
    Answer,
    Failed,
    FlightRecorder,
    Frames,
    Order,
    Ready,
    Run,
    Setup,
    frame,
    order,
)

__all__ = ["main", "prepare", "run_case"]

# The controller decides when a case has taken too long, never the process group.
_NO_TIMEOUT = timedelta(days=7)
_BUFFER = 8192
_LENGTH_BYTES = 8

_Runs = Callable[[CaseSpec, RankEnv], RankReport]


def main(given: bytes, channel: socket.socket) -> None:
    """Runs cases until the controller closes the channel. ``given`` is a `Setup` in JSON."""
    setup = msgspec.json.decode(given, type=Setup)
    try:
        if setup.cores:
            # Before any thread is started, which inherits them. It is faster, and no more than
            # that: a rank that may not keep to them runs where it can.
            with suppress(OSError):
                os.sched_setaffinity(0, setup.cores)
        if setup.target is not None:
            # Before the process group: code that cannot be imported
            # fails here on every rank, and none waits.
            load(setup.target)
        env = _join(setup)
        if setup.injection is not None:
            # After the joining, as an injection may run collectives; before the first case.
            _inject(setup.injection, env)
    except BaseException as error:
        reason = describe(error, "start")
        text = f"{reason.type}: {reason.message}\n{reason.traceback}"
        channel.sendall(frame(Failed(rank=setup.rank, reason=text)))
        return
    gc.collect()
    gc.freeze()  # what the rank was born with needs no look at after each case
    gpus = torch.cuda.device_count()  # which initialises nothing
    channel.sendall(frame(Ready(rank=setup.rank, torch=str(torch.__version__), gpus=gpus)))
    _serve(env, channel, tapped if setup.taps else run_case)


def _join(setup: Setup) -> RankEnv:
    folder = Path(setup.folder)
    flight = FlightRecorder(folder / f"flight-{setup.rank}")
    flight.begin("start")
    # Stays open: faulthandler keeps the file as long as the signal is registered.
    stacks = (folder / f"stacks-{setup.rank}").open("w")
    # Not chained: what the signal does by default is to end the process.
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True, chain=False)
    # A number, not sys.stderr: a case may replace that, and this is written from a signal handler.
    faulthandler.enable(file=2)
    # Ranks die on purpose, and a core file of each would fill the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    # Ranks share the cores; and sums by several threads come in another order each time.
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # the probes record those that matter
    device = torch.device(DEVICES[setup.backend])
    if device.type == "cuda":
        device = torch.device("cuda", setup.rank)
        torch.cuda.set_device(device)
    dist.init_process_group(
        setup.backend,
        # A file needs no port, of which another pool might take the same. One for each generation:
        # keys of ranks that were killed would be taken for those of their successors.
        store=FileStore(str(folder / f"store-{setup.generation}"), setup.world_size),
        rank=setup.rank,
        world_size=setup.world_size,
        timeout=_NO_TIMEOUT,
        # NCCL connects now, not within the first case.
        device_id=device if device.type == "cuda" else None,
    )
    env = RankEnv(
        rank=setup.rank,
        world_size=setup.world_size,
        backend=setup.backend,
        device=device,
        flight=flight,
        folder=folder,
    )
    # A rank is ready when a collective works, not when it has said that it would.
    _seed_what_is_there()
    _gather(torch.tensor([setup.rank], dtype=torch.uint8, device=device), env)
    note_collectives(env)
    env.groups.keep()
    keep_named()
    flight.begin("ready")
    return env


# A case seeds several times. For devices that may still be initialised torch keeps the stack of
# each seeding, as text (``_lazy_call`` in torch/cuda/__init__.py), which takes a millisecond.
def _seed_what_is_there() -> None:
    """Has ``torch.manual_seed`` pass over kinds of devices of which this rank sees none."""
    kinds: tuple[Any, ...] = (torch.cuda, torch.xpu, torch.mtia)
    for kind in kinds:
        if hasattr(kind, "manual_seed_all") and not kind.is_available():
            kind.manual_seed_all = _no_device


def _no_device(seed: int) -> None:
    """There is nothing to seed."""


def _inject(name: str, env: RankEnv) -> None:
    module, _, function = name.partition(":")
    if not function:
        raise UsageError(f"injection {name!r}: give module:function")
    injection: Callable[[RankEnv], None] = getattr(importlib.import_module(module), function)
    injection(env)


_ALL_AFTER = 512
"""Cases after which what earlier ones left is looked at, too: it takes 0.2 s."""


def _serve(env: RankEnv, channel: socket.socket, run: _Runs) -> None:
    frames = Frames()
    answered = 0
    while True:
        # Empty when the controller has closed its end, or is gone.
        data = channel.recv(1 << 16)
        if not data:
            return
        for body in frames.feed(data):
            message = order(body)
            answer = Answer(number=message.number, report=_attempt(message, env, run))
            # Before the rest, so that the controller judges meanwhile.
            channel.sendall(_fit(answer, env))
            # The controller may read it at once: a rank that then dies did not die of the case.
            env.flight.stage("idle")
            answered += 1
            _collect(everything=answered % _ALL_AFTER == 0)


def _collect(*, everything: bool) -> None:
    """Frees what a case has left; what stays is not looked at again, unless ``everything`` is.

    After the answer, so that nobody waits for it.
    """
    if everything:
        gc.unfreeze()
    # Units, handles and hooks refer to each other in circles, and keep storages until then.
    gc.collect()
    # Caches, torch's above all, grow with each case: soon it takes ten times as long to look at
    # them as at what a case has left.
    gc.freeze()


def _attempt(message: Order, env: RankEnv, run: _Runs) -> RankReport:
    name = ""
    try:
        # Numbers collectives from 1 again, which the ranks are compared by.
        env.flight.begin("broadcast")
        name, case = _receive(message if isinstance(message, Run) else None, env)
        # Here, when the next case is there: every rank has
        # answered the last one, and none uses its groups.
        if env.groups.next_case(env.flight.stage):
            forget_meshes()
        report = run(case, env)
        if not isinstance(report, RankReport):
            raise ContractError(f"run_case returned {type(report).__name__}, not a RankReport")
    except BaseException as error:
        # SystemExit and KeyboardInterrupt too: nothing that a case raises ends the rank.
        # This rank may have raised before it asked for a group that another rank has by now.
        env.groups.spoil()
        report = RankReport(rank=env.rank, digest=name, raised=describe(error, env.flight.now))
    return _with_usage(report)


def _receive(given: Run | None, env: RankEnv) -> tuple[str, CaseSpec]:
    """The digest and the case that rank 0 was given, through the process group.

    :class:`ContractError` where a rank decodes another case than the digest says. So all
    ranks compare with one, which needs no second collective.
    """
    sent = _broadcast(None if given is None else given.digest.encode() + b"\n" + given.case, env)
    name, _, data = sent.decode().partition("\n")
    case = decode(data.encode())
    mine = digest(case)
    if mine != name:
        raise ContractError(f"case {name!r} was sent, but rank {env.rank} decoded {mine!r}")
    return mine, case


def _broadcast(data: bytes | None, env: RankEnv) -> bytes:
    """The bytes that rank 0 has; mostly one collective of fixed size."""
    room = _BUFFER - _LENGTH_BYTES
    # Of one size, so that no rank needs to be told the length first. Seeds take 0.6 to 1.6 kB.
    buffer = torch.zeros(_BUFFER, dtype=torch.uint8)
    if data is not None:
        head = len(data).to_bytes(_LENGTH_BYTES, "little") + data[:room]
        buffer[: len(head)] = _tensor(head)
    seen = _send(buffer, env)
    length = int.from_bytes(seen[:_LENGTH_BYTES], "little")
    if length <= room:
        return seen[_LENGTH_BYTES : _LENGTH_BYTES + length]
    rest = torch.zeros(length - room, dtype=torch.uint8)
    if data is not None:
        rest[:] = _tensor(data[room:])
    return seen[_LENGTH_BYTES:] + _send(rest, env)


def _send(buffer: Tensor, env: RankEnv) -> bytes:
    moved = buffer.to(env.device)
    _group().broadcast(moved, 0).wait()
    # With NCCL wait() only queues behind the collective; the copy to the CPU waits for the device.
    return moved.cpu().numpy().tobytes()


def _tensor(data: bytes) -> Tensor:
    # A bytearray: torch warns of buffers that cannot be written to, as bytes.
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _gather(mine: Tensor, env: RankEnv) -> list[list[int]]:
    rows = [torch.empty_like(mine) for _ in range(env.world_size)]
    _group().allgather([rows], [mine]).wait()
    gathered: list[list[int]] = torch.stack(rows).cpu().tolist()
    return gathered


def _group() -> ProcessGroup:
    # Straight to the group: the fuzzer's own collectives belong in no recorder and in no count.
    return distributed_c10d._get_default_group()


def _with_usage(report: RankReport) -> RankReport:
    return msgspec.structs.replace(
        report,
        rss_bytes=int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize(),
        threads=sum(1 for _ in Path("/proc/self/task").iterdir()),
        fds=sum(1 for _ in Path("/proc/self/fd").iterdir()),
    )


def _fit(answer: Answer, env: RankEnv) -> bytes:
    try:
        # A report that is too large, or holds what cannot be encoded, must not end the rank.
        return frame(answer)
    except Exception as error:
        reason = describe(error, "report")
        report = RankReport(rank=env.rank, digest=answer.report.digest, raised=reason)
        return frame(Answer(number=answer.number, report=report))
