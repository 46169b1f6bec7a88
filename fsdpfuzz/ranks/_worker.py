"""The life of a rank: join, then receive, broadcast, run and answer until the channel closes.

The forkserver imports this module, and with it torch and FSDP, once; each rank is a fork.
"""

from __future__ import annotations

import faulthandler
import gc
import hashlib
import importlib
import os
import signal
import socket
import traceback
import warnings
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
import torch.distributed.fsdp
from torch._C._distributed_c10d import FileStore

from fsdpfuzz.errors import ContractError
from fsdpfuzz.observations import MAX_MESSAGE, MAX_TRACEBACK, Raised, RankReport
from fsdpfuzz.ranks._board import Board
from fsdpfuzz.ranks._collectives import note_collectives
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.ranks._protocol import (
    Done,
    Failed,
    RankConfig,
    Ready,
    decode_command,
    encode,
    frame,
)
from fsdpfuzz.ranks._train import run_case
from fsdpfuzz.spec import decode

_INLINE_BYTES = 4096
"""Cases up to this size travel with their length in one broadcast."""
_DOCUMENTED = (ValueError, NotImplementedError)
_DIGEST_BYTES = 8


def main(config: RankConfig, channel: socket.socket) -> int:
    """Runs the rank until the channel closes; the exit code of its process."""
    try:
        env = _join(config)
        _plant(config.plant, env)
    except BaseException as error:
        _send(channel, encode(Failed(rank=config.rank, error=_text(error))))
        return 1
    gc.collect()
    gc.freeze()  # what is here now never dies; collections between cases skip it
    _send(channel, encode(Ready(rank=config.rank, torch=str(torch.__version__))))
    while (command := _receive(channel)) is not None:
        report = _run(decode_command(command).case, env)
        _send(channel, encode(Done(report=report)))
        gc.collect()
    return 0


def _join(config: RankConfig) -> RankEnv:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # a subject's warnings are recorded by the probes
    stacks = Path(config.stacks).open("w")  # noqa: SIM115 (stays open for the signal handler)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True, chain=False)
    if config.backend == "nccl":
        device = torch.device("cuda", config.rank)
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    board = Board(Path(config.board))
    board.stage("join")
    env = RankEnv(
        rank=config.rank,
        world_size=config.world_size,
        device=device,
        backend=config.backend,
        board=board,
    )
    dist.init_process_group(
        config.backend,
        store=FileStore(config.store, config.world_size),
        rank=config.rank,
        world_size=config.world_size,
        device_id=device if device.type == "cuda" else None,
    )
    first = torch.ones(1, device=device)
    dist.all_reduce(first)
    if first.item() != config.world_size:
        raise ContractError(f"the first all-reduce gave {first.item()}")
    note_collectives(env)
    return env


def _plant(plant: str | None, env: RankEnv) -> None:
    if plant is not None:
        module, _, function = plant.partition(":")
        getattr(importlib.import_module(module), function)(env)


def _run(data: bytes, env: RankEnv) -> RankReport:
    env.board.clear()
    env.board.stage("receive")
    digest = ""
    try:
        data = _broadcast(data, env)
        digest = _agreed_digest(data, env)
        report = run_case(decode(data), env)
    except BaseException as error:  # a rank reports whatever happens in it
        report = RankReport(rank=env.rank, digest=digest, raised=_raised(error, env))
    return msgspec.structs.replace(report, **_resources())


def _resources() -> dict[str, int]:
    """What this process holds, from /proc; nothing where there is no /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return {
            "rss_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
            "threads": sum(1 for _ in Path("/proc/self/task").iterdir()),
            "fds": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        }
    except OSError:
        return {}


def _broadcast(data: bytes, env: RankEnv) -> bytes:
    """Rank 0's bytes on every rank, through the process group."""
    buffer = torch.zeros(8 + _INLINE_BYTES, dtype=torch.uint8)
    if env.rank == 0:
        head = len(data).to_bytes(8, "big") + data[:_INLINE_BYTES]
        buffer[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
    buffer = buffer.to(env.device)
    dist.broadcast(buffer, src=0)
    received = bytes(buffer.cpu().tolist())
    size = int.from_bytes(received[:8], "big")
    if size <= _INLINE_BYTES:
        return received[8 : 8 + size]
    rest = torch.zeros(size - _INLINE_BYTES, dtype=torch.uint8)
    if env.rank == 0:
        rest = torch.frombuffer(bytearray(data[_INLINE_BYTES:]), dtype=torch.uint8)
    rest = rest.to(env.device)
    dist.broadcast(rest, src=0)
    return received[8:] + bytes(rest.cpu().tolist())


def _agreed_digest(data: bytes, env: RankEnv) -> str:
    """The digest of the case, after all ranks have shown that they hold the same bytes."""
    own = hashlib.sha256(data).digest()[:_DIGEST_BYTES]
    mine = torch.tensor(list(own), dtype=torch.uint8, device=env.device)
    every = [torch.empty_like(mine) for _ in range(env.world_size)]
    dist.all_gather(every, mine)
    rows = torch.stack(every).cpu().tolist()
    if any(bytes(row) != own for row in rows):
        raise ContractError(f"ranks hold different cases: {[bytes(row).hex() for row in rows]}")
    return own.hex()


def _raised(error: BaseException, env: RankEnv) -> Raised:
    return Raised(
        type=type(error).__name__,
        message=_text(error),
        stage=env.board.current_stage(),
        frame=_torch_frame(error),
        documented=type(error) in _DOCUMENTED,
        traceback=_traceback(error),
    )


def _text(error: BaseException) -> str:
    try:
        return str(error)[:MAX_MESSAGE]
    except BaseException as second:
        return f"<its text cannot be had: {type(second).__name__}>"


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))[-MAX_TRACEBACK:]
    except BaseException:
        return ""


def _torch_frame(error: BaseException) -> str:
    """The innermost frame inside torch, without its line: ``torch/a/b.py:function``."""
    found = ""
    for entry, _ in traceback.walk_tb(error.__traceback__):
        name = entry.f_code.co_filename
        _, inside, rest = name.rpartition(f"{os.sep}torch{os.sep}")
        if inside:
            found = f"torch/{rest.replace(os.sep, '/')}:{entry.f_code.co_name}"
    return found


def _send(channel: socket.socket, payload: bytes) -> None:
    channel.sendall(frame(payload))


def _receive(channel: socket.socket) -> bytes | None:
    """One frame, or None when the controller has gone."""
    head = _exactly(channel, 4)
    return None if head is None else _exactly(channel, int.from_bytes(head, "big"))


def _exactly(channel: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        part = channel.recv(min(size - len(data), 1 << 20))
        if not part:
            return None
        data += part
    return bytes(data)
