"""Faults that show where a program evaluates, calls the model or goes on in another way."""

from __future__ import annotations

from benchmarks.faults._edit import Edit, fault

RUNTIME = "torch.distributed.fsdp._runtime_utils:"
HANDLE = "torch.distributed.fsdp._flat_param:FlatParamHandle."
FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel:FullyShardedDataParallel."
STATE = "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState."
PARAM = "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam."
MODULE = "torch.distributed.fsdp._fully_shard._fully_shard:FSDPModule."
GROUP = "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup."
SCALER1 = "torch.distributed.fsdp.sharded_grad_scaler:ShardedGradScaler."
_GATHERED = (
    "_unshard_params_for_summon(self, self, writeback=True, rank0_only=False, "
    "offload_to_cpu=False, with_grads=False)"
)
"""The parameters for a function that is applied."""

FAULTS = (
    fault(
        "fsdp1_inference_frees_nothing",
        "after an evaluation under inference_mode all units stay whole",
        "resharding",
        "fsdp1",
        Edit(
            RUNTIME + "_post_forward_reshard",
            "if not handle:\n    return",
            "if not handle or torch.is_inference_mode_enabled():\n    return",
        ),
    ),
    fault(
        "fsdp2_inference_gathers_elsewhere",
        "training fails, or goes on with old parameters, after an evaluation under inference_mode",
        "fsdp2 runtime",
        "fsdp2",
        Edit(
            PARAM + "init_all_gather_outputs",
            "len(self.all_gather_outputs) > 0",
            "len(self.all_gather_outputs) > 0 and not torch.is_inference_mode_enabled()",
        ),
        silent=False,
    ),
    fault(
        "fsdp1_whole_unit_written_back",
        "a unit that an exception leaves whole forgets the parameters that are trained",
        "flat parameter",
        "fsdp1",
        Edit(
            HANDLE + "_writeback_orig_params",
            "self.uses_sharded_strategy and not self.is_sharded(self.flat_param) "
            "and not self._skipped_use_sharded_views",
            "False",
        ),
    ),
    fault(
        "fsdp1_root_keywords_not_cast",
        "under mixed precision what the root is given by keyword keeps its dtype",
        "mixed precision",
        "fsdp1",
        Edit(
            RUNTIME + "_root_cast_forward_input",
            "args, kwargs = _cast_forward_inputs(input_dtype, *args, **kwargs)",
            "args, _ = _cast_forward_inputs(input_dtype, *args)",
        ),
        silent=False,
    ),
    fault(
        "fsdp2_keywords_not_cast",
        "under mixed precision what a unit is given by keyword keeps its dtype",
        "mixed precision",
        "fsdp2",
        Edit(
            STATE + "_cast_forward_inputs",
            "_apply_to_tensors(cast_fn, kwargs)",
            "kwargs",
        ),
        Edit(
            STATE + "_pre_forward",
            "_apply_to_tensors(cast_fn, kwargs)",
            "kwargs",
        ),
        silent=False,
    ),
    fault(
        "fsdp2_output_dtype_of_training_alone",
        "in an evaluation outputs keep the dtype in which a unit computes",
        "mixed precision",
        "fsdp2",
        Edit(
            STATE + "_cast_output_dtype",
            "self._mp_policy.output_dtype is None",
            "self._mp_policy.output_dtype is None or not torch.is_grad_enabled()",
        ),
        Edit(
            STATE + "_post_forward",
            "self._mp_policy.output_dtype is not None",
            "self._mp_policy.output_dtype is not None and torch.is_grad_enabled()",
        ),
    ),
    fault(
        "fsdp1_form_not_put_back",
        "after a state dict in a context the form that was set before is forgotten",
        "state dict",
        "fsdp1",
        Edit(
            FSDP1 + "state_dict_type",
            "FullyShardedDataParallel.set_state_dict_type(module, "
            "prev_state_dict_settings.state_dict_type, "
            "prev_state_dict_settings.state_dict_config, "
            "prev_state_dict_settings.optim_state_dict_config)",
            "FullyShardedDataParallel.set_state_dict_type(module, StateDictType.FULL_STATE_DICT)",
        ),
        silent=False,
    ),
    fault(
        "fsdp1_applied_lost",
        "what a function given to apply() does to parameters is lost",
        "fsdp1 runtime",
        "fsdp1",
        Edit(FSDP1 + "apply", _GATHERED, _GATHERED.replace("writeback=True", "writeback=False")),
    ),
    fault(
        "fsdp1_applied_to_shards",
        "a function given to apply() finds each rank's part of the original parameters",
        "fsdp1 runtime",
        "fsdp1",
        Edit(FSDP1 + "apply", _GATHERED, "contextlib.nullcontext()"),
    ),
    fault(
        "fsdp1_applied_makes_a_root",
        "a unit whose apply() comes before the first forward counts as a root from then on",
        "fsdp1 runtime",
        "fsdp1",
        Edit(FSDP1 + "apply", "uninitialized and self._is_root", "False"),
        silent=False,
    ),
    fault(
        "fsdp2_reset_without_callback",
        "after an exception in backward and a reset no backward is ever finished again",
        "fsdp2 runtime",
        "fsdp2",
        Edit(
            STATE + "_reset_iter_state",
            "self._state_ctx.post_backward_final_callback_queued = False",
            "pass",
        ),
    ),
    fault(
        "fsdp2_reset_leaves_units_whole",
        "units that an exception leaves whole stay so after a reset",
        "resharding",
        "fsdp2",
        Edit(GROUP + "_reset_iter_state", "self._to_sharded()", "pass"),
    ),
    fault(
        "fsdp1_overflow_of_one_rank",
        "each rank skips a step by the overflows of its own shards",
        "gradient scaling",
        "fsdp1",
        Edit(
            SCALER1 + "unscale_",
            "dist.all_reduce(found_inf, async_op=True, group=self.process_group)",
            "dist.barrier(async_op=True)",
        ),
    ),
    fault(
        "fsdp1_scale_grows_early",
        "the scale of gradients is doubled after one step",
        "gradient scaling",
        "fsdp1",
        Edit(
            SCALER1 + "_amp_update_scale_cpu_",
            "successful == self._growth_interval",
            "successful >= 1",
        ),
    ),
    fault(
        "fsdp2_overflow_of_one_rank",
        "each rank skips a step by the overflows of its own shards",
        "gradient scaling",
        "fsdp2",
        Edit(
            "torch.distributed.tensor._dispatch:found_inf_reduce_handler",
            "target_tensor.copy_(found_inf)",
            "pass",
        ),
    ),
    fault(
        "fsdp2_converts_whole_parameters",
        "model.to() behind an evaluation finds unsharded parameters, of which it loses the shards",
        "parameter group",
        "fsdp2",
        Edit(MODULE + "_apply", "self.reshard()", "None"),
        silent=False,
    ),
    fault(
        "fsdp2_converted_shards_not_taken_over",
        "after model.to() all-gathers read the old storage, which nothing trains any more",
        "parameter group",
        "fsdp2",
        Edit(MODULE + "_apply", "fsdp_param.reset_sharded_param()", "None"),
    ),
    fault(
        "scaler_loads_no_growth",
        "a scaler that loads a state counts its steps anew",
        "gradient scaling",
        "both",
        Edit(
            "torch.amp.grad_scaler:GradScaler.load_state_dict",
            "self._init_growth_tracker = cast(int, state_dict['_growth_tracker'])",
            "pass",
        ),
    ),
)
