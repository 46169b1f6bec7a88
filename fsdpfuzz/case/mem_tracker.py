"""Training under ``FSDPMemTracker``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Dimension, Feature, Simpler
from fsdpfuzz.case.operations import Backward, Forward, Step, ZeroGrad
from fsdpfuzz.case.tensor_parallel import ANY_CUT
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec

Probe = Literal["mem_tracker"]
_RUNS = Forward | Backward | Step | ZeroGrad


class MemTrackerDimension(Dimension):
    """Whether the training runs under the memory tracker, whose figures are then judged."""

    name = "mem_tracker"
    features: ClassVar[Mapping[str, Feature]] = {
        "mem_tracker": Feature(
            about="on when the training runs under FSDPMemTracker (fsdp2 only)",
            group="Training",
            values=ON,
            apis=("fsdp2",),
            excludes={
                "on": {
                    "root": ("open",),
                    "eval": ("on",),
                    "flips": ("some", "all"),
                    "refrozen": ("yes", "after lone forward"),
                    "masked": ("some", "all"),
                    "state_dict": ("full", "sharded", "several"),
                    "optim_state": ("full", "sharded", "several"),
                    "clip": ("2", "1", "inf", "1 and 2", "inf and other"),
                    "cleared": ("part", "whole", "mixed"),
                    "rescaled": ("in place",),
                    "applied": ("scaled", "smoothed", "several"),
                    "applied_below": ("on",),
                    "learning_rate": ("lowered", "raised", "both"),
                    "interrupted": ("begin", "end", "several"),
                    "recovered": ("begin", "end", "gradient"),
                    "second_backward": ("graph", "losses"),
                    "meanwhile": ("no_grad", "dropped", "inference_mode"),
                    "full_params": ("read", "written"),
                    "extensions": ("split", "wider", "mixed"),
                    **ANY_CUT,
                },
            },
        )
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Whether it is asked for."""
        if not a.fsdp1:
            yield "mem_tracker", on("mem_tracker" in a.case.probes)

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """The tracker, if it is asked for."""
        if case.probes:
            yield "probes", ", ".join(case.probes)

    def check(self, a: Anatomy) -> None:
        """The tracker follows one model of fsdp2 from its root, through plain iterations."""
        case = a.case
        if "mem_tracker" not in case.probes:
            return
        if a.fsdp1 or "" not in a.options:
            raise CaseError(
                "mem_tracker needs an fsdp2 plan with the root as a unit", path="$.probes"
            )
        if any(not c.path and c.side == "around" for c in case.checkpoints):
            raise CaseError(
                "mem_tracker needs the root bare: no checkpoint around it", path="$.probes"
            )
        if case.twins:
            raise CaseError("mem_tracker measures one plan; leave out the twins", path="$.probes")
        for i, op in enumerate(case.program):
            plain = not isinstance(op, Forward) or (op.grad and op.masked is None)
            if not isinstance(op, _RUNS) or not plain or op.goes_back_again:
                raise CaseError(
                    "mem_tracker runs plain forward, backward, step and zero_grad only",
                    path=f"$.program[{i}]",
                )

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """Without the tracker."""
        if case.probes:
            yield Simpler(msgspec.structs.replace(case, probes=()), "FSDPMemTracker")
