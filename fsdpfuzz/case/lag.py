"""Computation that starts late on a GPU, as real models' does beside small communication."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

import msgspec

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Dimension, Feature, Simpler
from fsdpfuzz.case.recipe import Do, Variable, call

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.operations import Op
    from fsdpfuzz.case.spec import CaseSpec


# FSDP gathers and reduces on streams of its own. Small layers are done before these begin, and
# whoever forgets to wait for them gets away with it. Not before a step: what that leaves is
# compared at once, which waits for all.
class LagDimension(Dimension):
    """Whether FSDP's computation lags behind its collectives; on a CPU it never does."""

    name = "lag"
    features: ClassVar[Mapping[str, Feature]] = {
        "lag": Feature(
            about="on when each forward and backward of FSDP's model begins late on a GPU, so "
            "that collectives run ahead of it",
            group="Training",
            values=ON,
        )
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Whether it does."""
        yield "lag", on(a.case.lag)

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """That it does."""
        if case.lag:
            yield "computation", "begins late on a GPU"

    def check(self, a: Anatomy) -> None:
        """It goes with any case."""

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """Without."""
        if case.lag:
            yield Simpler(msgspec.structs.replace(case, lag=False), "computation that begins late")


def lagging(case: CaseSpec, op: Op) -> Iterator[Do]:
    """What keeps the stream busy that an operation computes on."""
    if case.lag and (op.runs_model or op.gives_gradients):
        yield Do(call=call("steps.lag.linger", Variable("device")), who="fsdp")
