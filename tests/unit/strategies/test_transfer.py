"""Checkpoints are loaded by other models of every form, and shrink to a plain one and to none."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import get_args

import pytest

from fsdpfuzz.case import CaseSpec, is_sound
from fsdpfuzz.case.operations.transfer import Into, Transfer
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import sample


def asked(case: CaseSpec) -> list[Transfer]:
    return [op for op in case.program if isinstance(op, Transfer)]


def test_every_form_is_drawn_on_both_apis() -> None:
    found = [case for focus in FOCUSES for case in sample(focus).cases if asked(case)]
    assert all(map(is_sound, found))
    ops = [(case.api, op) for case in found for op in asked(case)]
    forms = Counter((api, op.into) for api, op in ops)
    assert min(forms[api, into] for api in ("fsdp1", "fsdp2") for into in get_args(Into)) > 5
    assert {op.ranks for _, op in ops} == {None, 1, 2}
    assert {op.state for _, op in ops} == {False, True}
    assert {(op.state, op.together) for _, op in ops} == {
        (False, False),
        (True, False),
        (True, True),
    }
    assert {(op.into, op.compiled) for _, op in ops} == set(product(get_args(Into), (False, True)))


@pytest.mark.parametrize("option", ["together", "compiled"])
def test_a_demand_keeps_one_option(option: str) -> None:
    def wanted(case: CaseSpec) -> bool:
        return any(getattr(op, option) for op in asked(case))

    kept = Transfer(compiled=True) if option == "compiled" else Transfer(state=True, together=True)
    shrinks_to(lambda case: asked(case) == [kept], cases(), wanted)


def test_it_shrinks_to_a_plain_model_and_to_none() -> None:
    shrinks_to(lambda case: asked(case) == [Transfer()], cases(), asked)
    assert not asked(minimal(cases()))
