"""Faults in how a model is told apart into units of fsdp1."""

from __future__ import annotations

from benchmarks.faults._edit import Edit, fault

WRAP = "torch.distributed.fsdp.wrap:"

FAULTS = (
    fault(
        "fsdp1_units_counted_again",
        "a policy by size makes units of modules that hold nothing but units and a few parameters",
        "wrapping",
        "fsdp1",
        Edit(
            WRAP + "_recursive_wrap",
            "remainder = nonwrapped_numel - total_wrapped_numel",
            "remainder = nonwrapped_numel",
        ),
    ),
    fault(
        "fsdp1_ignored_wrapped_by_function",
        "modules that FSDP is told to ignore become units where the policy is a function",
        "wrapping",
        "fsdp1",
        Edit(
            WRAP + "_recursive_wrap",
            "if child in ignored_modules:\n    continue",
            "pass",
            which=2,
            among=2,
        ),
    ),
    fault(
        "fsdp1_wrap_options_lost",
        "under enable_wrap all units have its options, whatever wrap() says of one",
        "wrapping",
        "fsdp1",
        Edit(
            WRAP + "wrap",
            "{**_ConfigAutoWrap.kwargs, **wrap_overrides}",
            "{**wrap_overrides, **_ConfigAutoWrap.kwargs}",
        ),
    ),
)
