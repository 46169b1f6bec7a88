"""Faults of an optimizer's state, and of checkpoints on disk."""

from __future__ import annotations

from benchmarks.faults._edit import Edit, fault
from benchmarks.faults.saving import DCP

OPTIM = "torch.distributed.fsdp._optim_utils:"
PLANNER = "torch.distributed.checkpoint.default_planner:DefaultLoadPlanner."
RESHARDING = "torch.distributed.checkpoint.resharding:"
STAGING = "torch.distributed.checkpoint.staging:DefaultStager."
UTILITIES = "torch.distributed.checkpoint.utils:_DistWrapper."
HELPERS = "torch.distributed.checkpoint.planner_helpers:"

FAULTS = (
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
        "loaded_together_but_the_optimizer",
        "set_state_dict loads the model alone",
        "optimizer state",
        "both",
        Edit(
            DCP + "set_state_dict",
            "_load_optim_state_dict(model, optimizers, optim_state_dict, info)",
            "pass",
        ),
    ),
    fault(
        "saved_together_without_steps",
        "get_state_dict gives an optimizer's state as if it had made no step",
        "optimizer state",
        "both",
        Edit(
            DCP + "get_state_dict",
            "optim_state_dict = _get_optim_state_dict(model, optimizers, info)",
            "optim_state_dict = _get_optim_state_dict(model, optimizers, info)\n"
            "for entries in optim_state_dict[_STATE].values():\n"
            "    if 'step' in entries:\n"
            "        entries['step'] = entries['step'] * 0",
        ),
    ),
    fault(
        "names_of_ddp_kept",
        "state of a model in DDP goes by names with DDP's prefix",
        "dcp",
        "both",
        Edit(DCP + "_get_fqns", "not skip_ddp_prefix", "True"),
        silent=False,
    ),
    fault(
        "names_of_a_compiled_model_kept",
        "state of what torch.compile gives goes by names with its prefix",
        "dcp",
        "both",
        Edit(DCP + "_get_fqns", "not skip_compiler_prefix", "True"),
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
