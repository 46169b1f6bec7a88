"""Computation that begins late is drawn now and then, and shrinks to itself alone and away."""

from __future__ import annotations

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.strategies import cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import features_of, sample


def test_it_is_drawn_of_both_apis() -> None:
    having = [case for case in sample("parity").cases if case.lag]
    assert {case.api for case in having} == {"fsdp1", "fsdp2"}
    assert 0.02 < len(having) / len(sample("parity").cases) < 0.2


def test_it_shrinks_to_itself_alone_and_away() -> None:
    plain = features_of(minimal(cases()))

    def simple(case: CaseSpec) -> bool:
        return {name for name, value in features_of(case).items() if value != plain[name]} == {
            "lag"
        }

    shrinks_to(simple, cases(apis=("fsdp1",)), lambda case: case.lag)
    assert not minimal(cases()).lag
