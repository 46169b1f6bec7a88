"""Rule about the optimizer's state dict: it holds what the reference's optimizer holds."""

from __future__ import annotations

from collections.abc import Iterable

from fsdpfuzz.case import Anatomy
from fsdpfuzz.case.names import parts_of
from fsdpfuzz.case.operations.optim_state import LEFT, LOADED, OPTIM_STATE, OPTIONS, OptimState
from fsdpfuzz.case.operations.step import STEPS_TAKEN
from fsdpfuzz.case.operations.transfer import GROUPS, STATE
from fsdpfuzz.case.recipe import OPTIMIZER, Inside, Variable, call
from fsdpfuzz.invariants.evidence import NAMED, RIGHT, SEEN, Evidence, judged, off
from fsdpfuzz.invariants.parity import WholeParity
from fsdpfuzz.observations import Comparison
from fsdpfuzz.verdict import Finding


class OptimizerState(WholeParity):
    """What is saved of each parameter, and what is loaded of numbers that stand beside tensors.

    Of another model that loads it all is looked at.

    What else is loaded, the parity of parameters afterwards. Gradients that loading leaves behind
    would move what has none of its own.
    """

    name = "optim_state"
    summary = "an optimizer's state dict holds the reference's state of each parameter"
    wrong = "saves a wrong state of the optimizer"
    quantities = ()
    results = (OPTIM_STATE, OPTIONS, LOADED, LEFT, STATE, GROUPS)

    def _about(self, comparisons: Iterable[Comparison]) -> Iterable[Comparison]:
        """A state of zeros is left out of what is compared, as if the parameter never stepped.

        Where rounding decides whether it is zero one side has it and the other has not: then its
        tensors are held against zeros, and the numbers beside them against nothing. Options, and
        what is loaded, are compared where both sides have them: an optimizer of fsdp1 may have
        flat parameters, and what is dropped shows as the number of steps, or where it is loaded.
        """
        about = super()._about(comparisons)
        found = [c for c in about if not c.missing or parts_of(c.name)[0] in (OPTIM_STATE, STATE)]
        left_out = {
            (c.op, c.missing, parts_of(c.name)[1])
            for c in found
            if c.missing and parts_of(c.name)[2] != STEPS_TAKEN
        }
        return [
            c
            for c in found
            if parts_of(c.name)[2] != STEPS_TAKEN
            or (c.op, c.missing, parts_of(c.name)[1]) not in left_out
        ]

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """The entry of the state dict where every rank has it under its names, else a table."""
        op = a.case.program[finding.op]
        result, fqn, entry = parts_of(finding.name)
        optimizer, saved = OPTIMIZER, Variable("saved")
        beside = result != OPTIM_STATE
        if not isinstance(op, OptimState) or op.flatten or op.on_rank0 or beside:
            return super().evidence(a, finding)
        if finding.detail.endswith("-missing"):
            seen = call("steps.optim_state.names", saved)
            right = call("steps.optim_state.stepped", optimizer, NAMED)
            judge = judged("other", "what is saved of parameters", SEEN, RIGHT)
        else:
            seen = call("steps.optim_state.entry", saved, fqn, entry, op.form == "full")
            p = Inside("model", a.canonical(fqn))
            right = call("steps.optim_state.held", optimizer, p, entry)
            judge = off(finding.name, SEEN, RIGHT, finding)
        # What an earlier one loaded is what this one saves.
        before = any(isinstance(earlier, OptimState) for earlier in a.case.program[: finding.op])
        return Evidence(
            last=finding.op,
            against="reference",
            loads_state=before,
            seen=(seen,),
            right=right,
            judge=judge,
        )


OPTIM = (OptimizerState(),)
