"""What is recomputed from inputs that lost their strides on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.modules import MULTIHEAD
from fsdpfuzz.case.operations.interrupt import root_calls

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy


class OffloadedInputDimension(Hazard):
    """Whether a checkpoint under ``save_on_cpu`` is given what attention put out."""

    name = "offloaded_input"
    features: ClassVar[Mapping[str, Feature]] = {
        "offloaded_input": Feature(
            about="on when what is called after attention is recomputed from inputs on the CPU",
            group="Training",
            # In too few programs for each pair with it to be waited for.
            values=("off",),
            open=True,
        )
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Whether any is; a reentrant one does not look at what it recomputes."""
        moved = (c for c in a.case.checkpoints if c.offloads and c.recomputes)
        paths = {c.path for c in moved if not c.reentrant}
        yield "offloaded_input", on(bool(paths) and _follow_attention(a, paths))


# Out of attention comes a transposed view. ``save_on_cpu`` in torch/autograd/graph.py keeps its
# values, and not its strides.
def _follow_attention(a: Anatomy, paths: set[str]) -> bool:
    """Whether any of these modules is called once attention was, in the same forward."""
    for _, op, now in a.situations(0):
        attended = False
        for call in root_calls(a, now) if op.waits else ():
            if attended and call.path in paths:
                return True
            attended |= a.by_path[call.path].kind == MULTIHEAD
    return False
