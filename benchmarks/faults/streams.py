"""Faults of what streams of a GPU wait for."""

from __future__ import annotations

from benchmarks.faults._edit import Edit, fault

RUNTIME = "torch.distributed.fsdp._runtime_utils:"
COLLECTIVES = "torch.distributed.fsdp._fully_shard._fsdp_collectives:"

FAULTS = (
    fault(
        "fsdp1_gathers_before_the_step_is_over",
        "forward gathers parameters that the optimizer is still writing",
        "fsdp1 runtime",
        "fsdp1",
        Edit(
            RUNTIME + "_wait_for_computation_stream",
            "unshard_stream.wait_stream(computation_stream)",
            "None",
            among=1,
        ),
        needs="gpu",
    ),
    fault(
        "fsdp1_reduces_before_backward_is_over",
        "gradients are reduced while backward is still writing them",
        "fsdp1 runtime",
        "fsdp1",
        Edit(
            RUNTIME + "_post_backward_hook",
            "state._post_backward_stream.wait_stream(state._device_handle.current_stream())",
            "None",
        ),
        needs="gpu",
    ),
    fault(
        "fsdp1_offloaded_gradient_not_waited_for",
        "with CPU offload the optimizer reads gradients that are still being copied",
        "offload",
        "fsdp1",
        Edit(
            RUNTIME + "_post_backward_final_callback",
            "if root_state.cpu_offload.offload_params:\n"
            "    state._device_handle.current_stream().synchronize()",
            "pass",
        ),
        needs="gpu",
    ),
    fault(
        "fsdp2_reduces_before_backward_is_over",
        "gradients are reduced while backward is still writing them",
        "fsdp2 runtime",
        "fsdp2",
        Edit(
            COLLECTIVES + "foreach_reduce",
            "reduce_scatter_stream.wait_stream(current_stream)",
            "None",
        ),
        needs="gpu",
    ),
    fault(
        "fsdp2_streams_not_joined",
        "forward reads a unit's parameters before they are gathered",
        "fsdp2 runtime",
        "fsdp2",
        Edit(
            COLLECTIVES + "foreach_all_gather_copy_out",
            "if all_gather_event is not None:\n"
            "    device_handle.current_stream().wait_event(all_gather_event)",
            "pass",
        ),
        needs="gpu",
    ),
)
