"""Faults that show where a program does more than to train: other evaluations, exceptions."""

from __future__ import annotations

from benchmarks.faults._edit import Edit, fault

RUNTIME = "torch.distributed.fsdp._runtime_utils:"
HANDLE = "torch.distributed.fsdp._flat_param:FlatParamHandle."
PARAM = "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam."

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
)
