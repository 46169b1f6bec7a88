"""Changes of ``requires_grad`` that come between a forward and any backward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.hazards.unit_calls import calls_for_backward, calls_of_units
from fsdpfuzz.case.operations.requires_grad import alone
from fsdpfuzz.case.paths import within

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy

_NO, _CALLED, _RECORDED = "no", "called", "recorded"


class ChangedAloneDimension(Hazard):
    """Parameters that are frozen or unfrozen while their unit is as a forward left it."""

    name = "changed_alone"
    parameter_features: ClassVar[Mapping[str, Feature]] = {
        "changed_alone": Feature(
            about="no, called, recorded: requires_grad of the parameter changes after its unit was "
            "called by a forward, or by one that records gradients, while no backward has come to "
            "the outermost unit around it since",
            group="Training",
            values=(_NO,),
            open=True,
        ),
    }

    def parameter_values(self, a: Anatomy, fqn: str) -> Iterator[tuple[str, str]]:
        """Of one parameter."""
        yield "changed_alone", changed_alone(a).get(a.canonical(fqn), _NO)


@lru_cache(maxsize=64)
def changed_alone(a: Anatomy) -> Mapping[str, str]:
    """How the units had been called of parameters that change so."""
    found: dict[str, str] = {}
    changes = any(op.changes_trained for op in a.case.program)
    for rank in a.telling_ranks if changes else ():
        called: dict[str, str] = {}
        before: dict[str, bool] = {}
        for i, op, now, lone in alone(a, rank):
            b = a.at(i)
            called = {u: how for u, how in called.items() if any(within(u, r) for r in lone)}
            how = _RECORDED if calls_for_backward(b, op, now) else _CALLED
            for unit, _ in calls_of_units(b, op, now):
                called[unit] = _RECORDED if called.get(unit) == _RECORDED else how
            for name in (n for n, value in before.items() if now.trained[n] is not value):
                if (owner := now.owners[name]) in called:
                    source = b.canonical(name)
                    found[source] = _RECORDED if found.get(source) == _RECORDED else called[owner]
            before = dict(now.trained)
    return found
