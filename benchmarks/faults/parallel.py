"""Faults that show only where fully_shard is given parameters that lie on a mesh already."""

from __future__ import annotations

from benchmarks.faults._edit import Edit, fault
from benchmarks.faults.models import PARAM

_SPEC = PARAM + "_init_sharding_spec_tp"
_SPLIT = "split_factor = self._unsharded_dtensor_spec.num_shards_map[shard_dim]"

FAULTS = (
    fault(
        "fsdp2_tensor_parallel_rows_in_other_order",
        "with tensor parallelism the parts of a parameter are put together in another order: what "
        "is saved is another model",
        "tensor parallelism",
        "fsdp2",
        Edit(_SPEC, _SPLIT, "split_factor = 1"),
        needs="world size 4",
    ),
    fault(
        "fsdp2_tensor_parallel_strided_without_need",
        "a parameter of which tensor parallelism cuts the columns is put together as if it cut the "
        "rows",
        "tensor parallelism",
        "fsdp2",
        Edit(_SPEC, _SPLIT, "split_factor = max(self._unsharded_dtensor_spec.num_shards_map)"),
        needs="world size 4",
    ),
    fault(
        "fsdp2_tensor_parallel_axes_swapped",
        "with tensor parallelism the parameters' mesh has its axes in the other order",
        "tensor parallelism",
        "fsdp2",
        Edit(
            _SPEC,
            "DeviceMesh._concatenate([dp_mesh, tp_mesh])",
            "DeviceMesh._concatenate([tp_mesh, dp_mesh])",
        ),
        silent=False,
    ),
    fault(
        "fsdp2_sequence_parallel_sums_left_out",
        "the gradient of a norm that each rank gives other rows is left as each rank has it: every "
        "rank trains another norm",
        "tensor parallelism",
        "fsdp2",
        Edit(
            PARAM + "_get_grad_inner_tensor",
            "grad = grad.redistribute(placements=placements)",
            "grad = grad if any(map(Placement.is_partial, grad.placements)) else "
            "grad.redistribute(placements=placements)",
        ),
    ),
    fault(
        "fsdp2_named_axes_reduced_twice",
        "where fully_shard is told the axes of a mesh by name, gradients are summed before they "
        "are reduced: they are too large by the number of ranks",
        "named mesh",
        "fsdp2",
        Edit(
            PARAM + "_get_grad_inner_tensor",
            "grad.placements[i] if i in self._dp_dim_indices else placements[i]",
            "placements[i]",
        ),
    ),
    fault(
        "fsdp2_named_axes_swapped",
        "where fully_shard is told the axes of a mesh by name, it shards over the replicas and "
        "replicates over the shards: what is saved is another model",
        "named mesh",
        "fsdp2",
        Edit(
            "torch.distributed.fsdp._fully_shard._fsdp_init:_get_mesh_info_from_named_dims",
            "DeviceMesh._concatenate([replicate_mesh, shard_mesh])",
            "DeviceMesh._concatenate([shard_mesh, replicate_mesh])",
        ),
        needs="world size 4",
    ),
    fault(
        "fsdp2_named_axes_flattened_in_part",
        "of two axes of shards that fully_shard is told it reduces over the first one alone",
        "named mesh",
        "fsdp2",
        Edit(
            "torch.distributed.fsdp._fully_shard._fsdp_init:_get_mesh_info_from_named_dims",
            'return mesh[names]._flatten("_".join(names))',
            "return mesh[names[0]]",
        ),
        needs="world size 4",
    ),
)
