"""Faults of state dicts, optimizer state and DCP."""

from __future__ import annotations

from benchmarks.faults._edit import Edit, fault

FSDP1 = "torch.distributed.fsdp._state_dict_utils:"
OPTIM = "torch.distributed.fsdp._optim_utils:"
DCP = "torch.distributed.checkpoint.state_dict:"
SHARED = "torch.distributed._state_dict_utils:"
GROUP = "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup."
WRAPPER = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper:ActivationWrapper."
PLANNER = "torch.distributed.checkpoint.default_planner:DefaultLoadPlanner."
RESHARDING = "torch.distributed.checkpoint.resharding:"
STAGING = "torch.distributed.checkpoint.staging:DefaultStager."
UTILITIES = "torch.distributed.checkpoint.utils:_DistWrapper."
HELPERS = "torch.distributed.checkpoint.planner_helpers:"

FAULTS = (
    fault(
        "full_state_dict_not_cloned",
        "a full state dict changes, or turns to garbage, once training goes on",
        "state dict",
        "fsdp1",
        Edit(
            FSDP1 + "_full_post_state_dict_hook",
            "state_dict[fqn] = state_dict[fqn].detach().clone()",
            "state_dict[fqn] = state_dict[fqn].detach()",
        ),
    ),
    fault(
        "rank0_only_leaves_parameters",
        "with rank0_only the other ranks' state dicts hold parameters, too",
        "state dict",
        "fsdp1",
        Edit(
            FSDP1 + "_common_unshard_post_state_dict_hook",
            "if no_fsdp_return:\n    state_dict.pop(fqn)\n    continue",
            "if no_fsdp_return:\n    continue",
        ),
    ),
    fault(
        "frozen_parameters_not_ignored",
        "ignore_frozen_params leaves what is frozen in the state dict",
        "state dict",
        "fsdp2",
        Edit(DCP + "_get_model_state_dict", "info.ignore_frozen_params", "False"),
    ),
    fault(
        "full_load_not_written",
        "loading a full state dict changes nothing",
        "state dict",
        "fsdp1",
        Edit(
            FSDP1 + "_full_pre_load_state_dict_hook",
            "_enter_unshard_params_ctx(module, fsdp_state, writeback=True)",
            "_enter_unshard_params_ctx(module, fsdp_state, writeback=False)",
        ),
    ),
    fault(
        "sharded_load_not_written",
        "loading a sharded state dict changes nothing",
        "state dict",
        "fsdp1",
        Edit(
            FSDP1 + "_sharded_pre_load_state_dict_hook",
            "_enter_unshard_params_ctx(module, fsdp_state, writeback=True)",
            "_enter_unshard_params_ctx(module, fsdp_state, writeback=False)",
        ),
    ),
    fault(
        "sharded_load_uneven",
        "a sharded state dict with an uneven first dimension cannot be loaded",
        "state dict",
        "fsdp1",
        Edit(
            FSDP1 + "_sharded_pre_load_state_dict_hook",
            "math.ceil(dim_0_size / fsdp_state.world_size) * param_numel // dim_0_size",
            "param_numel // fsdp_state.world_size",
        ),
        silent=False,
    ),
    fault(
        "local_offset_of_padding",
        "a local state dict says that a rank's shard lies elsewhere",
        "state dict",
        "fsdp1",
        Edit(
            FSDP1 + "_local_post_state_dict_hook",
            "shard_offset = flat_param.numel() * fsdp_state.rank",
            "shard_offset = (flat_param.numel() - flat_param._shard_numel_padded) "
            "* fsdp_state.rank",
        ),
        silent=False,
    ),
    fault(
        "checkpoint_prefix_in_names",
        "a state dict of a unit with a checkpointed module inside cannot be made",
        "state dict",
        "fsdp1",
        Edit(
            FSDP1 + "_convert_to_wrapped_module_name",
            "module_name = module_name.replace(checkpoint_wrapper._CHECKPOINT_PREFIX, '')",
            "pass",
        ),
        silent=False,
    ),
    fault(
        "checkpoint_prefix_in_keys",
        "keys of a state dict hold the name of the checkpoint wrapper",
        "state dict",
        "both",
        Edit(
            WRAPPER + "_post_state_dict_hook",
            "_replace_by_prefix(state_dict, f'{prefix}{_CHECKPOINT_PREFIX}', prefix)",
            "None",
        ),
    ),
    fault(
        "checkpoint_prefix_in_loading",
        "a state dict cannot be loaded into a checkpointed module",
        "state dict",
        "both",
        Edit(
            WRAPPER + "_pre_load_state_dict_hook",
            "_replace_by_prefix(state_dict, prefix, prefix + f'{_CHECKPOINT_PREFIX}')",
            "None",
        ),
        silent=False,
    ),
    fault(
        "fsdp2_state_dict_of_whole_unit",
        "a state dict taken while a unit is whole holds plain tensors of the whole parameters",
        "state dict",
        "fsdp2",
        Edit(GROUP + "_register_state_dict_hooks", "self._to_sharded()", "None"),
    ),
    fault(
        "fsdp2_full_load_skips_plain_tensors",
        "loading a full state dict leaves buffers and ignored parameters as they are",
        "state dict",
        "fsdp2",
        Edit(
            SHARED + "_distribute_state_dict",
            "local_state_dict[key] = value.detach().to(device)",
            "pass",
        ),
    ),
    fault(
        "fsdp2_full_state_not_distributed",
        "a full state dict cannot be loaded into a sharded model",
        "state dict",
        "fsdp2",
        Edit(
            DCP + "_load_model_state_dict",
            "state_dict.update(local_state_dict)",
            "None",
        ),
        silent=False,
    ),
    fault(
        "fsdp2_broadcast_of_first_rows",
        "loading with broadcast_from_rank0 gives every rank the first rank's shard",
        "state dict",
        "fsdp2",
        Edit(
            SHARED + "_distribute_tensors",
            "slice(cur_offset, cur_offset + cur_shape)",
            "slice(0, cur_shape)",
        ),
    ),
    fault(
        "fsdp2_broadcast_not_copied",
        "loading with broadcast_from_rank0 leaves sharded parameters as they are",
        "state dict",
        "fsdp2",
        Edit(
            SHARED + "_distribute_tensors",
            "ret.to_local().copy_(full_tensor[tuple(slices)])",
            "None",
        ),
    ),
    fault(
        "learning_rate_zero_after_saving",
        "an optimizer state dict taken before the first step sets the learning rate to 0",
        "optimizer state",
        "both",
        Edit(
            DCP + "_init_optim_state",
            "if 'lr' in param_group:\n    param_group['lr'] = lrs.pop(0)",
            "pass",
        ),
    ),
    fault(
        "saving_takes_a_step",
        "an optimizer state dict taken before the first step decays the weights",
        "optimizer state",
        "both",
        Edit(
            DCP + "_init_optim_state",
            "param_group['lr'] = torch.tensor(0.0) if isinstance(param_group['lr'], "
            "torch.Tensor) else 0.0",
            "pass",
        ),
    ),
    fault(
        "saving_leaves_zero_gradients",
        "after an optimizer state dict each parameter has a gradient of zeros",
        "optimizer state",
        "both",
        Edit(
            DCP + "_init_optim_state",
            "optim.zero_grad(set_to_none=True)",
            "optim.zero_grad(set_to_none=False)",
        ),
    ),
    fault(
        "saved_options_not_loaded",
        "learning rate and the like of a loaded optimizer state are dropped",
        "optimizer state",
        "both",
        Edit(
            DCP + "_split_optim_state_dict",
            "pg_state[pg_idx][key] = value",
            "pg_state[pg_idx][key] = optim.param_groups[pg_idx][key]",
        ),
    ),
    fault(
        "optimizer_state_not_loaded",
        "momenta of a loaded optimizer state are dropped",
        "optimizer state",
        "fsdp2",
        Edit(
            DCP + "_split_optim_state_dict",
            "state[fqn] = cast(DictValueType, optim_state_dict[_STATE])[fqn]",
            "state[fqn] = optim.state.get(param, {})",
        ),
    ),
    fault(
        "optimizer_slice_of_first_rank",
        "with use_orig_params each rank loads the first elements of a momentum",
        "optimizer state",
        "fsdp1",
        Edit(
            OPTIM + "_shard_orig_param_state",
            "value.flatten()[intra_param_start_idx:intra_param_end_idx + 1]",
            "value.flatten()[:intra_param_end_idx - intra_param_start_idx + 1]",
        ),
    ),
    fault(
        "optimizer_shard_of_first_rank",
        "with use_orig_params=False each rank loads the first rank's momenta",
        "optimizer state",
        "fsdp1",
        Edit(
            OPTIM + "_flatten_optim_state",
            "FlatParamHandle._get_shard(flat_tensor, fsdp_state.rank, fsdp_state.world_size)",
            "FlatParamHandle._get_shard(flat_tensor, 0, fsdp_state.world_size)",
        ),
    ),
    fault(
        "optimizer_state_shares_memory",
        "in a full optimizer state dict one momentum overwrites the other",
        "optimizer state",
        "fsdp1",
        Edit(
            OPTIM + "_unflatten_orig_param_states",
            "value = value.detach().clone()",
            "value = value.detach()",
        ),
    ),
    fault(
        "optimizer_scalars_share_memory",
        "the step count in a saved optimizer state dict goes on counting",
        "optimizer state",
        "fsdp1",
        Edit(OPTIM + "_communicate_optim_state", "value.detach().clone()", "value.detach()"),
        unseen="documented: as in Optimizer.state_dict tensors are not cloned, and may be aliases "
        "(FullyShardedDataParallel.full_optim_state_dict)",
    ),
    fault(
        "optimizer_state_of_frozen_lost",
        "optimizer state of a parameter that was frozen later cannot be saved",
        "optimizer state",
        "fsdp1",
        Edit(
            OPTIM + "_allgather_orig_param_states",
            "fsdp_param_info.param_requires_grad[idx] or fqn in output_states",
            "fsdp_param_info.param_requires_grad[idx]",
        ),
        silent=False,
    ),
    fault(
        "optimizer_state_of_unmanaged_lost",
        "optimizer state of ignored parameters is not saved",
        "optimizer state",
        "fsdp1",
        Edit(
            OPTIM + "_convert_state_with_orig_params",
            "fsdp_osd_state[unflat_param_name] = copy.copy(optim_state_dict[param_key])",
            "fsdp_osd_state[unflat_param_name] = {}",
        ),
    ),
    fault(
        "dcp_resharded_read_from_start",
        "a checkpoint loaded onto other shards gives each the beginning of what was saved",
        "dcp",
        "both",
        Edit(
            RESHARDING + "_shards_get_overlap_region_wrt_saved_tensor",
            "offset_for_saved_tensor = current_shard_offset - saved_shard_offset",
            "offset_for_saved_tensor = 0",
        ),
    ),
    fault(
        "dcp_first_rate",
        "a state dict has the learning rate that the optimizer was made with",
        "optimizer state",
        "both",
        Edit(
            DCP + "_get_optim_state_dict",
            "osd = _state_dict_fn(optim, 'state_dict')()",
            "osd = _state_dict_fn(optim, 'state_dict')()\n"
            "for group in osd[_PG]:\n    group['lr'] = optim.defaults['lr']",
        ),
    ),
    fault(
        "dcp_resharded_written_to_start",
        "a checkpoint loaded onto other shards is written to the beginning of each",
        "dcp",
        "both",
        Edit(
            RESHARDING + "_shards_get_overlap_region_wrt_saved_tensor",
            "offset_for_current_tensor = saved_shard_offset - current_shard_offset",
            "offset_for_current_tensor = 0",
        ),
    ),
    fault(
        "dcp_values_not_set",
        "numbers beside tensors are not loaded from a checkpoint",
        "dcp",
        "both",
        Edit(
            PLANNER + "load_bytes",
            "set_element(self.original_state_dict, self.mappings[read_item.dest_index.fqn], "
            "torch.load(value, weights_only=False))",
            "None",
        ),
    ),
    fault(
        "dcp_load_of_first_rows",
        "each rank loads the first rank's rows of a sharded parameter",
        "dcp",
        "both",
        Edit(
            HELPERS + "_create_chunk_from_dtensor",
            "sizes, offsets = (torch.Size(sizes), torch.Size(offsets))",
            "sizes, offsets = (torch.Size(sizes), torch.Size([0] * len(sizes)))",
        ),
    ),
    fault(
        "dcp_led_by_rank_0",
        "ranks that load a checkpoint by themselves fail unless rank 0 is one of them",
        "dcp",
        "both",
        Edit(
            UTILITIES + "__init__",
            "dist.get_global_rank(group, coordinator_rank) if group is not None "
            "else coordinator_rank",
            "coordinator_rank",
        ),
        silent=False,
    ),
    fault(
        "async_save_stages_nothing",
        "a checkpoint that is written in the background has what came after it was asked for",
        "dcp",
        "both",
        Edit(
            STAGING + "_stage",
            "state_dict = self._state_dict_stager.stage(state_dict, non_blocking=False)",
            "pass",
        ),
    ),
)
