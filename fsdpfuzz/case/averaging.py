"""How the plain model averages gradients over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdpfuzz.case.lacking import may_lack_grads
from fsdpfuzz.case.recipe import Do, Value, Who, call
from fsdpfuzz.case.strides import transposed

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy


def average(a: Anatomy, parameters: Value, who: Who = "both") -> Do:
    """Of parameters, some of which may have no gradient or one that is not contiguous."""
    told = {"lacking": may_lack_grads(a), "strided": bool(transposed(a))}
    options: dict[str, Value] = {name: True for name, value in told.items() if value}
    return Do(call=call("steps.averaging.average", parameters, **options), who=who)
