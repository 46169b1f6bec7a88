"""Faults of fsdp1's runtime: resharding, prefetch, no_sync, the order of units."""

from __future__ import annotations

from benchmarks.faults._edit import Edit, fault

RUNTIME = "torch.distributed.fsdp._runtime_utils:"
ORDER = "torch.distributed.fsdp._exec_order_utils:_ExecOrderData."
FSDP = "torch.distributed.fsdp.fully_sharded_data_parallel:FullyShardedDataParallel."
FREE_AFTER_FORWARD = (
    "not state._is_root and handle._sharding_strategy in RESHARD_AFTER_FORWARD_HANDLE_STRATEGIES"
)
FREE_IN_BACKWARD = (
    "state._sync_gradients or handle._sharding_strategy in RESHARD_AFTER_FORWARD_HANDLE_STRATEGIES"
)

FAULTS = (
    fault(
        "fsdp1_forward_never_frees",
        "FULL_SHARD keeps all units whole from forward to backward",
        "resharding",
        "fsdp1",
        Edit(
            RUNTIME + "_post_forward_reshard",
            FREE_AFTER_FORWARD,
            "not state._is_root and handle._sharding_strategy == HandleShardingStrategy.NO_SHARD",
        ),
    ),
    fault(
        "fsdp1_root_freed_after_forward",
        "the root is freed after forward and gathered again at once",
        "resharding",
        "fsdp1",
        Edit(
            RUNTIME + "_post_forward_reshard",
            FREE_AFTER_FORWARD,
            "handle._sharding_strategy in RESHARD_AFTER_FORWARD_HANDLE_STRATEGIES",
        ),
    ),
    fault(
        "fsdp1_zero2_freed_after_forward",
        "SHARD_GRAD_OP gathers every unit twice, as FULL_SHARD does",
        "resharding",
        "fsdp1",
        Edit(
            RUNTIME + "_post_forward_reshard",
            FREE_AFTER_FORWARD,
            "not state._is_root and handle.uses_sharded_strategy",
        ),
    ),
    fault(
        "fsdp1_zero2_never_freed",
        "SHARD_GRAD_OP keeps units whole after backward, too",
        "resharding",
        "fsdp1",
        Edit(
            RUNTIME + "_should_free_in_backward",
            FREE_IN_BACKWARD,
            "handle._sharding_strategy in RESHARD_AFTER_FORWARD_HANDLE_STRATEGIES",
        ),
    ),
    fault(
        "fsdp1_accumulation_never_frees",
        "in no_sync FULL_SHARD keeps units whole after backward",
        "resharding without gradient sync",
        "fsdp1",
        Edit(RUNTIME + "_should_free_in_backward", FREE_IN_BACKWARD, "state._sync_gradients"),
    ),
    fault(
        "fsdp1_accumulation_frees_zero2",
        "in no_sync SHARD_GRAD_OP gathers every unit again for each micro-batch",
        "resharding without gradient sync",
        "fsdp1",
        Edit(RUNTIME + "_should_free_in_backward", FREE_IN_BACKWARD, "True"),
    ),
    fault(
        "fsdp1_evaluation_takes_the_gather_back",
        "a unit that a forward without grad calls before backward is not gathered in it",
        "resharding",
        "fsdp1",
        Edit(
            RUNTIME + "_register_pre_backward_hooks",
            "if not torch.is_grad_enabled():\n    return outputs",
            "if not torch.is_grad_enabled():\n"
            "    if handle:\n"
            "        handle._needs_pre_backward_unshard = False\n"
            "    return outputs",
        ),
        silent=False,
    ),
    fault(
        "fsdp1_resharded_late",
        "no unit is resharded before the end of backward",
        "resharding",
        "fsdp1",
        Edit(RUNTIME + "_post_backward_hook", "_post_backward_reshard(state, handle)", "None"),
        silent=False,
    ),
    fault(
        "fsdp1_frozen_unit_resharded_late",
        "frozen units stay whole until the end of backward",
        "freezing",
        "fsdp1",
        Edit(
            RUNTIME + "_post_backward_reshard_only_hook",
            "_post_backward_reshard(state, handle)",
            "None",
        ),
    ),
    fault(
        "fsdp1_unreached_units_stay_whole",
        "a unit that backward does not reach is never resharded",
        "resharding",
        "fsdp1",
        Edit(
            RUNTIME + "_catch_all_reshard",
            "_reshard(state, state._handle, free_unsharded_flat_param)",
            "None",
        ),
    ),
    fault(
        "fsdp1_prefetched_flag_kept",
        "with forward_prefetch, backward takes a freed unit for one that is whole",
        "prefetch",
        "fsdp1",
        Edit(RUNTIME + "_reshard", "handle._prefetched = False", "pass"),
        silent=False,
    ),
    fault(
        "fsdp1_prefetches_what_is_done",
        "backward prefetches a unit that it has left: gathering and computing never overlap",
        "prefetch",
        "fsdp1",
        Edit(
            ORDER + "get_handle_to_backward_prefetch",
            "target_index = current_index - 1",
            "target_index = min(current_index + 1, len(self.handles_post_forward_order) - 1)",
        ),
    ),
    fault(
        "fsdp1_prefetches_too_far",
        "forward_prefetch gathers the unit after the next one, so that two more are whole",
        "prefetch",
        "fsdp1",
        Edit(
            ORDER + "get_handle_to_forward_prefetch",
            "target_index = current_index + 1",
            "target_index = current_index + 2",
        ),
    ),
    fault(
        "fsdp1_forward_order_grows",
        "each iteration prefetches from the order of all before it, and the list grows forever",
        "prefetch",
        "fsdp1",
        Edit(ORDER + "next_iter", "self.handles_post_forward_order.clear()", "None"),
        unseen="what lies further back in the list needs no gathering any more, so nothing is "
        "prefetched; only the list grows",
    ),
    fault(
        "fsdp1_reduced_once_only",
        "from the second iteration on a unit's gradients are not reduced",
        "fsdp1 runtime",
        "fsdp1",
        Edit(
            RUNTIME + "_finalize_params",
            "delattr(flat_param, '_post_backward_hook_state')",
            "None",
        ),
        silent=False,
    ),
    fault(
        "fsdp1_backward_callback_once",
        "from the second backward on nothing is done at its end",
        "fsdp1 runtime",
        "fsdp1",
        (
            Edit(
                RUNTIME + "_post_backward_final_callback",
                "root_state._post_backward_callback_queued = False",
                "pass",
            ),
            Edit(
                RUNTIME + "_register_pre_backward_hooks",
                "state._post_backward_callback_queued = False",
                "pass",
            ),
        ),
        silent=False,
    ),
    fault(
        "fsdp1_pre_backward_ran_already",
        "from the second backward on units are not gathered for it",
        "fsdp1 runtime",
        "fsdp1",
        (
            Edit(
                RUNTIME + "_post_backward_final_callback",
                "handle._ran_pre_backward_hook = False",
                "pass",
            ),
            Edit(
                RUNTIME + "_register_pre_backward_hooks",
                "handle._ran_pre_backward_hook = False",
                "pass",
            ),
        ),
        silent=False,
    ),
    fault(
        "fsdp1_outputs_hooked_once",
        "a unit that returns several tensors is gathered in backward for the first one alone",
        "fsdp1 runtime",
        "fsdp1",
        Edit(
            RUNTIME + "_register_pre_backward_hooks",
            "t.requires_grad",
            "t.requires_grad and not (handle and handle._needs_pre_backward_unshard)",
        ),
        silent=False,
    ),
    fault(
        "fsdp1_recomputation_reshards",
        "a checkpoint around a unit: its recomputation frees what backward is about to use",
        "activation checkpointing",
        "fsdp1",
        Edit(
            RUNTIME + "_post_forward",
            "if handle and handle._training_state == HandleTrainingState.BACKWARD_PRE:\n"
            "    return output",
            "pass",
        ),
        silent=False,
    ),
    fault(
        "fsdp1_recomputation_counts_as_forward",
        "a checkpoint around a unit: its recomputation is taken for a forward of its own",
        "activation checkpointing",
        "fsdp1",
        Edit(
            RUNTIME + "_pre_forward",
            "if handle and handle._training_state == HandleTrainingState.BACKWARD_PRE:\n"
            "    return (args, kwargs)",
            "pass",
        ),
        silent=False,
    ),
    fault(
        "fsdp1_no_sync_of_root_only",
        "in no_sync nested units reduce their gradients after each micro-batch all the same",
        "no_sync",
        "fsdp1",
        Edit(FSDP + "no_sync", "self.modules()", "[self]"),
    ),
    fault(
        "fsdp1_no_sync_never_ends",
        "after no_sync no gradient is reduced any more",
        "no_sync",
        "fsdp1",
        Edit(FSDP + "no_sync", "m._sync_gradients = old_flag", "pass"),
    ),
    fault(
        "fsdp1_no_sync_loses_gradients",
        "with use_orig_params the gradients of a micro-batch in no_sync are forgotten",
        "no_sync",
        "fsdp1",
        Edit(
            RUNTIME + "_post_backward_hook",
            "if handle._use_orig_params:\n    handle._use_unsharded_grad_views()",
            "pass",
        ),
    ),
    fault(
        "fsdp1_buffers_not_cast",
        "buffer_dtype of the mixed-precision policy has no effect",
        "mixed precision",
        "fsdp1",
        Edit(
            RUNTIME + "_lazy_init",
            "_cast_buffers_to_dtype_and_device(buffers, buffer_dtypes, state.compute_device)",
            "None",
        ),
    ),
    fault(
        "fsdp1_root_inputs_not_cast",
        "under mixed precision the root's inputs keep their dtype in eval mode",
        "mixed precision",
        "fsdp1",
        Edit(
            RUNTIME + "_root_cast_forward_input",
            "module.training or not state._use_full_prec_in_eval",
            "module.training",
        ),
        silent=False,
    ),
    fault(
        "fsdp1_order_not_compared",
        "ranks that take different paths in the first forward are not told",
        "execution order",
        "fsdp1",
        Edit(ORDER + "_check_order", "i1 != i2", "i1 is None"),
        silent=False,
    ),
    fault(
        "fsdp1_order_index_stays",
        "a warning of a changed order although it is the same in each iteration",
        "execution order",
        "fsdp1",
        Edit(ORDER + "_check_order", "self.current_order_index += 1", "pass"),
        silent=False,
    ),
    fault(
        "fsdp1_order_of_later_iterations_unchecked",
        "an order that changes after the first iteration gives no warning",
        "execution order",
        "fsdp1",
        Edit(
            ORDER + "_check_order",
            "expected_handle != handle",
            "expected_handle is None",
        ),
        silent=False,
    ),
    fault(
        "fsdp1_order_warns_each_iteration",
        "the warning of a changed order comes in each iteration",
        "execution order",
        "fsdp1",
        Edit(
            ORDER + "next_iter",
            "self.warn_status = _ExecOrderWarnStatus.WARNED",
            "self.warn_status = _ExecOrderWarnStatus.NONE",
        ),
        silent=False,
        # The first iteration records the order, the second rightly warns, the third again.
        steps=3,
    ),
    fault(
        "fsdp1_order_checked_in_eval",
        "an evaluation that takes another path gives a warning of a changed order",
        "execution order",
        "fsdp1",
        Edit(
            ORDER + "_check_order",
            "not is_training or not self._checking_order",
            "not self._checking_order",
        ),
        silent=False,
    ),
    fault(
        "fsdp1_order_of_first_two_iterations",
        "the ranks compare their order in the second iteration, too, with more collectives",
        "execution order",
        "fsdp1",
        Edit(ORDER + "is_first_iter", "self._iter == 0", "self._iter <= 1"),
    ),
    fault(
        "fsdp1_unit_puts_out_a_view",
        "a module that changes in place what a unit put out breaks the backward",
        "resharding",
        "fsdp1",
        Edit(
            RUNTIME + "_register_pre_backward_hooks",
            "_apply_to_tensors(_register_hook, outputs)",
            "_apply_to_tensors(lambda t: _register_hook(t.view_as(t)), outputs)",
        ),
        silent=False,
    ),
)
