"""Parameters that keep their dtype are drawn in units of low precision, where they may."""

from __future__ import annotations

from fsdpfuzz.case import (
    NEWER,
    CaseSpec,
    Norm,
    Sequential,
    anatomy,
    is_sound,
    overrides_fit,
)
from fsdpfuzz.strategies import cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import features_of, large


def has(case: CaseSpec) -> bool:
    return features_of(case).get("param_dtype_override") == "on"


def test_some_norms_keep_their_dtype() -> None:
    found = [case for case in large("fine_tune") if has(case)]
    assert len(found) >= 5
    assert all(is_sound(case) and overrides_fit(anatomy(case)) for case in found)


def test_it_shrinks_to_a_norm() -> None:
    strategy = cases(focus="fine_tune", apis=("fsdp2",), offers=tuple(NEWER))

    def simple(case: CaseSpec) -> bool:
        model = case.model
        nodes = model.children if isinstance(model, Sequential) else (model,)
        alone = len(case.plan.units) == 1 and len(case.program) <= 3
        return len(nodes) <= 2 and isinstance(nodes[-1], Norm) and alone

    shrinks_to(simple, strategy, has, start=3)
    assert not has(minimal(strategy))
