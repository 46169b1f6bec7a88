"""Rule about the optimizer's state dict: it holds what the reference's optimizer holds."""

from __future__ import annotations

from fsdpfuzz.case.operations.optim_state import OPTIM_STATE
from fsdpfuzz.invariants.parity import WholeParity


class OptimizerState(WholeParity):
    """What is saved of each parameter; what is loaded, the parity of parameters afterwards."""

    name = "optim_state"
    summary = "an optimizer's state dict holds the reference's state of each parameter"
    wrong = "saves a wrong state of the optimizer"
    quantities = ()
    results = (OPTIM_STATE,)


OPTIM = (OptimizerState(),)
