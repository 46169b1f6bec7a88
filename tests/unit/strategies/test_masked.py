"""In about a tenth of the cases a loss is an exact zero on one rank."""

from __future__ import annotations

from collections import Counter

from fsdpfuzz.case import CaseSpec, Forward, is_sound
from fsdpfuzz.strategies import cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import features_of, sample


def masked(case: CaseSpec) -> list[int]:
    ranks = (op.masked for op in case.program if isinstance(op, Forward))
    return [rank for rank in ranks if rank is not None]


def test_it_is_drawn_in_about_a_tenth_of_the_cases() -> None:
    found = sample("parity").cases
    having = [case for case in found if masked(case)]
    assert 0.06 < len(having) / len(found) < 0.16
    assert all(map(is_sound, having))
    assert Counter(features_of(case)["masked"] for case in having).keys() == {"some", "all"}
    last = Counter(case.world_size - 1 - max(masked(case)) for case in having)
    assert last[0] > 5, "the last rank"
    assert last[1] > 5


def test_it_shrinks_to_one_loss_on_rank_0_and_to_none() -> None:
    def simple(case: CaseSpec) -> bool:
        kinds = [op.kind() for op in case.program]
        return masked(case) == [0] and kinds == ["forward", "backward", "step"]

    shrinks_to(simple, cases(), masked)
    assert masked(minimal(cases())) == []
