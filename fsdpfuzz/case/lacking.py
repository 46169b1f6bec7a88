"""Whether a case may come to a backward with nothing to go back through, or to a missing gradient.

Both only depend on what is trained, called and recomputed, never on the plan.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from fsdpfuzz.case.inputs import Dense
from fsdpfuzz.case.operations.forward import calls_below_the_root
from fsdpfuzz.case.operations.requires_grad import RequiresGrad

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy


@lru_cache(maxsize=64)
def may_lack_backward(a: Anatomy) -> bool:
    """Whether a loss might not require grad, so that there is nothing to go back through."""
    if isinstance(a.case.inputs, Dense) and a.case.inputs.requires_grad:
        return False
    ops = a.case.program
    changed = {n for op in ops if isinstance(op, RequiresGrad) for n in op.parameters}
    # The target is the same tensor, and so frozen and unfrozen with its source.
    changed |= {target for target, source in a.source.items() if source in changed}
    never = a.frozen | changed
    used = {p.fqn for p in a.parameters if p.used}
    if never and a.switches:
        return True  # what is trained may lie in a branch that is not taken
    return (
        not used - never
        # Without an input that requires grad its outputs require none, trained as its modules may
        # be.
        or any(c.reentrant for c in a.case.checkpoints)
        or any(op.parts_ranks for op in ops)
        or calls_below_the_root(ops)
    )


@lru_cache(maxsize=64)
def may_lack_grads(a: Anatomy) -> bool:
    """Whether a trained parameter may have no gradient after a backward."""
    return (
        may_lack_backward(a)
        or bool(a.case.frozen)
        or any(op.changes_trained or op.drops_gradients for op in a.case.program)
        or bool(a.switches)
        or any(not p.used for p in a.parameters)
        or calls_below_the_root(a.case.program)
    )
