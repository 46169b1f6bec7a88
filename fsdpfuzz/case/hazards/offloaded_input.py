"""What is recomputed from inputs that lost their strides on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.modules import MULTIHEAD
from fsdpfuzz.case.operations.interrupt import root_calls
from fsdpfuzz.case.paths import innermost, within

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.checkpoints import Checkpoint


class OffloadedInputDimension(Hazard):
    """Whether a checkpoint under ``save_on_cpu`` is given what attention put out."""

    name = "offloaded_input"
    features: ClassVar[Mapping[str, Feature]] = {
        "offloaded_input": Feature(
            about="on when what is called after attention is recomputed from inputs on the CPU, "
            "without reentrance",
            group="Training",
            # In too few programs for each pair with it to be waited for.
            values=("off",),
            open=True,
        ),
        "offloaded_dropout": Feature(
            about="on when dropout that is called after attention is recomputed from inputs on "
            "the CPU",
            group="Training",
            values=("off",),
            open=True,
        ),
    }
    parameter_features: ClassVar[Mapping[str, Feature]] = {
        "offloaded_dropout": Feature(
            about="on when such dropout comes after the parameter's module was called",
            group="Training",
            values=("off",),
            open=True,
        ),
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Whether any is; a reentrant one does not look at what it recomputes."""
        yield "offloaded_input", on(any(not c.reentrant for c, _ in _after_attention(a)))
        yield "offloaded_dropout", on(bool(_redrawn(a)))

    def parameter_values(self, a: Anatomy, fqn: str) -> Iterator[tuple[str, str]]:
        """Whether its gradient goes through such dropout."""
        yield "offloaded_dropout", on(a.canonical(fqn) in _redrawn(a))


# Out of attention comes a transposed view. ``save_on_cpu`` with pinned memory, in
# torch/autograd/graph.py, keeps its values, and not its strides.
def _after_attention(a: Anatomy) -> Iterator[tuple[Checkpoint, list[str]]]:
    """Checkpoints under ``save_on_cpu`` behind attention, with what was called by their end."""
    offloaded = [c.path for c in a.case.checkpoints if c.offloads]
    moved = {
        c.path: c
        for c in a.case.checkpoints
        if c.recomputes and any(within(c.path, path) for path in offloaded)
    }
    for _, op, now in a.situations(0):
        paths = [call.path for call in root_calls(a, now)] if op.waits and moved else []
        attended = False
        for i, path in enumerate(paths):
            if attended and path in moved:
                after = (k for k in range(i, len(paths)) if not within(paths[k], path))
                yield moved[path], paths[: next(after, len(paths))]
            attended |= a.by_path[path].kind == MULTIHEAD


# Dropout draws its mask in the order of the strides, so that in backward it drops others.
@lru_cache(maxsize=64)
def _redrawn(a: Anatomy) -> frozenset[str]:
    """Parameters whose gradient goes through dropout that is recomputed from other strides."""
    random = [p.path for p in a.places if p.node is not None and p.node.draws_random()]
    found: set[str] = set()
    for checkpoint, called in _after_attention(a):
        if any(within(path, checkpoint.path) for path in random):
            owners = {p.fqn: innermost(p.fqn, a.by_path) for p in a.parameters}
            found |= {a.canonical(fqn) for fqn, owner in owners.items() if owner in called}
    return frozenset(found)
