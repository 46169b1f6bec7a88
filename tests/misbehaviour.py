"""Ranks that misbehave: injected in place of `run_case`, chosen by the case's seed.

Seed 0 is a quick, clean case. Importing this module does not import torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Step,
    digest,
)
from fsdpfuzz.errors import UsageError
from fsdpfuzz.observations import RankReport, Subject
from fsdpfuzz.wire import Recording, read_recording

if TYPE_CHECKING:
    from fsdpfuzz.ranks._env import RankEnv

GIGABYTE = 1 << 30


def quick(fault: str = "", *, world_size: int = 2) -> CaseSpec:
    """A case on which rank 1 does ``fault``; a clean one without."""
    return CaseSpec(
        world_size=world_size,
        seed=NUMBERS[fault] if fault else 0,
        model=Linear(out=2),
        inputs=Dense(width=3),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
        program=(Forward(), Backward(), Step()),
    )


def install(env: RankEnv) -> None:
    """Injects all of it."""
    from fsdpfuzz.ranks import _worker

    _worker.run_case = misbehave


def install_mishearing(env: RankEnv) -> None:
    """Injects a rank 1 that decodes another case than it was sent."""
    from fsdpfuzz.ranks import _worker

    install(env)
    if env.rank == 1:
        setattr(_worker, "decode", lambda _: quick("all_raise"))  # noqa: B010 (not exported)


def install_idle(env: RankEnv) -> None:
    """Injects a `run_case` that does nothing at all."""
    from fsdpfuzz.ranks import _worker

    _worker.run_case = lambda case, env: RankReport(rank=env.rank, digest=digest(case))


def install_telling(env: RankEnv) -> None:
    """Injects a `run_case` that tells which GPUs the rank may see, and its device."""
    from fsdpfuzz.ranks import _worker

    told = (os.environ.get("CUDA_VISIBLE_DEVICES", "(not told)"), env.device.type)
    _worker.run_case = lambda case, env: RankReport(
        rank=env.rank, digest=digest(case), subjects=(Subject(warnings=told),)
    )


def refuse(env: RankEnv) -> None:
    """An injection that keeps the rank from getting ready."""
    raise UsageError("injected: not ready")


def refuse_once(env: RankEnv) -> None:
    """An injection that keeps rank 0 from getting ready the first time."""
    with contextlib.suppress(FileExistsError):
        if env.rank == 0:
            (env.folder / "refused").touch(exist_ok=False)
            os._exit(4)
    install(env)


def install_aliases(env: RankEnv) -> None:
    """Injects a `run_case` that calls collectives by all of their names."""
    from fsdpfuzz.ranks import _worker

    _worker.run_case = call_aliases


def call_aliases(case: CaseSpec, env: RankEnv) -> RankReport:
    """Collectives that call each other, and one on a list, once each."""
    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    env.collectives.clear()
    one, all_of_it = torch.ones(3), torch.empty(3 * env.world_size)
    dist.all_gather_into_tensor(all_of_it, one)
    distributed_c10d._all_gather_base(output_tensor=all_of_it, input_tensor=one)
    dist.reduce_scatter_tensor(one, all_of_it)
    dist.all_gather([torch.empty(3) for _ in range(env.world_size)], one)
    dist.barrier()
    calls = tuple(f"{call.name} {call.numel} {call.dtype}" for call in read(env).collectives)
    subject = Subject(collectives=dict(env.collectives), warnings=calls)
    return RankReport(rank=env.rank, digest=digest(case), subjects=(subject,))


def read(env: RankEnv) -> Recording:
    """What stands on the rank's own recorder."""
    return read_recording(env.folder / f"flight-{env.rank}")


def misbehave(case: CaseSpec, env: RankEnv) -> RankReport:
    """Stands in for training: what the seed says on rank 1, a collective on the others."""
    import torch
    import torch.distributed as dist

    env.collectives.clear()
    env.flight.stage("case:forward[0]")
    report = None
    if case.seed and (env.rank == 1 or NAMES[case.seed].startswith("all_")):
        report = FAULTS[NAMES[case.seed]](env)
    dist.all_reduce(torch.ones(3, device=env.device))
    subject = Subject(collectives=dict(env.collectives))
    return report or RankReport(rank=env.rank, digest=digest(case), subjects=(subject,))


class UnspeakableError(Exception):
    """Cannot be turned into text, nor pickled."""

    def __init__(self) -> None:
        super().__init__(lambda: None)

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    def __reduce__(self) -> NoReturn:
        raise TypeError("no pickle")


def sys_exit(env: RankEnv) -> None:
    sys.exit(3)


def os_exit(env: RankEnv) -> None:
    print("last words", flush=True)
    os._exit(7)


def os_exit_zero(env: RankEnv) -> None:
    os._exit(0)


def os_abort(env: RankEnv) -> None:
    os.abort()


def segmentation_fault(env: RankEnv) -> None:
    ctypes.string_at(0)


def sigkill(env: RankEnv) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sigstop(env: RankEnv) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def endless_python(env: RankEnv) -> None:
    while True:
        pass


def endless_c(env: RankEnv) -> None:
    """Never lets go of the interpreter's lock."""
    re.match("(a+)+$", "a" * 64 + "b")


def endless_deaf(env: RankEnv) -> None:
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    while True:
        time.sleep(1)


def a_gigabyte_of_output(env: RankEnv) -> None:
    block = b"x" * (1 << 20)
    written = 0
    while written < GIGABYTE:
        written += os.write(1, block)
    os.write(2, b"\nend of the gigabyte\n")


def a_gigabyte_then_exit(env: RankEnv) -> None:
    a_gigabyte_of_output(env)
    os._exit(9)


def unspeakable(env: RankEnv) -> None:
    raise UnspeakableError


def long_message(env: RankEnv) -> None:
    raise RuntimeError("\ud800" + "x" * (64 << 20))


def keyboard_interrupt(env: RankEnv) -> None:
    raise KeyboardInterrupt


def endless_recursion(env: RankEnv) -> None:
    endless_recursion(env)


def close_everything(env: RankEnv) -> None:
    os.closerange(0, 4096)
    while True:
        time.sleep(1)


def _channel() -> socket.socket:
    """The rank's own end of its channel; gloo's sockets are of another family."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found = socket.socket(fileno=os.dup(int(entry.name)))
            if found.family == socket.AF_UNIX:
                return found
            found.close()
    raise UsageError("no channel")


def garbage(env: RankEnv) -> None:
    _channel().sendall(b"\xff\xfe garbage " * 5000)


def half_a_frame(env: RankEnv) -> None:
    from fsdpfuzz.wire import Ready, frame

    _channel().sendall(frame(Ready(rank=1, torch="x"))[:-1])
    os._exit(0)


def unasked_message(env: RankEnv) -> None:
    from fsdpfuzz.wire import Ready, frame

    _channel().sendall(frame(Ready(rank=1, torch="x")))


def enormous_report(env: RankEnv) -> RankReport:
    return RankReport(rank=env.rank, digest="", reference_losses=(0.5,) * (4 << 20))


def report_of_another_case(env: RankEnv) -> RankReport:
    return RankReport(rank=env.rank, digest="0" * 16)


def no_report(env: RankEnv) -> RankReport:
    return "nonsense"  # type: ignore[return-value]


def kill_the_parent(env: RankEnv) -> None:
    os.kill(os.getppid(), signal.SIGKILL)


def stop_the_parent(env: RankEnv) -> None:
    os.kill(os.getppid(), signal.SIGSTOP)
    os._exit(5)


def leave_a_child_behind(env: RankEnv) -> None:
    if os.fork() == 0:
        while True:
            time.sleep(1)
    os._exit(6)


def another_collective(env: RankEnv) -> None:
    import torch
    import torch.distributed as dist

    # No other rank takes part, so it waits; nobody notices but the recorder.
    dist.broadcast(torch.ones(5, device=env.device), src=0)
    time.sleep(3600)


def all_refuse(env: RankEnv) -> None:
    env.flight.stage("case:wrap")
    raise ValueError("injected: refused")


def all_raise(env: RankEnv) -> None:
    raise RuntimeError("injected: raised")


def all_slow(env: RankEnv) -> None:
    time.sleep(0.8)


def all_hang(env: RankEnv) -> None:
    time.sleep(3600)


FAULTS: dict[str, Callable[[RankEnv], RankReport | None]] = {
    fault.__name__: fault
    for fault in (
        sys_exit,
        os_exit,
        os_exit_zero,
        os_abort,
        segmentation_fault,
        sigkill,
        sigstop,
        endless_python,
        endless_c,
        endless_deaf,
        a_gigabyte_of_output,
        a_gigabyte_then_exit,
        unspeakable,
        long_message,
        keyboard_interrupt,
        endless_recursion,
        close_everything,
        garbage,
        half_a_frame,
        unasked_message,
        enormous_report,
        report_of_another_case,
        no_report,
        kill_the_parent,
        stop_the_parent,
        leave_a_child_behind,
        another_collective,
        all_refuse,
        all_raise,
        all_slow,
        all_hang,
    )
}
NUMBERS = {name: number for number, name in enumerate(FAULTS, start=1)}
NAMES = {number: name for name, number in NUMBERS.items()}
