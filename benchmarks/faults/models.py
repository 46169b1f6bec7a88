"""Faults that show only where a model has certain modules, or parameters of certain shapes."""

from __future__ import annotations

from benchmarks.faults._edit import Edit, fault
from benchmarks.faults.fsdp2_runtime import GROUP, STATE
from benchmarks.faults.saving import DCP
from benchmarks.faults.saving import FSDP1 as SAVING

PARAM = "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam."
HANDLE = "torch.distributed.fsdp._flat_param:FlatParamHandle."
WRAP = "torch.distributed.fsdp.wrap:"
POST_BACKWARD = (
    "torch.distributed.fsdp._fully_shard._fsdp_param_group:RegisterPostBackwardFunction.backward"
)

FAULTS = (
    fault(
        "fsdp2_convolution_gradients_transposed",
        "the gradients of a convolution's weight belong to other elements of it",
        "parameter group",
        "fsdp2",
        Edit(
            PARAM + "_init_sharded_param",
            "make_contiguous_strides_for(self.sharded_size)",
            "make_contiguous_strides_for(self.sharded_size, len(self.sharded_size) < 3)",
        ),
    ),
    fault(
        "fsdp1_batch_norm_in_low_precision",
        "with a policy, mixed precision also takes the batch norms, whose buffers it leaves",
        "mixed precision",
        "fsdp1",
        Edit(
            WRAP + "_run_mixed_precision_override_policy",
            "target_module_to_kwargs[module]['mixed_precision'] = None",
            "pass",
        ),
        silent=False,
    ),
    fault(
        "fsdp1_policy_passes_over_subclasses",
        "a policy by classes finds no layer of a subclass, as one with weight norm is: memory and "
        "traffic are those of one unit",
        "fsdp1 runtime",
        "fsdp1",
        Edit(
            WRAP + "ModuleWrapPolicy._run_policy",
            "isinstance(module, module_classes)",
            "type(module) in module_classes",
        ),
    ),
    fault(
        "fsdp2_left_out_unit_reduces_zeros",
        "a unit that a forward leaves out reduces zeros, with which momentum moves its parameters",
        "fsdp2 runtime",
        "fsdp2",
        Edit(
            STATE + "_root_post_backward_final_callback",
            "if fsdp_param_group._training_state != TrainingState.POST_BACKWARD:\n"
            "    fsdp_param_group.post_backward()",
            "if fsdp_param_group._training_state == TrainingState.IDLE:\n"
            "    fsdp_param_group.reduce_scatter_unused_params = True\n"
            "if fsdp_param_group._training_state != TrainingState.POST_BACKWARD:\n"
            "    fsdp_param_group.post_backward()",
        ),
    ),
    fault(
        "fsdp2_unit_without_pre_backward_unreduced",
        "of a unit that puts out nothing which requires grad the gradients stay unreduced, though "
        "a layer in it gives the loss something",
        "fsdp2 runtime",
        "fsdp2",
        Edit(
            STATE + "_root_post_backward_final_callback",
            "fsdp_param_group.post_backward()",
            "reduces, begun = fsdp_param_group.reduce_grads, TrainingState.PRE_BACKWARD\n"
            "if fsdp_param_group._training_state != begun:\n"
            "    fsdp_param_group.reduce_grads = False\n"
            "fsdp_param_group.post_backward()\n"
            "fsdp_param_group.reduce_grads = reduces",
        ),
    ),
    fault(
        "fsdp2_unit_without_rows_reduced_late",
        "a unit that is called with no rows is reduced when the backward ends: other ranks, which "
        "call it with some, reduce another unit at its place",
        "fsdp2 runtime",
        "fsdp2",
        Edit(
            GROUP + "_register_post_backward_hook",
            "not inp_tensors",
            "not all(t.numel() for t in inp_tensors)",
        ),
    ),
    fault(
        "fsdp2_gradient_of_first_input",
        "of all that goes into a unit the first tensor alone gets a gradient",
        "fsdp2 runtime",
        "fsdp2",
        Edit(
            POST_BACKWARD,
            "return (None,) + grads",
            "return (None, grads[0]) + (None,) * (len(grads) - 1)",
        ),
    ),
    fault(
        "fsdp1_unit_without_extra_state",
        "a state dict lacks the extra state of a unit's own module",
        "state dict",
        "fsdp1",
        Edit(
            SAVING + "_common_unshard_post_state_dict_hook",
            "_replace_by_prefix(state_dict, prefix + f'{FSDP_PREFIX}', prefix)",
            "_replace_by_prefix(state_dict, prefix + f'{FSDP_PREFIX}', prefix)\n"
            "state_dict.pop(f'{prefix}_extra_state', None)",
        ),
    ),
    fault(
        "dcp_extra_state_not_loaded",
        "loading a state dict leaves extra state as it was",
        "state dict",
        "both",
        Edit(
            DCP + "_load_model_state_dict",
            "_state_dict_fn(model, 'load_state_dict')"
            "(state_dict=state_dict, strict=info.strict, assign=assign)",
            "_state_dict_fn(model, 'load_state_dict')"
            "({k: v for k, v in state_dict.items() if '_extra_state' not in k}, strict=False)",
        ),
    ),
    fault(
        "fsdp1_strides_forgotten",
        "what is not contiguous is read from the flat parameter as if it were: forward computes "
        "with other values",
        "flat parameter",
        "fsdp1",
        Edit(
            HANDLE + "_get_unflat_views_unaligned",
            "subtensor.view(shape) if contiguous else subtensor.as_strided(shape, stride)",
            "subtensor.view(shape)",
        ),
    ),
)
