"""Faults of fsdp2's parameters and groups: accumulation, freezing, dtypes, offload, ties."""

from __future__ import annotations

from benchmarks.faults._edit import Edit, fault

PARAM = "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam."
GROUP = "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup."
STATE = "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState."
INIT = "torch.distributed.fsdp._fully_shard._fsdp_init:"
REDUCE = "torch.distributed.fsdp._fully_shard._fsdp_collectives:foreach_reduce"
METADATA = "torch.distributed.fsdp._fully_shard._fsdp_collectives:_get_all_gather_input_metadatas"

FAULTS = (
    fault(
        "fsdp2_unsharded_gradient_kept",
        "each backward adds to the gradient of the last one, zeroed or not",
        "parameter group",
        "fsdp2",
        Edit(
            GROUP + "post_backward",
            "unsharded_grads.append(fsdp_param.unsharded_grad_data)\n"
            "fsdp_param.unsharded_param.grad = None",
            "unsharded_grads.append(fsdp_param.unsharded_grad_data)",
        ),
    ),
    fault(
        "fsdp2_accumulated_gradient_kept",
        "gradients accumulated in reduce_dtype are added again in the next iteration",
        "accumulation",
        "fsdp2",
        Edit(
            GROUP + "post_backward",
            "fsdp_param.unsharded_accumulated_grad = None",
            "pass",
        ),
    ),
    fault(
        "fsdp2_accumulates_in_low_precision",
        "micro-batches are added up in param_dtype although reduce_dtype is wider",
        "accumulation",
        "fsdp2",
        Edit(
            GROUP + "post_backward",
            "fsdp_param.to_accumulated_grad_if_needed()",
            "None",
        ),
    ),
    fault(
        "fsdp2_last_micro_batch_wins",
        "under mixed precision only the last of several micro-batches counts",
        "accumulation",
        "fsdp2",
        Edit(
            PARAM + "accumulate_unsharded_grad_if_needed",
            "self.unsharded_accumulated_grad += self.unsharded_param.grad",
            "self.unsharded_accumulated_grad = self.unsharded_param.grad",
        ),
    ),
    fault(
        "fsdp2_second_backward_overwrites",
        "a second backward before the step replaces the first one's gradients",
        "accumulation",
        "fsdp2",
        Edit(
            REDUCE,
            "fsdp_param.sharded_param.grad._local_tensor += new_sharded_grad",
            "fsdp_param.sharded_param.grad._local_tensor.copy_(new_sharded_grad)",
        ),
    ),
    fault(
        "fsdp2_gradients_shifted_by_padding",
        "behind an unevenly sharded parameter gradients belong to other elements",
        "parameter group",
        "fsdp2",
        Edit(
            REDUCE,
            "flat_grad_offset += padded_sharded_numel",
            "flat_grad_offset += new_sharded_grad.numel()",
        ),
    ),
    fault(
        "fsdp2_columns_reduced_as_rows",
        "a parameter sharded along its second dimension gets the gradients of other elements",
        "parameter group",
        "fsdp2",
        Edit(
            REDUCE,
            "torch.chunk(unsharded_grad, world_size, dim=shard_dim)",
            "torch.chunk(unsharded_grad, world_size, dim=0)",
        ),
    ),
    fault(
        "fsdp2_columns_gathered_as_rows",
        "a parameter sharded along its second dimension is put together in the wrong order",
        "parameter group",
        "fsdp2",
        Edit(
            "torch.distributed.fsdp._fully_shard._fsdp_collectives:foreach_all_gather_copy_out",
            "torch.cat(chunks, dim=shard_dim, out=cat_out)",
            "torch.cat(chunks, dim=0, out=cat_out.view(pre_param_size))",
        ),
    ),
    fault(
        "fsdp2_freed_never",
        "a unit's whole parameters stay in memory beside its shard",
        "resharding",
        "fsdp2",
        Edit(PARAM + "to_sharded", "self.free_unsharded_param()", "None"),
    ),
    fault(
        "fsdp2_extension_memory_kept",
        "what an all-gather extension makes of gathered tensors stays in memory",
        "parameter group",
        "fsdp2",
        Edit(
            PARAM + "free_unsharded_param",
            "itertools.chain(self.all_gather_outputs, self._unsharded_inner_tensors)",
            "self.all_gather_outputs",
        ),
    ),
    fault(
        "fsdp2_extension_joined_once",
        "a parameter with an all-gather extension stays as it was gathered first",
        "parameter group",
        "fsdp2",
        (
            Edit(
                PARAM + "free_unsharded_param",
                "itertools.chain(self.all_gather_outputs, self._unsharded_inner_tensors)",
                "self.all_gather_outputs",
            ),
            Edit(
                PARAM + "init_unsharded_param",
                "inner_tensor.fsdp_post_all_gather("
                "all_gather_outputs, self._extensions_data.all_gather_metadata, "
                "self.param_dtype or self.orig_dtype, out=self._unsharded_param)",
                "None",
            ),
        ),
    ),
    fault(
        "fsdp2_extension_sends_the_first",
        "an all-gather extension sends what the parameter was at first",
        "parameter group",
        "fsdp2",
        Edit(
            PARAM + "all_gather_inputs",
            "return [t.view(-1) for t in all_gather_inputs]",
            "return self.__dict__.setdefault("
            "'_sent', [t.reshape(-1).clone() for t in all_gather_inputs])",
        ),
    ),
    fault(
        "fsdp2_extension_of_the_last",
        "all parameters of one size are joined with the metadata of the last one",
        "parameter group",
        "fsdp2",
        Edit(
            PARAM + "_init_extensions",
            "self._extensions_data = ExtensionsData()",
            "self._extensions_data = ExtensionsData.__dict__.get('one') or "
            "(setattr(ExtensionsData, 'one', ExtensionsData()) or ExtensionsData.one)",
        ),
        silent=False,
    ),
    fault(
        "fsdp2_extension_in_full_precision",
        "an all-gather extension is told the parameter's dtype, not param_dtype",
        "mixed precision",
        "fsdp2",
        Edit(
            PARAM + "init_unsharded_param",
            "self.param_dtype or self.orig_dtype",
            "self.orig_dtype",
            which=2,
            among=2,
        ),
        silent=False,
    ),
    fault(
        "fsdp2_requires_grad_not_followed",
        "a parameter frozen or unfrozen after the first forward goes on as before",
        "freezing",
        "fsdp2",
        Edit(
            PARAM + "to_unsharded",
            "set_requires_grad_if_needed(self.sharded_param, self._unsharded_param)",
            "None",
        ),
    ),
    fault(
        "fsdp2_unsharded_always_trainable",
        "the gathered form of a frozen parameter asks for a gradient, and gets one",
        "freezing",
        "fsdp2",
        (
            Edit(
                PARAM + "init_unsharded_param",
                "self.sharded_param.requires_grad",
                "True",
            ),
            Edit(
                "torch.distributed.fsdp._fully_shard._fsdp_param:set_requires_grad_if_needed",
                "src_tensor.requires_grad != dst_tensor.requires_grad",
                "src_tensor.requires_grad and not dst_tensor.requires_grad",
            ),
        ),
    ),
    fault(
        "fsdp2_tied_module_not_gathered",
        "the second module of a tied parameter sees the shard in forward",
        "tied parameters",
        "fsdp2",
        Edit(
            PARAM + "_setattr_on_modules",
            "unsafe_setattr_param(shared_module, shared_param_name, param)",
            "None",
        ),
        silent=False,
    ),
    fault(
        "fsdp2_one_shard_not_copied",
        "where a parameter has one shard only, the unit computes with memory nobody wrote",
        "parameter group",
        "fsdp2",
        Edit(GROUP + "wait_for_unshard", "tensor.copy_(all_gather_input)", "None"),
    ),
    fault(
        "fsdp2_reduces_in_low_precision",
        "reduce_dtype=float32 is ignored where param_dtype is lower",
        "reduction dtype",
        "fsdp2",
        Edit(
            REDUCE,
            "reduce_dtype = reduce_dtype or grad_dtype",
            "reduce_dtype = grad_dtype",
        ),
    ),
    fault(
        "fsdp2_reduced_gradient_stays_low",
        "the optimizer gets gradients of another dtype than its parameters",
        "reduction dtype",
        "fsdp2",
        Edit(
            REDUCE,
            "reduce_output = _to_dtype_if_needed(reduce_output, orig_dtype)",
            "pass",
        ),
        silent=False,
    ),
    fault(
        "fsdp2_gathers_in_the_first_dtype",
        "parameters of several dtypes are not gathered as bytes but in the dtype of the first",
        "parameter group",
        "fsdp2",
        Edit(METADATA, "all_gather_dtype = torch.uint8", "pass"),
        silent=False,
    ),
    fault(
        "fsdp2_gradients_in_the_first_dtype",
        "gradients get the dtype of the unit's first parameter, also where that is a frozen one",
        "reduction dtype",
        "fsdp2",
        Edit(
            GROUP + "_init_mp_dtypes",
            "next(iter(orig_dtypes)) if trainable_params else None",
            "self.fsdp_params[0].orig_dtype",
        ),
        silent=False,
    ),
    fault(
        "fsdp2_same_dtypes_reduce_wide",
        "reduce_dtype equal to param_dtype: accumulation keeps a second copy of each gradient",
        "mixed precision",
        "fsdp2",
        Edit(
            PARAM + "init_dtype_attrs",
            "if reduce_dtype == param_dtype:\n    reduce_dtype = None",
            "if reduce_dtype == param_dtype:\n    reduce_dtype = self.orig_dtype",
        ),
    ),
    fault(
        "fsdp2_inputs_not_cast",
        "under mixed precision a unit's inputs keep their dtype, and matrices do not fit",
        "mixed precision",
        "fsdp2",
        Edit(
            STATE + "_cast_forward_inputs",
            "not (self._mp_policy.cast_forward_inputs and self._mp_policy.param_dtype)",
            "not self._mp_policy.cast_forward_inputs or self._is_root",
        ),
        Edit(
            STATE + "_pre_forward",
            "self._mp_policy.cast_forward_inputs and self._mp_policy.param_dtype",
            "self._mp_policy.cast_forward_inputs and self._mp_policy.param_dtype "
            "and not self._is_root",
        ),
        silent=False,
    ),
    fault(
        "fsdp2_output_dtype_ignored",
        "output_dtype of the mixed-precision policy has no effect",
        "mixed precision",
        "fsdp2",
        Edit(
            STATE + "_cast_output_dtype",
            "self._mp_policy.output_dtype is None",
            "self._mp_policy.output_dtype is None or self._mp_policy.param_dtype is not None",
        ),
        Edit(
            STATE + "_post_forward",
            "self._mp_policy.output_dtype is not None",
            "self._mp_policy.output_dtype is not None and self._mp_policy.param_dtype is None",
        ),
    ),
    fault(
        "fsdp2_offloaded_not_cast",
        "CPU offload with mixed precision gathers in full precision",
        "offload",
        "fsdp2",
        Edit(
            PARAM + "all_gather_inputs",
            "[_to_dtype_if_needed(sharded_param_data, self.param_dtype)]",
            "[sharded_param_data]",
        ),
        silent=False,
    ),
    fault(
        "fsdp2_offload_refused",
        "training with CPUOffloadPolicy is refused although all parameters are on the CPU",
        "offload",
        "fsdp2",
        Edit(
            GROUP + "_validate_cpu_offload_params",
            "fsdp_param.sharded_param.device.type != 'cpu'",
            "fsdp_param.sharded_param.device.type == 'cpu'",
        ),
        silent=False,
    ),
    fault(
        "fsdp2_offloaded_gradient_not_waited_for",
        "with CPU offload the optimizer reads gradients that are still being copied",
        "offload",
        "fsdp2",
        Edit(
            GROUP + "finalize_backward",
            "fsdp_param.grad_offload_event.synchronize()",
            "None",
        ),
        needs="gpu",
    ),
    fault(
        "fsdp2_stale_shard_after_assign",
        "a model made on the meta device trains with the memory it had before initialisation",
        "meta initialisation",
        "fsdp2",
        Edit(
            PARAM + "reset_sharded_param",
            "self._sharded_param_data = local_tensor.view(-1)",
            "self._sharded_param_data = self._sharded_param_data.view(-1)",
        ),
    ),
    fault(
        "fsdp2_meta_parameters_not_refused",
        "a model still on the meta device is trained without the documented error",
        "meta initialisation",
        "fsdp2",
        Edit(GROUP + "lazy_init", "self._validate_no_meta_params()", "None"),
        silent=False,
    ),
    fault(
        "fsdp2_ignored_parameters_sharded",
        "parameters named in ignored_params are sharded with the rest",
        "ignored parameters",
        "fsdp2",
        Edit(
            INIT + "_get_managed_states",
            "if param in ignored_params:\n    continue",
            "pass",
        ),
    ),
)
