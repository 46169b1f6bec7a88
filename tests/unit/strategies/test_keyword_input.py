"""Some programs pass inputs by keyword."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, is_sound
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import sample


def by_keyword(case: CaseSpec) -> bool:
    return case.keyword_input


def test_it_is_drawn_on_both_apis_for_any_call() -> None:
    found = [case for focus in FOCUSES for case in sample(focus).cases]
    having = [case for case in found if by_keyword(case)]
    assert 0.05 < len(having) / len(found) < 0.15
    assert all(map(is_sound, having))
    drawn = Counter((case.api, bool(op.called)) for case in having for op in case.program)
    assert all(drawn[api, below] for api in ("fsdp1", "fsdp2") for below in (False, True)), drawn


def test_it_shrinks_to_by_position() -> None:
    shrinks_to(
        lambda case: len(case.program) <= 3 and len(case.plan.units) == 1, cases(), by_keyword
    )
    assert not by_keyword(minimal(cases()))
