"""Every invariant passes a clean observation and fails on the fault it is there for."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import anatomy, check, variants
from fsdpfuzz.case.recipe import Call, values
from fsdpfuzz.invariants import REGISTRY, invariant_of, judge
from fsdpfuzz.invariants.evidence import WRONG
from fsdpfuzz.ranks._execute import resolve
from fsdpfuzz.verdict import Finding
from tests.unit.invariants.faults import FAULTS


def test_every_invariant_has_a_fault() -> None:
    assert set(FAULTS) == set(REGISTRY)


@pytest.mark.parametrize("name", FAULTS)
def test_the_invariant_passes_what_is_clean(name: str) -> None:
    given = FAULTS[name]
    check(given.case)
    verdict = judge(given.case, given.clean)
    assert verdict.findings == ()
    assert verdict.status == ("rejected" if name == "equal_rejection" else "passed")


def found(name: str) -> Finding:
    """The only finding of the invariant."""
    verdict = judge(FAULTS[name].case, FAULTS[name].fault)
    assert verdict.status == "finding"
    (finding,) = (finding for finding in verdict.findings if finding.invariant == name)
    return finding


@pytest.mark.parametrize("name", FAULTS)
def test_the_invariant_fails_on_its_fault(name: str) -> None:
    finding, due = found(name), FAULTS[name].key
    assert finding.key == due or (due.startswith(finding.key) and len(finding.kind) == MAX_KIND)
    assert finding.message
    assert invariant_of(finding) is REGISTRY[name]
    assert invariant_of(finding).summary
    assert invariant_of(finding).wrong


MAX_KIND = 120
"""Characters of an exception's text that go into a key."""


@pytest.mark.parametrize("name", FAULTS)
def test_what_shows_a_finding_is_there(name: str) -> None:
    finding = found(name)
    run = variants(FAULTS[name].case)[finding.variant or "case"]
    evidence = invariant_of(finding).evidence(anatomy(run), finding)
    if evidence.manner != "compare":
        assert evidence.judge == ()
        return
    assert evidence.judge[-1].into == (WRONG,)
    assert len(evidence.seen) == len(evidence.into)
    statements = (*evidence.first, *evidence.built, *evidence.each_forward, *evidence.judge)
    told = (*evidence.seen, evidence.right, *(do.call for do in statements))
    for value in (inner for outer in told for inner in values(outer)):
        if isinstance(value, Call) and isinstance(value.function, str):
            assert value.function.startswith((".", "recipe.")) or callable(resolve(value.function))
