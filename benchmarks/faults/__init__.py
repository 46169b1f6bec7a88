"""Faults in torch, injected in ranks to learn what the fuzzer finds.

The list is made from torch's source and from the bugs that it has had, not from what is found.
``python -m benchmarks.faults [TREE]`` says which of them fit the torch that is installed, or the
one whose files lie below ``TREE``.
"""

from __future__ import annotations

from benchmarks.faults import (
    around,
    flat_parameter,
    fsdp1_runtime,
    fsdp2_parameters,
    fsdp2_runtime,
    models,
    optimizer_state,
    parallel,
    programs,
    reduction,
    saving,
    streams,
    wrapping,
)
from benchmarks.faults._edit import Edit, EditError, Fault, changed_code, chosen, inject

FAULTS: dict[str, Fault] = {}
for _module in (
    fsdp1_runtime,
    flat_parameter,
    fsdp2_runtime,
    fsdp2_parameters,
    reduction,
    saving,
    optimizer_state,
    programs,
    around,
    models,
    wrapping,
    parallel,
    streams,
):
    for _fault in _module.FAULTS:
        if _fault.id in FAULTS:
            raise ValueError(f"two faults are called {_fault.id}")
        FAULTS[_fault.id] = _fault

__all__ = ["FAULTS", "Edit", "EditError", "Fault", "changed_code", "chosen", "inject"]
