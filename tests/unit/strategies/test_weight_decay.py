"""Weight decay is drawn where it may be, and shrinks away."""

from __future__ import annotations

from fsdpfuzz.case import CaseSpec, anatomy, is_sound, variants
from fsdpfuzz.case.stepped import lacks_gradients
from fsdpfuzz.strategies import FOCUSES, cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import features_of, sample


def decays(case: CaseSpec) -> bool:
    return case.optimizer is not None and case.optimizer.weight_decay > 0


def test_it_is_drawn_with_every_optimizer() -> None:
    drawn = [case for focus in FOCUSES for case in sample(focus).cases]
    found = [case for case in drawn if decays(case)]
    assert 0.1 < len(found) / len(drawn) < 0.2
    assert {c.optimizer.name for c in found if c.optimizer} == {"sgd", "adam", "adamw"}
    assert {case.api for case in found} == {"fsdp1", "fsdp2"}
    runs = [run for case in found for run in variants(case).values()]
    assert all(map(is_sound, found))
    assert not any(lacks_gradients(anatomy(run)) for run in runs)


def test_it_shrinks_to_itself_alone_and_away() -> None:
    plain = minimal(cases())
    assert not decays(plain)
    alone = {**features_of(plain), "weight_decay": "on"}

    def simple(case: CaseSpec) -> bool:
        return dict(features_of(case)) == alone

    def trains(case: CaseSpec) -> bool:
        return decays(case) and features_of(case)["steps"] == features_of(plain)["steps"]

    shrinks_to(simple, cases(), trains)
