"""Faults of fsdp2's runtime: states, hooks, prefetch, resharding."""

from __future__ import annotations

from benchmarks.faults._edit import Edit, fault

STATE = "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState."
GROUP = "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup."
MODULE = "torch.distributed.fsdp._fully_shard._fully_shard:FSDPModule."
METHODS = "torch.distributed.fsdp._fully_shard._fully_shard:"
FUNCTIONS = "torch.distributed.fsdp._fully_shard._fsdp_state:"

FAULTS = (
    fault(
        "fsdp2_backward_callback_once",
        "from the second backward on, the root's gradients are not reduced any more",
        "fsdp2 runtime",
        "fsdp2",
        Edit(
            STATE + "_root_post_backward_final_callback",
            "self._state_ctx.post_backward_final_callback_queued = False",
            "pass",
        ),
    ),
    fault(
        "fsdp2_first_output_hooked",
        "a unit that returns several tensors crashes in backward if the loss uses the second",
        "fsdp2 runtime",
        "fsdp2",
        Edit(
            STATE + "_register_pre_backward_hook",
            "collect_grad_tensors(output)",
            "collect_grad_tensors(output)[:1]",
        ),
        Edit(
            STATE + "_register_pre_backward_hook",
            "for t in flat_outputs:\n"
            "    if torch.is_tensor(t) and t.requires_grad:\n"
            "        t.register_hook(self._pre_backward)",
            "for t in flat_outputs[:1]:\n"
            "    if torch.is_tensor(t) and t.requires_grad:\n"
            "        t.register_hook(self._pre_backward)",
        ),
        silent=False,
    ),
    fault(
        "fsdp2_backward_list_ignored",
        "a unit that is told what to prefetch in backward prefetches nothing",
        "prefetch",
        "fsdp2",
        Edit(STATE + "_pre_backward", "fsdp_state._fsdp_param_groups", "()"),
    ),
    fault(
        "fsdp2_second_backward_fails",
        "a second backward over a graph that was retained crashes",
        "prefetch",
        "fsdp2",
        Edit(
            GROUP + "_backward_prefetch",
            "if not self._post_forward_indices:\n    return",
            "pass",
        ),
        silent=False,
    ),
    fault(
        "fsdp2_reshard_by_hand_ignored",
        "a unit that the user reshards stays whole",
        "resharding",
        "fsdp2",
        Edit(MODULE + "reshard", "fsdp_param_group.reshard()", "None"),
    ),
    fault(
        "fsdp2_reshard_set_for_one_alone",
        "a module told how forwards leave it does not tell those below it",
        "resharding",
        "fsdp2",
        Edit(
            MODULE + "set_reshard_after_forward",
            "list(self_module.modules()) if recurse else [self_module]",
            "[self_module]",
        ),
    ),
    fault(
        "fsdp2_group_ends_with_each_module",
        "a unit of several modules is resharded behind each of them, and gathered again",
        "fsdp2 runtime",
        "fsdp2",
        Edit(
            FUNCTIONS + "_register_group_forward_hooks",
            "if len(modules_to_run) == 0:\n    return post_hook(hook_module, input, output)",
            "return post_hook(hook_module, input, output)",
        ),
    ),
    fault(
        "fsdp2_unreached_units_stay_whole",
        "a unit that backward does not reach keeps its whole parameters in memory",
        "resharding",
        "fsdp2",
        Edit(
            STATE + "_root_post_backward_final_callback",
            "fsdp_param_group._training_state != TrainingState.POST_BACKWARD",
            "fsdp_param_group._training_state == TrainingState.PRE_BACKWARD",
        ),
    ),
    fault(
        "fsdp2_state_left_in_backward",
        "after the first backward a unit takes each forward for a recomputation",
        "fsdp2 runtime",
        "fsdp2",
        Edit(
            STATE + "_root_post_backward_final_callback",
            "state._training_state = TrainingState.IDLE",
            "pass",
        ),
        silent=False,
    ),
    fault(
        "fsdp2_forward_order_grows",
        "each iteration prefetches from the order of all before it, and the list grows forever",
        "prefetch",
        "fsdp2",
        Edit(
            STATE + "_root_post_backward_final_callback",
            "self._comm_ctx.post_forward_order.clear()",
            "pass",
        ),
    ),
    fault(
        "fsdp2_prefetch_wraps_around",
        "the first unit's backward gathers the last unit again, for nothing",
        "prefetch",
        "fsdp2",
        Edit(GROUP + "_backward_prefetch", "curr_index > 0", "curr_index >= 0"),
        Edit(
            GROUP + "_backward_prefetch",
            "if (target_index := curr_index - 1) < 0:\n    return",
            "target_index = curr_index - 1",
        ),
    ),
    fault(
        "fsdp2_prefetched_gathered_twice",
        "a unit that was prefetched is gathered once more when it is needed",
        "prefetch",
        "fsdp2",
        Edit(
            GROUP + "unshard",
            "if self._all_gather_result is not None:\n    return",
            "pass",
        ),
    ),
    fault(
        "fsdp2_forward_prefetch_ignored",
        "modules named for prefetching in forward are gathered only when they are needed",
        "prefetch",
        "fsdp2",
        Edit(
            STATE + "_pre_forward",
            "FSDPParamGroup._prefetch_unshard(target_param_group, 'forward')",
            "None",
        ),
    ),
    fault(
        "fsdp2_whole_unit_gathered_again",
        "a unit that is whole already is gathered again in backward",
        "fsdp2 runtime",
        "fsdp2",
        Edit(GROUP + "unshard", "if self.is_unsharded:\n    return", "pass"),
    ),
    fault(
        "fsdp2_root_resharded_in_forward",
        "the root is resharded after forward and gathered again at once",
        "resharding",
        "fsdp2",
        Edit(
            STATE + "_lazy_init",
            "fsdp_param_group.post_forward_mesh_info = None",
            "pass",
        ),
        Edit(
            STATE + "_lazy_init",
            "self._fsdp_param_group.post_forward_mesh_info = None",
            "pass",
        ),
    ),
    fault(
        "fsdp2_root_never_resharded_in_forward",
        "the root stays whole after forward although reshard_after_forward=True was asked for",
        "resharding",
        "fsdp2",
        Edit(
            STATE + "_lazy_init",
            "if self._auto_reshard_after_forward:\n"
            "    for fsdp_param_group in self._fsdp_param_groups:\n"
            "        fsdp_param_group.post_forward_mesh_info = None",
            "for fsdp_param_group in self._fsdp_param_groups:\n"
            "    fsdp_param_group.post_forward_mesh_info = None",
        ),
        Edit(
            STATE + "_lazy_init",
            "if self._fsdp_param_group and self._auto_reshard_after_forward:\n"
            "    self._fsdp_param_group.post_forward_mesh_info = None",
            "if self._fsdp_param_group:\n    self._fsdp_param_group.post_forward_mesh_info = None",
        ),
    ),
    fault(
        "fsdp2_forward_never_reshards",
        "units stay whole from forward to backward, so that memory is that of the whole model",
        "resharding",
        "fsdp2",
        Edit(GROUP + "reshard", "not self._reshard_after_forward", "True"),
    ),
    fault(
        "fsdp2_forward_always_reshards",
        "reshard_after_forward=False is ignored: all units are gathered twice an iteration",
        "resharding",
        "fsdp2",
        Edit(
            GROUP + "reshard",
            "if not self._reshard_after_forward:\n    return",
            "pass",
        ),
    ),
    fault(
        "fsdp2_smaller_mesh_ignored",
        "reshard_after_forward=2 reshards to all ranks: backward gathers over the slow network",
        "resharding",
        "fsdp2",
        Edit(
            GROUP + "_use_post_forward_mesh",
            "self._reshard_after_forward and self.mesh_info != self.post_forward_mesh_info",
            "self._reshard_after_forward and self.mesh_info is None",
        ),
        needs="world size 4",
    ),
    fault(
        "fsdp2_backward_never_reshards",
        "units stay whole after backward, so that memory is that of the whole model",
        "resharding",
        "fsdp2",
        Edit(
            GROUP + "post_backward",
            "if self.reshard_after_backward:\n    self.reshard()",
            "pass",
            which=2,
            among=2,
        ),
    ),
    fault(
        "fsdp2_accumulation_never_reshards",
        "without gradient sync units stay whole after backward",
        "resharding without gradient sync",
        "fsdp2",
        Edit(
            GROUP + "post_backward",
            "if self.reshard_after_backward:\n    self.reshard()",
            "pass",
            which=1,
            among=2,
        ),
    ),
    fault(
        "fsdp2_recomputation_reshards",
        "a unit inside a checkpoint is resharded after recomputation and gathered a third time",
        "activation checkpointing",
        "fsdp2",
        Edit(
            GROUP + "post_forward",
            "if not is_bw():\n    self.reshard()\n    self._record_post_forward()",
            "self.reshard()\nself._record_post_forward()",
        ),
    ),
    fault(
        "fsdp2_recomputation_runs_hooks",
        "a checkpoint around a unit: its recomputation reshards it in the middle of backward",
        "activation checkpointing",
        "fsdp2",
        Edit(
            STATE + "_post_forward",
            "if self._training_state == TrainingState.PRE_BACKWARD:\n"
            "    return self._cast_output_dtype(output)",
            "pass",
        ),
        Edit(
            STATE + "_post_forward",
            "if self._training_state == TrainingState.PRE_BACKWARD:\n    return output",
            "pass",
        ),
        silent=False,
        unseen="FSDPParamGroup.post_forward asks is_bw() as well",
    ),
    fault(
        "fsdp2_sync_of_root_only",
        "set_requires_gradient_sync(False) of the root leaves nested units reducing each backward",
        "no_sync",
        "fsdp2",
        Edit(
            MODULE + "set_requires_gradient_sync",
            "list(self_module.modules()) if recurse else [self_module]",
            "[self_module]",
        ),
    ),
    fault(
        "fsdp2_sync_of_all_units",
        "set_requires_gradient_sync(recurse=False) puts off the reduction of nested units as well",
        "no_sync",
        "fsdp2",
        Edit(
            MODULE + "set_requires_gradient_sync",
            "list(self_module.modules()) if recurse else [self_module]",
            "list(self_module.modules())",
        ),
    ),
    fault(
        "fsdp2_all_reduce_hook_of_a_copy",
        "what an all-reduce hook does to gradients is lost",
        "reduction scale",
        "fsdp2",
        Edit(
            "torch.distributed.fsdp._fully_shard._fsdp_collectives:foreach_reduce",
            "all_reduce_hook(reduce_output)",
            "all_reduce_hook(reduce_output.clone())",
        ),
    ),
    fault(
        "fsdp2_custom_reduce_scatter_gathers",
        "a custom reduce-scatter is taken for an all-gather",
        "fsdp2 runtime",
        "fsdp2",
        Edit(
            MODULE + "set_custom_reduce_scatter",
            "fsdp_param_group._reduce_scatter_comm = comm",
            "fsdp_param_group._all_gather_comm = comm",
        ),
        silent=False,
    ),
    fault(
        "fsdp2_sync_not_switched_on",
        "set_requires_gradient_sync(True) does nothing: after accumulation ranks never reduce",
        "no_sync",
        "fsdp2",
        Edit(
            MODULE + "set_requires_gradient_sync",
            "fsdp_param_group.reduce_grads = requires_gradient_sync",
            "fsdp_param_group.reduce_grads &= requires_gradient_sync",
        ),
    ),
    fault(
        "fsdp2_group_done_after_one",
        "modules sharded as one group are resharded after the first of them has run",
        "fsdp2 runtime",
        "fsdp2",
        Edit(
            FUNCTIONS + "_register_group_forward_hooks",
            "len(modules_to_run) == 0",
            "len(modules_to_run) >= 0",
            which=2,
            among=2,
        ),
        silent=False,
    ),
    fault(
        "fsdp2_smaller_mesh_stays_whole",
        "a unit resharded to fewer ranks after forward keeps its whole parameters besides",
        "resharding",
        "fsdp2",
        Edit(
            "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam.to_sharded_post_forward",
            "self.free_unsharded_param()",
            "None",
        ),
        needs="world size 4",
    ),
    fault(
        "fsdp2_method_inputs_not_cast",
        "under mixed precision a registered forward method gets its inputs as they are",
        "mixed precision",
        "fsdp2",
        Edit(
            METHODS + "register_fsdp_forward_method",
            "args, kwargs = fsdp_state._pre_forward(self, args, kwargs)",
            "fsdp_state._pre_forward(self, args, kwargs)",
        ),
        silent=False,
    ),
    fault(
        "fsdp2_method_gathers_nothing",
        "a registered forward method computes with sharded parameters",
        "fsdp2 runtime",
        "fsdp2",
        Edit(
            METHODS + "register_fsdp_forward_method",
            "args, kwargs = fsdp_state._pre_forward(self, args, kwargs)",
            "pass",
        ),
        silent=False,
    ),
)
