"""The optimizer's state is taken and loaded with every option, after a step."""

from __future__ import annotations

from fsdpfuzz.case import CaseSpec, is_orderly, is_sound
from fsdpfuzz.case.operations import OptimState
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import minimal
from tests.unit.strategies.sample import sample


def asked(case: CaseSpec) -> list[OptimState]:
    return [op for op in case.program if isinstance(op, OptimState)]


def test_it_is_drawn_most_where_state_is_looked_at() -> None:
    share = {
        focus: sum(map(bool, map(asked, sample(focus).cases))) / len(sample(focus).cases)
        for focus in ("parity", "state_dict")
    }
    assert 0.03 < share["parity"] < 0.15
    assert 0.15 < share["state_dict"] < 0.4


def test_every_option_is_drawn_in_both_apis() -> None:
    found = [case for focus in FOCUSES for case in sample(focus).cases if asked(case)]
    assert all(map(is_sound, found))
    assert all(is_orderly(case.program) for case in found)
    for api in ("fsdp1", "fsdp2"):
        ops = [op for case in found if case.api == api for op in asked(case)]
        assert {op.form for op in ops} == {"full", "sharded"}
        for option in ("offload", "broadcast", "flatten", "ignore_frozen", "fresh"):
            assert sum(getattr(op, option) for op in ops) >= 3, option
        assert {op.strict for op in ops} == {False, True}
        assert any(op.own for op in ops) is (api == "fsdp1")


def test_it_shrinks_to_a_full_one_and_to_none() -> None:
    assert asked(minimal(cases(), asked)) == [OptimState()]
    assert not asked(minimal(cases()))
