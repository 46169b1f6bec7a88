"""Bytes that fsdp1 holds on a rank."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from fsdpfuzz.steps.shards import storage_bytes


# By storage, as FSDP frees a storage and keeps its tensor (``_free_storage`` in
# torch/distributed/utils.py). Which of these there are depends on strategy and precision: see
# ``FlatParamHandle.init_flat_param_attributes``.
def held_bytes(model: nn.Module) -> int:
    """Storages of the flat parameters, whole or sharded, and of what no unit manages."""
    tensors: list[Any] = list(model.parameters())
    # Where a flat parameter keeps storage; what was freed has size 0.
    names = ("_local_shard", "_full_param_padded", "_full_prec_full_param_padded", "_mp_shard")
    for unit in FSDP.fsdp_modules(model):
        if unit._handle is not None:
            flat = unit._handle.flat_param
            tensors += [flat, *(getattr(flat, name, None) for name in names)]
    return storage_bytes(tensors)
