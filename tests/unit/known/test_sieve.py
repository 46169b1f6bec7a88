"""What all known defects say of a case at once is what each of them says."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings

from fsdpfuzz.case import CaseSpec, anatomy
from fsdpfuzz.known.defect import Predicate, ways
from fsdpfuzz.known.sieve import Sieve
from fsdpfuzz.strategies import cases
from tests.unit.known.samples import shipped, two_layers


@pytest.fixture(scope="module")
def predicates() -> dict[str, Predicate]:
    """Of all that is known."""
    known = {name: defect.when for name, defect in shipped().defects.items()}
    assert len(known) > 100
    assert any(one.unit for one in known.values())
    assert any(one.parameter for one in known.values())
    return known


@settings(max_examples=60, deadline=None, derandomize=True, phases=(Phase.generate,))
@given(case=cases())
def test_it_lets_pass_what_covers_a_case(predicates: dict[str, Predicate], case: CaseSpec) -> None:
    runs = ways(case)
    expected = tuple(name for name, one in predicates.items() if any(map(one.covers, runs)))
    assert Sieve(predicates).covering(runs) == expected


def test_each_passes_its_own_smallest_case() -> None:
    known = shipped()
    sieve = Sieve({name: defect.when for name, defect in known.defects.items()})
    for name in known.defects:
        assert name in sieve.covering(ways(known.minimal(name))), name


def test_they_come_in_their_order_and_each_once() -> None:
    a = anatomy(two_layers())
    wide, api = Predicate(case={"api": ("fsdp1", "fsdp2")}), Predicate(case={"api": (a.case.api,)})
    never = Predicate(case={"api": ("fsdp1", "fsdp2"), "clip": ("never",)})
    sieve = Sieve({"b": wide, "c": never, "a": api})
    assert sieve.covering([a, a]) == ("b", "a")
    assert sieve.covering([]) == ()
