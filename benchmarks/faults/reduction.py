"""Faults of the gradients' reduction: scale, replicas, deferred all-reduce, both APIs."""

from __future__ import annotations

from benchmarks.faults._edit import Edit, fault

COLLECTIVES = "torch.distributed.fsdp._fully_shard._fsdp_collectives:"
FACTORS = COLLECTIVES + "_get_gradient_divide_factors"
GROUP2 = "torch.distributed.fsdp._fully_shard._fsdp_param_group:RegisterPostBackwardFunction."
INIT2 = "torch.distributed.fsdp._fully_shard._fsdp_init:"
RUNTIME = "torch.distributed.fsdp._runtime_utils:"
INIT1 = "torch.distributed.fsdp._init_utils:"
DIVIDE_AFTER = "_div_if_needed(new_sharded_grad, state._gradient_postdivide_factor)"

FAULTS = (
    fault(
        "fsdp2_reduces_at_the_end",
        "all units wait for the end of backward with their gradients, and stay whole until then",
        "fsdp2 runtime",
        "fsdp2",
        Edit(GROUP2 + "backward", "ctx.param_group.post_backward()", "None"),
    ),
    fault(
        "fsdp2_idle_rank_keeps_nothing",
        "a rank whose own gradients are exact zeros takes no part of the others'",
        "reduction scale",
        "fsdp2",
        Edit(
            COLLECTIVES + "foreach_reduce",
            "_div_if_needed(reduce_output, postdivide_factor)",
            "(reduce_scatter_input.any() or reduce_output.zero_(), "
            "_div_if_needed(reduce_output, postdivide_factor))",
        ),
    ),
    fault(
        "fsdp1_idle_rank_keeps_nothing",
        "a rank whose own gradients are exact zeros takes no part of the others'",
        "reduction scale",
        "fsdp1",
        Edit(
            RUNTIME + "_reduce_grad",
            DIVIDE_AFTER,
            f"(padded_unsharded_grad.any() or new_sharded_grad.zero_(), {DIVIDE_AFTER})",
            which=2,
            among=2,
        ),
    ),
    fault(
        "fsdp2_summed_not_averaged",
        "gradients are the number of ranks times too large",
        "reduction scale",
        "fsdp2",
        Edit(
            FACTORS,
            "return (None, None, ReduceOp.AVG, ReduceOp.AVG)",
            "return (None, None, ReduceOp.SUM, ReduceOp.SUM)",
        ),
    ),
    fault(
        "fsdp2_half_not_divided_before",
        "gradients reduced in float16 are not divided before the reduction, and too large",
        "reduction scale",
        "fsdp2",
        Edit(
            COLLECTIVES + "foreach_reduce",
            "_div_if_needed(reduce_scatter_input, predivide_factor)",
            "None",
        ),
    ),
    fault(
        "fsdp2_half_not_divided_after",
        "gradients reduced in float16 over four ranks are not divided after the reduction",
        "reduction scale",
        "fsdp2",
        Edit(
            COLLECTIVES + "foreach_reduce",
            "_div_if_needed(reduce_output, postdivide_factor)",
            "None",
        ),
        needs="world size 4",
    ),
    fault(
        "fsdp2_divide_factor_of_one_shard",
        "a gradient divide factor has no effect where there is one shard only",
        "reduction scale",
        "fsdp2",
        Edit(
            COLLECTIVES + "foreach_reduce",
            "reduce_output.copy_(reduce_scatter_input / gradient_divide_factor)",
            "reduce_output.copy_(reduce_scatter_input)",
        ),
    ),
    fault(
        "fsdp2_replicas_summed",
        "HSDP adds up the gradients of its replicas and does not average them",
        "hsdp",
        "fsdp2",
        Edit(
            FACTORS,
            "return (None, None, ReduceOp.AVG, ReduceOp.AVG)",
            "return (None, None, ReduceOp.AVG, ReduceOp.SUM)",
        ),
    ),
    fault(
        "fsdp2_replicas_not_counted",
        "HSDP over one shard and several replicas does not divide gradients",
        "hsdp",
        "fsdp2",
        Edit(FACTORS, "data_parallel_size *= all_reduce_group.size()", "pass"),
    ),
    fault(
        "fsdp2_replicas_not_reduced",
        "HSDP's replicas never exchange gradients and drift apart",
        "hsdp",
        "fsdp2",
        Edit(
            COLLECTIVES + "foreach_reduce",
            "dist.all_reduce(reduce_output, group=all_reduce_group, op=all_reduce_op)",
            "None",
        ),
    ),
    fault(
        "fsdp2_replicated_not_reduced",
        "units of replicate never exchange gradients, and each rank trains them by itself",
        "replicate",
        "fsdp2",
        Edit(
            COLLECTIVES + "foreach_reduce",
            "dist.all_reduce(reduce_output, group=all_reduce_group, op=all_reduce_op)",
            "reduce_scatter_group is None or "
            "dist.all_reduce(reduce_output, group=all_reduce_group, op=all_reduce_op)",
        ),
    ),
    fault(
        "fsdp2_replicated_summed",
        "units of replicate add up the gradients of all ranks and do not average them",
        "replicate",
        "fsdp2",
        Edit(
            FACTORS,
            "return (None, None, ReduceOp.AVG, ReduceOp.AVG)",
            "return (None, None, ReduceOp.AVG, "
            "ReduceOp.AVG if reduce_scatter_group else ReduceOp.SUM)",
        ),
    ),
    fault(
        "fsdp2_replicated_reduced_twice",
        "units of replicate average their gradients once more than they need to",
        "replicate",
        "fsdp2",
        Edit(
            COLLECTIVES + "foreach_reduce",
            "dist.all_reduce(reduce_output, group=all_reduce_group, op=all_reduce_op)",
            "[dist.all_reduce(reduce_output, group=all_reduce_group, op=all_reduce_op) "
            "for _ in range(1 if reduce_scatter_group else 2)]",
        ),
        silent=False,
    ),
    fault(
        "fsdp2_axes_of_the_mesh_swapped",
        "HSDP shards over the replicas' axis and replicates over the shards' axis",
        "hsdp",
        "fsdp2",
        Edit(
            INIT2 + "_get_mesh_info",
            "HSDPMeshInfo(mesh, shard_mesh_dim=1, replicate_mesh_dim=0)",
            "HSDPMeshInfo(mesh, shard_mesh_dim=0, replicate_mesh_dim=1)",
        ),
        Edit(
            "torch.distributed.fsdp._fully_shard._fully_shard:fully_shard",
            "HSDPMeshInfo(mesh, shard_mesh_dim=1, replicate_mesh_dim=0)",
            "HSDPMeshInfo(mesh, shard_mesh_dim=0, replicate_mesh_dim=1)",
        ),
        silent=False,
    ),
    fault(
        "fsdp2_deferred_gradients_overwritten",
        "with the all-reduce deferred, each micro-batch replaces the gradients of the last",
        "deferred all-reduce",
        "fsdp2",
        Edit(
            COLLECTIVES + "foreach_reduce",
            "partial_reduce_output += reduce_output",
            "partial_reduce_output = reduce_output",
        ),
    ),
    fault(
        "fsdp2_deferred_gradients_dropped",
        "with the all-reduce deferred, only the last micro-batch counts",
        "deferred all-reduce",
        "fsdp2",
        Edit(COLLECTIVES + "foreach_reduce", "reduce_output += partial_reduce_output", "pass"),
    ),
    fault(
        "fsdp2_deferred_gradients_too_small",
        "with the all-reduce deferred, all micro-batches but the last count too little",
        "deferred all-reduce",
        "fsdp2",
        Edit(
            COLLECTIVES + "foreach_reduce",
            "partial_reduce_output = reduce_output",
            "partial_reduce_output = reduce_output / all_reduce_group.size()",
        ),
    ),
    fault(
        "fsdp1_not_divided_before",
        "gradients are too large by the part of the number of ranks that is divided first",
        "reduction scale",
        "fsdp1",
        Edit(
            RUNTIME + "_reduce_grad",
            "_div_if_needed(padded_unsharded_grad, state._gradient_predivide_factor)",
            "None",
        ),
    ),
    fault(
        "fsdp1_not_divided_after",
        "over four ranks gradients are too large by what is divided after the reduction",
        "reduction scale",
        "fsdp1",
        Edit(RUNTIME + "_reduce_grad", DIVIDE_AFTER, "None", which=2, among=2),
        needs="world size 4",
    ),
    fault(
        "fsdp1_replicas_not_reduced",
        "HYBRID_SHARD's replicas never exchange gradients and drift apart",
        "hsdp",
        "fsdp1",
        Edit(
            RUNTIME + "_reduce_grad",
            "dist.all_reduce(new_sharded_grad, group=state._inter_node_pg)",
            "None",
        ),
        needs="world size 4",
    ),
    fault(
        "fsdp1_replicas_not_divided_after",
        "HYBRID_SHARD over four ranks makes gradients too large",
        "hsdp",
        "fsdp1",
        Edit(RUNTIME + "_reduce_grad", DIVIDE_AFTER, "None", which=1, among=2),
        needs="world size 4",
    ),
    fault(
        "fsdp1_replicas_not_counted",
        "HYBRID_SHARD divides gradients by the number of shards alone",
        "hsdp",
        "fsdp1",
        Edit(
            INIT1 + "_init_process_group_state",
            "data_parallel_world_size *= state._inter_node_pg.size()",
            "pass",
        ),
        needs="world size 4",
    ),
    fault(
        "fsdp1_zero2_replicas_forgotten",
        "_HYBRID_SHARD_ZERO2 is reduced over the shards alone, as if it had no replicas",
        "hsdp",
        "fsdp1",
        Edit(
            RUNTIME + "_reduce_grad",
            "handle._sharding_strategy in (HandleShardingStrategy.HYBRID_SHARD, "
            "HandleShardingStrategy._HYBRID_SHARD_ZERO2)",
            "handle._sharding_strategy == HandleShardingStrategy.HYBRID_SHARD",
        ),
        needs="world size 4",
    ),
    fault(
        "fsdp1_no_shard_not_reduced",
        "NO_SHARD leaves each rank its own gradients",
        "reduction scale",
        "fsdp1",
        Edit(
            RUNTIME + "_reduce_grad_no_shard",
            "dist.all_reduce(flat_param.grad, group=state.process_group)",
            "None",
        ),
    ),
    fault(
        "fsdp1_no_shard_summed",
        "NO_SHARD makes gradients too large",
        "reduction scale",
        "fsdp1",
        Edit(
            RUNTIME + "_reduce_grad_no_shard",
            "_div_if_needed(flat_param.grad, state._gradient_predivide_factor)",
            "None",
        ),
    ),
    fault(
        "fsdp1_second_backward_overwrites",
        "a second backward before the step replaces the first one's gradients",
        "accumulation",
        "fsdp1",
        Edit(
            RUNTIME + "_accumulate_sharded_grad",
            "flat_param._saved_grad_shard += sharded_grad",
            "flat_param._saved_grad_shard = sharded_grad",
        ),
    ),
    fault(
        "fsdp1_reduces_in_low_precision",
        "reduce_dtype is ignored: gradients are reduced in param_dtype",
        "reduction dtype",
        "fsdp1",
        Edit(
            RUNTIME + "_post_backward_hook",
            "flat_param.grad.data = flat_param.grad.to(handle._reduce_dtype)",
            "pass",
        ),
    ),
    fault(
        "fsdp1_reduced_gradient_stays_low",
        "gradients reduced in low precision are not cast back to the parameters' dtype",
        "reduction dtype",
        "fsdp1",
        Edit(
            RUNTIME + "_cast_grad_to_param_dtype",
            "sharded_grad.data = sharded_grad.data.to(dtype=param.dtype)",
            "pass",
        ),
        silent=False,
    ),
    fault(
        "fsdp1_comm_hook_never_called",
        "gradients of sharded units are averaged as ever, whatever hook of the user's there is",
        "reduction scale",
        "fsdp1",
        Edit(RUNTIME + "_reduce_grad", "state._comm_hook is None", "True"),
    ),
    fault(
        "fsdp1_comm_hook_of_root_alone",
        "a hook of the user's reduces what the root manages, and nothing of the units in it",
        "reduction scale",
        "fsdp1",
        Edit(
            "torch.distributed.fsdp.fully_sharded_data_parallel:"
            "FullyShardedDataParallel.register_comm_hook",
            "traversal_utils._get_fsdp_states(self)",
            "[self]",
        ),
    ),
    fault(
        "fsdp1_optimizer_before_reduction",
        "the step begins while the last gradients are still being reduced",
        "fsdp1 runtime",
        "fsdp1",
        Edit(
            RUNTIME + "_post_backward_final_callback",
            "current_stream.wait_stream(root_state._post_backward_stream)",
            "None",
        ),
        needs="gpu",
    ),
)
