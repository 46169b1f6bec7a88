"""A fault of optimizer state dicts, planted where torch itself would have it."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint import state_dict as dcp
from torch.distributed.tensor import DTensor

from fsdpfuzz.ranks._env import RankEnv


def fsdp2_momenta_of_one_rank(_: RankEnv) -> None:
    """Of each momentum that is sharded only rank 0's part is saved."""
    get = dcp._get_optim_state_dict

    def of_rank_0(*args: Any, **options: Any) -> Any:
        found: Any = get(*args, **options)
        for entries in found.get("state", {}).values():
            for name, value in entries.items():
                if isinstance(value, DTensor) and value.device_mesh.get_rank() > 0:
                    entries[name] = torch.zeros_like(value)
        return found

    dcp._get_optim_state_dict = of_rank_0
