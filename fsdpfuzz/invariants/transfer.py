"""Rule about a checkpoint that another model loads: it has the reference's parameters."""

from __future__ import annotations

from fsdpfuzz.case.operations.transfer import PARAMETERS
from fsdpfuzz.invariants.parity import WholeParity


class Transferred(WholeParity):
    """Its parameters; what its optimizer holds, the rule about optimizers' states."""

    name = "transferred"
    summary = "what another model loads from a checkpoint is the reference's"
    wrong = "gives another model wrong values from a checkpoint"
    quantities = ()
    results = (PARAMETERS,)


TRANSFER = (Transferred(),)
