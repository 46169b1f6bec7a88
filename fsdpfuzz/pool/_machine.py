"""What this machine offers, found out in a process of its own."""

from __future__ import annotations

import signal
import socket
import tempfile

import msgspec

from fsdpfuzz.errors import MachineError, PoolError, UsageError
from fsdpfuzz.forkserver import ForkServer, Interpreter, ServerLostError
from fsdpfuzz.wire import Backend, Machine

_PROBE = "fsdpfuzz.ranks._machine_probe:main"
_PROBE_SECONDS = 120.0
_END_SECONDS = 10.0
_MAX_ANSWER = 1 << 20

# Once in a process: it takes a fork that initialises CUDA.
_machines: dict[str, Machine] = {}


def probe_machine(python: Interpreter | None = None) -> Machine:
    """What this machine offers to ranks on a Python, else on the controller's; asked once.

    Raises :class:`MachineError` if torch cannot be imported.
    """
    name = "" if python is None else python.executable
    if name not in _machines:
        _machines[name] = _probe(python)
    return _machines[name]


def choose_backend(machine: Machine, wanted: str = "auto", world_size: int = 2) -> Backend:
    """The backend to use for ``world_size`` ranks.

    ``wanted`` is ``auto``, ``gloo`` or ``nccl``. Raises :class:`MachineError` with what is
    missing.
    """
    if wanted not in ("auto", "gloo", "nccl"):
        raise UsageError(f"backend {wanted!r}: give auto, gloo or nccl")
    if not (machine.features.get("fsdp1") or machine.features.get("fsdp2")):
        raise MachineError(f"torch {machine.torch} has no FSDP: install torch 2.7 or later")
    if wanted == "nccl" or (wanted == "auto" and machine.default_backend == "nccl"):
        missing = _missing_for_nccl(machine, world_size)
        if not missing:
            return "nccl"
        if wanted == "nccl":
            raise MachineError(f"nccl cannot run {world_size} ranks here: {missing}")
    if not machine.gloo:
        raise MachineError(f"torch {machine.torch} was built without gloo; install one with it")
    return "gloo"


def _missing_for_nccl(machine: Machine, world_size: int) -> str:
    if not machine.nccl:
        return f"torch {machine.torch} was built without NCCL; install a CUDA build, or use gloo"
    if machine.gpus < world_size:
        return (
            f"it needs a GPU for each, and torch sees {machine.gpus}; "
            "use gloo or fewer ranks, and look at CUDA_VISIBLE_DEVICES"
        )
    return ""


def _probe(python: Interpreter | None) -> Machine:
    server = ForkServer.get(python=python)
    ours, theirs = socket.socketpair()
    # A file, not a pipe that somebody would have to empty meanwhile.
    with ours, tempfile.TemporaryFile() as output:
        try:
            # Closed before anything is read: the end of the other
            # process has to be the end of the channel.
            with theirs:
                (pid,) = server.fork(_PROBE, [None], [theirs.fileno(), output.fileno()])
            answer = read_to_end(ours)
            if server.await_end(pid, _END_SECONDS) is None:
                server.signal([pid], signal.SIGKILL)
            return msgspec.json.decode(answer, type=Machine)
        except ServerLostError as error:
            raise PoolError(f"the process that probes the machine was lost: {error}") from None
        except (TimeoutError, msgspec.MsgspecError) as error:
            output.seek(0)
            said = output.read(4000).decode(errors="replace").strip()
            raise MachineError(
                f"torch could not say what this machine offers: {error}\n{said}".strip()
            ) from None


def read_to_end(channel: socket.socket) -> bytes:
    """All that comes until the other end is closed; :class:`TimeoutError` if nothing does."""
    channel.settimeout(_PROBE_SECONDS)
    answer = b""
    while (data := channel.recv(1 << 16)) and len(answer) < _MAX_ANSWER:
        answer += data
    return answer
