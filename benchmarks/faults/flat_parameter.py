"""Faults of fsdp1's flat parameter: freeing, views, gradients, precision, meta, ignored."""

from __future__ import annotations

from benchmarks.faults._edit import Edit, fault

HANDLE = "torch.distributed.fsdp._flat_param:FlatParamHandle."
SUMMON = "torch.distributed.fsdp._unshard_param_utils:"
INIT = "torch.distributed.fsdp._init_utils:"

FAULTS = (
    fault(
        "flat_parameter_never_freed",
        "a unit is gathered once only: after a step it goes on with its old parameters",
        "flat parameter",
        "fsdp1",
        Edit(
            HANDLE + "_free_unsharded_flat_param",
            "_free_storage(unsharded_flat_param)",
            "None",
        ),
    ),
    fault(
        "low_precision_shard_kept",
        "under mixed precision each rank keeps a second, low-precision shard",
        "mixed precision",
        "fsdp1",
        Edit(HANDLE + "post_unshard", "self._free_low_precision_sharded_param()", "None"),
    ),
    fault(
        "low_precision_copy_kept",
        "NO_SHARD under mixed precision keeps the low-precision parameters after each unit",
        "mixed precision",
        "fsdp1",
        Edit(HANDLE + "post_reshard", "self._free_low_precision_sharded_param()", "None"),
    ),
    fault(
        "stale_low_precision_after_full",
        "SHARD_GRAD_OP under mixed precision trains on with the parameters before a state dict",
        "mixed precision",
        "fsdp1",
        Edit(
            HANDLE + "_get_padded_unsharded_flat_param",
            "_free_storage(flat_param._full_param_padded)",
            "None",
        ),
    ),
    fault(
        "summoned_in_low_precision",
        "state dicts and summon_full_params give low-precision parameters",
        "mixed precision",
        "fsdp1",
        Edit(
            HANDLE + "_force_full_precision",
            "self._training_state == HandleTrainingState.SUMMON_FULL_PARAMS or "
            "(not self._fully_sharded_module.training and self._use_full_prec_in_eval)",
            "not self._fully_sharded_module.training and self._use_full_prec_in_eval",
        ),
    ),
    fault(
        "reduces_wide_by_default",
        "without reduce_dtype gradients are reduced in full precision, with twice the traffic",
        "reduction dtype",
        "fsdp1",
        Edit(
            HANDLE + "_init_param_reduce_dtypes",
            "self._reduce_dtype = self._fwd_bwd_param_dtype",
            "self._reduce_dtype = self._orig_param_dtype",
        ),
    ),
    fault(
        "saved_gradient_kept",
        "gradients of the last iteration are added to those of the next, zeroed or not",
        "accumulation",
        "fsdp1",
        Edit(
            HANDLE + "prepare_gradient_for_optim",
            "if hasattr(flat_param, '_saved_grad_shard'):\n"
            "    delattr(flat_param, '_saved_grad_shard')",
            "pass",
        ),
    ),
    fault(
        "unsharded_gradient_not_cleared",
        "a second backward before the step fails on a gradient of the shard's size",
        "accumulation",
        "fsdp1",
        Edit(HANDLE + "prepare_gradient_for_backward", "flat_param.grad = None", "pass"),
        silent=False,
    ),
    fault(
        "zeros_for_no_gradient",
        "a parameter without a gradient gets zeros, so that weight decay and momentum move it",
        "flat parameter",
        "fsdp1",
        Edit(
            HANDLE + "_use_sharded_grad_views",
            "param.requires_grad and (not is_grad_none)",
            "param.requires_grad",
        ),
    ),
    fault(
        "gradient_none_for_ever",
        "a parameter whose gradient was once set to None never gets one again",
        "flat parameter",
        "fsdp1",
        Edit(
            HANDLE + "_reset_is_grad_none",
            "flat_param._is_grad_none_mask[i] = False",
            "pass",
        ),
    ),
    fault(
        "frozen_parameter_has_gradient",
        "a frozen parameter beside trainable ones in a unit gets a gradient",
        "freezing",
        "fsdp1",
        Edit(
            HANDLE + "_use_sharded_grad_views",
            "param.requires_grad and (not is_grad_none)",
            "not is_grad_none",
        ),
    ),
    fault(
        "requires_grad_not_followed",
        "with use_orig_params a unit frozen or unfrozen as a whole goes on as before",
        "freezing",
        "fsdp1",
        Edit(
            HANDLE + "_reset_flat_param_grad_info_if_needed",
            "flat_param.requires_grad = requires_grad",
            "pass",
        ),
    ),
    fault(
        "last_frozen_freezes_all",
        "with use_orig_params a unit whose last parameter is frozen is not trained at all",
        "freezing",
        "fsdp1",
        Edit(
            HANDLE + "_reset_flat_param_grad_info_if_needed",
            "requires_grad |= param.requires_grad",
            "requires_grad = param.requires_grad",
        ),
    ),
    fault(
        "accumulated_views_as_shards",
        "accumulation in no_sync with use_orig_params fails in the next forward",
        "no_sync",
        "fsdp1",
        Edit(
            HANDLE + "_use_sharded_flat_param",
            "flat_param.grad.shape == flat_param._unpadded_unsharded_size",
            "flat_param.grad.shape == flat_param._sharded_size",
        ),
        silent=False,
    ),
    # Both names mean one object (``FlatParamHandle._init_flat_param_and_metadata``), so these two
    # change nothing, unless tensor parallelism makes another one of the first.
    fault(
        "tied_parameter_stays_whole",
        "the second name of a tied parameter keeps the whole parameter alive",
        "tied parameters",
        "fsdp1",
        Edit(
            HANDLE + "_use_sharded_views",
            "param.data = prim_param",
            "pass",
        ),
        needs="tensor parallelism",
    ),
    fault(
        "tied_gradient_missing",
        "the second name of a tied parameter has no gradient",
        "tied parameters",
        "fsdp1",
        Edit(HANDLE + "_use_sharded_grad_views", "param.grad = prim_param.grad", "pass"),
        needs="tensor parallelism",
    ),
    fault(
        "replaced_parameter_ignored",
        "with use_orig_params a parameter that the user replaced is not written back",
        "flat parameter",
        "fsdp1",
        Edit(
            HANDLE + "_writeback_orig_params",
            "self._writeback_tensor(src, flat_param, i, expected_shape, offset_in_shard, True)",
            "None",
        ),
    ),
    fault(
        "cleared_gradient_written_back",
        "a gradient that the user set to None comes back in the next accumulation",
        "flat parameter",
        "fsdp1",
        Edit(
            HANDLE + "_writeback_orig_params",
            "self._writeback_tensor(None, flat_param.grad, i, expected_shape, "
            "offset_in_shard, False)",
            "None",
        ),
    ),
    fault(
        "shards_of_the_first_rank",
        "every rank's shard begins with the first rank's elements",
        "flat parameter",
        "fsdp1",
        Edit(
            HANDLE + "_get_shard",
            "FlatParamHandle._get_unpadded_shard(tensor, rank, world_size)",
            "FlatParamHandle._get_unpadded_shard(tensor, 0, world_size)",
        ),
    ),
    fault(
        "local_shard_not_written",
        "what is loaded into a unit or changed in summon_full_params is lost",
        "flat parameter",
        "fsdp1",
        Edit(
            SUMMON + "_writeback_to_local_shard",
            "handle.flat_param._local_shard[:param_shard.numel()].copy_(param_shard)",
            "None",
        ),
    ),
    fault(
        "summoned_gradients_empty",
        "summon_full_params(with_grads=True) shows zeros for gradients",
        "flat parameter",
        "fsdp1",
        Edit(
            HANDLE + "unshard_grad",
            "sharded_grad = flat_param._saved_grad_shard",
            "sharded_grad = torch.zeros_like(flat_param._saved_grad_shard)",
        ),
    ),
    fault(
        "summoned_gradients_not_put_back",
        "a step after summon_full_params(with_grads=True) finds no gradients",
        "flat parameter",
        "fsdp1",
        Edit(
            HANDLE + "reshard_grad",
            "self._use_sharded_grad_views()",
            "[setattr(p, 'grad', None) for p in self.flat_param._params]",
        ),
    ),
    fault(
        "summoned_on_other_ranks",
        "summon_full_params(rank0_only=True) gives whole parameters to all ranks but the first",
        "flat parameter",
        "fsdp1",
        Edit(
            SUMMON + "_unshard_fsdp_state_params",
            "rank0_only and state.rank != 0",
            "rank0_only and state.rank == 0",
        ),
    ),
    fault(
        "summoned_stays_whole",
        "after a state dict all units stay whole in memory",
        "resharding",
        "fsdp1",
        Edit(SUMMON + "_unshard_fsdp_state_params", "handle.needs_unshard()", "False"),
    ),
    fault(
        "summoned_is_freed",
        "a state dict frees units that were whole, and fails where nothing is sharded",
        "resharding",
        "fsdp1",
        Edit(SUMMON + "_unshard_fsdp_state_params", "handle.needs_unshard()", "True"),
        silent=False,
    ),
    fault(
        "offloaded_shard_not_pinned",
        "with CPU offload shards lie in pageable memory, and copies block",
        "offload",
        "fsdp1",
        Edit(
            HANDLE + "init_flat_param_attributes",
            "flat_param._local_shard = flat_param._local_shard.pin_memory()",
            "pass",
        ),
        needs="gpu",
    ),
    fault(
        "meta_module_not_reset",
        "a model made on the meta device trains with memory nobody initialised",
        "meta initialisation",
        "fsdp1",
        Edit(INIT + "_materialize_meta_module", "module.reset_parameters()", "None"),
    ),
    fault(
        "meta_buffers_overlooked",
        "a module with nothing but buffers on the meta device is not materialised",
        "meta initialisation",
        "fsdp1",
        Edit(INIT + "_need_to_materialize_module", "is_meta_module |= buf.is_meta", "pass"),
        silent=False,
    ),
    fault(
        "ignored_modules_sharded",
        "parameters of ignored_modules are sharded with the rest",
        "ignored parameters",
        "fsdp1",
        Edit(
            INIT + "_get_ignored_params",
            "all_ignored_params.update(params_in_ignored_modules)",
            "None",
        ),
    ),
    fault(
        "nested_ignored_parameters_sharded",
        "what a nested unit ignores the unit around it shards",
        "ignored parameters",
        "fsdp1",
        (
            Edit(
                INIT + "_get_ignored_params",
                "all_ignored_params.update(optional_fsdp_state._ignored_params)",
                "None",
            ),
            Edit(
                INIT + "_get_ignored_modules",
                "ignored_modules.update(optional_fsdp_state._ignored_modules)",
                "None",
            ),
        ),
    ),
    fault(
        "fsdp1_modules_by_first_name_alone",
        "a flat parameter does not know of the second name of a module that the model holds twice",
        "flat parameter",
        "fsdp1",
        Edit(
            HANDLE + "_init_flat_param_and_metadata",
            "module.named_modules(remove_duplicate=False)",
            "module.named_modules()",
        ),
        silent=False,
    ),
)
