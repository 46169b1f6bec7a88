"""Bytes that fsdp2 holds on a rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._common_utils import clean_tensor_name

from fsdpfuzz.steps.shards import storage_bytes


def fsdp_params(model: nn.Module) -> Iterator[Any]:
    """FSDP's own records of the parameters that units manage."""
    # Modules of one unit have one state.
    for state in {u._get_fsdp_state(): u for u in model.modules() if isinstance(u, FSDPModule)}:
        # Some versions of torch let a unit have several groups.
        groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
        for group in filter(None, groups):
            yield from group.fsdp_params


def held_bytes(model: nn.Module) -> int:
    """Storages of the shards, of parameters that are whole, and of what no unit manages."""
    tensors: list[Any] = list(model.parameters())
    for held in fsdp_params(model):
        # What was freed stays in the list, with a storage of size 0.
        tensors += [held.sharded_param, *held.all_gather_outputs]
        tensors.append(getattr(held, "_unsharded_param", None))
    return storage_bytes(tensors)


# ``FSDPParam.free_unsharded_param`` in fsdp/_fully_shard/_fsdp_param.py frees what was gathered.
def unfreed(model: nn.Module) -> list[str]:
    """Parameters that are sharded, over all ranks or fewer, while what was gathered is kept."""
    names = {module: name for name, module in model.named_modules()}
    found = []
    for held in fsdp_params(model):
        info = held._module_info
        # What was gathered, and what an all-gather extension has made of it.
        tensors = (*held.all_gather_outputs, *held._unsharded_inner_tensors)
        kept = any(tensor.untyped_storage().nbytes() for tensor in tensors)
        if kept and held.sharded_state.name != "UNSHARDED":
            found.append(clean_tensor_name(f"{names[info.module]}.{info.param_name}").lstrip("."))
    return found


# Under mixed precision a gradient moves from the parameter to ``unsharded_accumulated_grad``, in
# reduce_dtype (``FSDPParam.to_accumulated_grad_if_needed``). One that is cut over a tensor-parallel
# group can be held as two DTensors of one local tensor.
def gradient_bytes(model: nn.Module) -> int:
    """Bytes of gradients on this rank: reduced ones, and those that wait for it.

    In newer torch one that waits is both the parameter's and what has accumulated.
    """
    holders = set(model.parameters())
    for held in fsdp_params(model):
        # A unit that is whole registers other parameters than those that the optimizer holds.
        holders |= {held.sharded_param, getattr(held, "_unsharded_param", held.sharded_param)}
    grads = {held.unsharded_accumulated_grad for held in fsdp_params(model)}
    grads |= {p.grad for p in holders}
    local = {getattr(grad, "_local_tensor", grad) for grad in grads if grad is not None}
    return sum(grad.numel() * grad.element_size() for grad in local)
