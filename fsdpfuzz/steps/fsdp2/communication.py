"""How units of fsdp2 communicate, where the user has a say in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

from fsdpfuzz.steps.lag import CYCLES, linger


# Full of numbers, so that what is read before it is written shows.
class OwnAllGather(AllGather):
    """Gathers as FSDP2 does, into memory of its own."""

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """What is gathered lies in it."""
        return torch.full(tuple(size), 255, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        """From all ranks of the group."""
        linger(input_tensor.device)
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)


class OwnReduceScatter(ReduceScatter):
    """Reduces as FSDP2 does, from memory of its own."""

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """What is reduced lies in it, and so does what comes of that."""
        return torch.full(tuple(size), 255, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Over all ranks of the group."""
        linger(input_tensor.device)
        return dist.reduce_scatter_tensor(output_tensor, input_tensor, op, group, async_op)


def halving(device: torch.device) -> Callable[[Tensor], Any]:
    """A hook that halves gradients once they are reduced, and takes its time on a GPU."""
    # An expression, in which `linger` cannot stand: it falls away from scripts for a CPU.
    return lambda reduced: (
        (torch.cuda._sleep(CYCLES) if device.type == "cuda" else None) or reduced.mul_(0.5)
    )
