"""How often units reshard is looked at under the plan that holds by then."""

from __future__ import annotations

from msgspec.structs import replace

from fsdpfuzz.case import Backward, Forward, Fsdp1Plan, Fsdp1Unit, Rebuild
from fsdpfuzz.invariants import judge
from tests.unit.invariants.observed import CASE, observed, subject

ROOT, INNER = Fsdp1Unit(path=""), Fsdp1Unit(path="0")
LESS = "reshard_count/mismatch/fsdp1:less"


def test_units_of_a_later_plan_are_looked_at() -> None:
    both = Fsdp1Plan(units=(INNER, ROOT))
    once = (Forward(), Backward())
    case = replace(CASE, plan=Fsdp1Plan(units=(ROOT,)), program=(*once, Rebuild(plan=both), *once))
    for later, found in (({"": 1, "0": 1}, []), ({"": 1}, [LESS])):
        seen = observed(subject(backward_reshards=({"": 1}, later)), case=case)
        assert [finding.key for finding in judge(case, seen).findings] == found


def test_of_units_that_the_plan_does_not_have_another_rule_tells() -> None:
    case = replace(CASE, plan=Fsdp1Plan(units=(ROOT,)))
    made = subject(backward_reshards=({"": 1, "0": 1},))
    found = [finding.key for finding in judge(case, observed(made, case=case)).findings]
    assert found == ["wrapped_as_planned/mismatch/fsdp1:more"]
