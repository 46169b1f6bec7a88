"""Whole parameters are read and written with all options, where no iteration is under way."""

from __future__ import annotations

from fsdpfuzz.case import CaseSpec, is_orderly, is_sound
from fsdpfuzz.case.operations import FullParams
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import sample


def asked(case: CaseSpec) -> list[FullParams]:
    return [op for op in case.program if isinstance(op, FullParams)]


def test_they_are_drawn_most_where_state_is_looked_at() -> None:
    share = {
        focus: sum(map(bool, map(asked, sample(focus).cases))) / len(sample(focus).cases)
        for focus in FOCUSES
    }
    assert 0.10 < share["state_dict"] < 0.25
    assert all(0.0 < share[focus] < share["state_dict"] for focus in FOCUSES[:1])


def test_every_option_is_drawn() -> None:
    found = [case for focus in FOCUSES for case in sample(focus).cases if asked(case)]
    assert all(map(is_sound, found))
    assert all(is_orderly(case.program) for case in found)
    ops = [(case.api, op) for case in found for op in asked(case)]
    for api, option in (("fsdp1", "written"), ("fsdp1", "offload_to_cpu"), ("fsdp2", "async_op")):
        assert sum(bool(getattr(op, option)) for at, op in ops if at == api) >= 5, option


def test_they_shrink_to_reading_and_to_none() -> None:
    shrinks_to(lambda case: asked(case) == [FullParams()], cases(), asked)
    assert not asked(minimal(cases()))
