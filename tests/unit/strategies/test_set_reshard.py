"""`set_reshard_after_forward` is drawn for fsdp2, and shrinks to one in the only iteration."""

from __future__ import annotations

from fsdpfuzz.case import NEWER, CaseSpec, is_sound
from fsdpfuzz.case.operations import SetReshard
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import sample


def told(case: CaseSpec) -> list[SetReshard]:
    return [op for op in case.program if isinstance(op, SetReshard)]


def test_it_is_drawn_in_all_forms() -> None:
    found = [case for focus in FOCUSES for case in sample(focus).cases]
    having = [case for case in found if told(case)]
    assert all(map(is_sound, having))
    assert {case.api for case in having} == {"fsdp2"}
    assert 0.01 < len(having) / len(found) < 0.05
    seen = {(op.reshard, op.recurse) for case in having for op in told(case)}
    assert len(seen) == 4
    assert 0.1 < sum(len(told(case)) > 1 for case in having) / len(having) < 0.6


def test_it_shrinks_to_one_and_to_none() -> None:
    one, offered = SetReshard(unit="", reshard=False), cases(apis=("fsdp2",), offers=tuple(NEWER))
    shrinks_to(lambda case: told(case) == [one], offered, lambda case: bool(told(case)))
    assert not told(minimal(cases(offers=tuple(NEWER))))
