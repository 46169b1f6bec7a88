"""Faults of state dicts."""

from __future__ import annotations

from benchmarks.faults._edit import Edit, fault

FSDP1 = "torch.distributed.fsdp._state_dict_utils:"
DCP = "torch.distributed.checkpoint.state_dict:"
SHARED = "torch.distributed._state_dict_utils:"
GROUP = "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup."
WRAPPER = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper:ActivationWrapper."

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
        "state_of_a_module_has_all_keys",
        "the state dict of one module has the entries of the others, too",
        "state dict",
        "fsdp2",
        Edit(DCP + "_get_model_state_dict", "not fqn.startswith(prefix)", "False"),
    ),
    fault(
        "prefix_of_a_module_kept",
        "keep_submodule_prefixes=False keeps the prefix",
        "state dict",
        "fsdp2",
        Edit(DCP + "_get_model_state_dict", "info.keep_submodule_prefixes", "True"),
    ),
    fault(
        "state_of_a_module_not_loaded",
        "what is given for one module is loaded by keys without its prefix",
        "state dict",
        "fsdp2",
        Edit(DCP + "_unflatten_model_state_dict", 'f"{next(iter(fqns))}."', '""'),
    ),
    fault(
        "load_of_a_part_empties_the_rest",
        "a full state dict that lacks entries is loaded with zeros in their place",
        "state dict",
        "fsdp2",
        Edit(
            DCP + "_load_model_state_dict",
            "local_state_dict[fqn_with_prefix] = value",
            "local_state_dict[fqn_with_prefix] = torch.zeros_like(value)",
        ),
    ),
    fault(
        "full_load_empties_what_it_is_given",
        "a full state dict has no entries any more once it was loaded",
        "state dict",
        "fsdp2",
        Edit(
            DCP + "_load_model_state_dict",
            "state_dict.update(local_state_dict)",
            "state_dict.clear()\nstate_dict = local_state_dict",
        ),
        silent=False,
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
)
