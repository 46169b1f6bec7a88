"""Rule about gradient scaling: all ranks skip a step or none, and go on by the same scale."""

from __future__ import annotations

from fsdpfuzz.case.operations.update_scale import SCALE
from fsdpfuzz.invariants.parity import WholeParity


class Scale(WholeParity):
    """The scale; what is stepped or skipped, the parity of parameters."""

    name = "grad_scale"
    summary = "the scale of gradients is the reference's after each update"
    wrong = "goes on by a wrong scale of gradients"
    quantities = ()
    results = (SCALE,)


GRAD_SCALER = (Scale(),)
