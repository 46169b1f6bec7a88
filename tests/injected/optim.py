"""Faults of optimizers and their state dicts, injected where torch itself would have them."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint import state_dict as dcp
from torch.distributed.fsdp._common_utils import _is_fsdp_flattened
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


def saves_another_option(_: RankEnv) -> None:
    """An option comes into the state dict with half its value."""
    get = dcp._get_optim_state_dict

    def halved(*args: Any, **options: Any) -> Any:
        found: Any = get(*args, **options)
        for group in found["param_groups"]:
            group["eps"] /= 2
        return found

    dcp._get_optim_state_dict = halved


def loads_one_step_more(_: RankEnv) -> None:
    """An optimizer goes on as if it had made another step."""
    load = dcp._load_optim_state_dict

    def more(*args: Any, **options: Any) -> Any:
        load(*args, **options)
        for optimizer in args[1]:
            for state in optimizer.state.values():
                state["step"] += 1

    dcp._load_optim_state_dict = more


def forgets_weight_decay(_: RankEnv) -> None:
    """An optimizer of what FSDP shards steps as if no weight were to decay."""
    step: Any = torch.optim.SGD.step

    def without(self: torch.optim.SGD, *args: Any) -> Any:
        for group in self.param_groups:
            if any(isinstance(p, DTensor) or _is_fsdp_flattened(p) for p in group["params"]):
                group["weight_decay"] = 0.0
        return step(self, *args)

    torch.optim.SGD.step = without  # type: ignore[method-assign,assignment]
