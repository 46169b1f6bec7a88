"""Faults that show where a program does more than to train: evaluations of another kind."""

from __future__ import annotations

from benchmarks.faults._edit import Edit, fault

RUNTIME = "torch.distributed.fsdp._runtime_utils:"
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
)
