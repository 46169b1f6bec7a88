"""What only a script does: it starts its ranks, joins them, and says what it saw.

Quoted like the steps; nothing here is called.
"""

from __future__ import annotations

import faulthandler
import os
import time

import torch
import torch.distributed as dist
from torch.distributed import run


def start(ranks: int) -> None:
    """Starts the ranks, unless this process is one of them."""
    if "RANK" not in os.environ:
        raise SystemExit(run.main(["--standalone", "--nproc-per-node", str(ranks), __file__]))


def on_cpu() -> None:
    """Joins the process group; torchrun has set one thread for each process."""
    dist.init_process_group("gloo")


def on_gpus(rank: int) -> torch.device:
    """Joins the process group."""
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def own_rank() -> int:
    """The rank of this process."""
    return int(os.environ["RANK"])


def verdict(wrong: list[str], rank: int) -> None:
    """Says what is wrong first of all, and ends."""
    print(
        f"rank {rank}:",
        "reproduced: " + "; ".join(wrong) if wrong else "not reproduced",
        flush=True,
    )
    dist.barrier()
    os._exit(1 if wrong else 0)  # the backend's threads can abort an ordinary exit


def passed(rank: int) -> None:
    """Says that nothing was wrong, once all ranks are through, and ends."""
    dist.barrier()
    print(f"rank {rank}: not reproduced", flush=True)
    os._exit(0)  # the backend's threads can abort an ordinary exit


def raised(rank: int, error: BaseException) -> None:
    """Says what was raised, and ends: the other ranks may wait for this one."""
    print(f"rank {rank}: reproduced: {type(error).__name__}: {error}", flush=True)
    os._exit(1)


def is_about(error: BaseException, text: str) -> bool:
    """Whether an exception has a text in its message."""
    return text in str(error)


def watch(seconds: float) -> None:
    """Takes it for a hang when it lasts longer, and shows where."""
    faulthandler.dump_traceback_later(seconds, exit=True)


def told_of_order(rank: int, text: str, start: str) -> None:
    """Says whether the error on the order of execution came, and ends."""
    right = text.startswith(start)
    told = "not reproduced" if right else f"reproduced: {text}"
    print(f"rank {rank}: {told}", flush=True)
    time.sleep(1)  # what this rank has sent may be on its way still
    os._exit(0 if right else 1)


def losses(rank: int, kept: list[torch.Tensor]) -> None:
    """Prints all losses, exactly."""
    print("loss", rank, *(float(loss).hex() for loss in kept))
    dist.destroy_process_group()
