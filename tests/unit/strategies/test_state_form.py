"""The form of some state dicts of fsdp1 is set for those that follow."""

from __future__ import annotations

from fsdpfuzz.case import CaseSpec, StateDict, is_sound
from fsdpfuzz.strategies import cases
from tests.unit.strategies.minimal import shrinks_to
from tests.unit.strategies.sample import sample


def taken(case: CaseSpec, *given: str) -> list[StateDict]:
    return [op for op in case.program if isinstance(op, StateDict) and op.given in given]


def test_some_are_set_and_some_of_these_kept() -> None:
    found = [case for case in sample("state_dict").cases if case.api == "fsdp1"]
    for given in ("set", "kept"):
        having = [case for case in found if taken(case, given)]
        assert 0.05 < len(having) / len(found) < 0.45
        assert all(map(is_sound, having))
        assert {op.form for case in having for op in taken(case, given)} > {"full", "sharded"}
    assert not any(taken(case, "set") for case in sample("state_dict").cases if case.api == "fsdp2")


def test_one_that_is_kept_shrinks_to_a_full_one() -> None:
    strategy = cases(focus="state_dict", apis=("fsdp1",))
    kept = StateDict(given="kept")
    shrinks_to(lambda c: taken(c, "kept") == [kept], strategy, lambda c: taken(c, "kept"))
