"""Faults that show only where a model has certain modules, or parameters of certain shapes."""

from __future__ import annotations

from benchmarks.faults._edit import Edit, fault

PARAM = "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam."
WRAP = "torch.distributed.fsdp.wrap:"

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
)
