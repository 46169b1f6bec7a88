"""The environment of the process that ranks are forked from, and so theirs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""What says which GPUs a process sees; empty for none. Read when CUDA, or ROCm, initialises."""
_DEVICE = re.compile(r"nvidia\d+|kfd")


def rank_environment(
    given: Mapping[str, str], *, gpus: bool = True, devices: Path = Path("/dev")
) -> dict[str, str]:
    """``given``, and what this design needs.

    Ranks that compute on the CPU see no GPU: parts of FSDP, and of torch, take one wherever
    there is one, whatever device they were given.
    """
    changed = dict(given)
    changed.update(
        # Before torch is loaded: OpenMP and MKL read these once. Ranks share the cores, and sums by
        # several threads come in another order each time.
        OMP_NUM_THREADS="1",
        MKL_NUM_THREADS="1",
        OPENBLAS_NUM_THREADS="1",
        # A rank that is killed takes what it has buffered with it.
        PYTHONUNBUFFERED="1",
        # The controller alone decides that a collective hangs, and ends the ranks.
        TORCH_NCCL_ASYNC_ERROR_HANDLING="0",
        TORCH_NCCL_ENABLE_MONITORING="0",
        TORCH_NCCL_DUMP_ON_TIMEOUT="0",
    )
    # Unless somebody wants to see more; what a rank prints is kept to its last bytes.
    changed.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if "GLOO_SOCKET_IFNAME" not in changed and Path("/sys/class/net/lo").exists():
        # The host's name need not resolve, and nothing listens beyond this machine.
        changed["GLOO_SOCKET_IFNAME"] = "lo"
    if not gpus and may_see_gpus(given, devices):
        # An empty list, not the variable left out, which means all GPUs.
        changed.update(dict.fromkeys(VISIBLE, ""))
    return changed


def may_see_gpus(given: Mapping[str, str], devices: Path = Path("/dev")) -> bool:
    """Whether a process with this environment could find a GPU; a guess on the safe side."""
    told = [given[name] for name in VISIBLE if name in given]
    # Empty: somebody has hidden the GPUs on purpose.
    if any(not value.strip() for value in told):
        return False
    return bool(told) or any(_DEVICE.fullmatch(path.name) for path in devices.iterdir())
