"""What only newer releases of torch have is drawn where it is offered, and nowhere else."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import NEWER, CaseSpec, Fsdp2Unit, Op, anatomy, is_sound, needs_of_torch
from fsdpfuzz.strategies import cases
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import drawn, features_of, sample

OFFERED = {
    "unused_reduced": {"off", "on"},
    "reduce_buffers": {"one", "more"},
    "reduce_group": {"shared", "own"},
    "keep_unsharded_storage": {"off", "on"},
    "finalization": {"automatic", "manual", "async"},
    "reshard_set": {"no", "on", "off", "both"},
    "spmd_mesh": {"no", "one axis", "two axes"},
    "share_comm_ctx": {"off", "on"},
}


def test_it_is_drawn_where_it_is_offered() -> None:
    found = [case for case in sample("parity").cases if case.api == "fsdp2"]
    having = [case for case in found if needs_of_torch(anatomy(case))]
    assert 0.1 < len(having) / len(found) < 0.4
    assert all(map(is_sound, having))
    for name, values in OFFERED.items():
        assert {features_of(case)[name] for case in having} == values, name


def untold(case: CaseSpec) -> tuple[Op, ...]:
    return tuple(op for op in case.program if not op.changes_units)


def test_it_is_not_drawn_elsewhere_and_nothing_else_changes() -> None:
    """The same seed gives like cases on every torch, so that two can be compared."""
    everywhere = drawn(cases(), 150).cases
    assert not any(needs_of_torch(anatomy(case)) for case in everywhere)
    offered = drawn(cases(offers=tuple(NEWER)), 150).cases
    plain = {
        "reduce_scatter": None,
        "keep_unsharded_storage": False,
        "finalization": "automatic",
        "spmd_mesh": None,
        "share_comm_ctx": False,
    }
    alike = [
        msgspec.structs.replace(new, **plain, optimizer=old.optimizer, program=untold(new)) == old
        for new, old in zip(offered, everywhere, strict=False)
    ]
    assert sum(alike[:20]) > 12, "Hypothesis mutates what it drew, so later ones may part"


@pytest.mark.parametrize("name", [name for name in OFFERED if name != "share_comm_ctx"])
def test_it_shrinks_to_itself_alone_and_away(name: str) -> None:
    strategy = cases(apis=("fsdp2",), offers=tuple(NEWER))
    plain = features_of(minimal(strategy))

    def has(case: CaseSpec) -> bool:
        # A program that only saves its state costs fewer choices than one that trains.
        found = features_of(case)
        return found[name] != plain[name] and found["steps"] == plain["steps"]

    def simple(case: CaseSpec) -> bool:
        found = features_of(case)
        return {key for key, value in found.items() if value != plain[key]} <= {name, "optimizer"}

    shrinks_to(simple, strategy, has)
    assert needs_of_torch(anatomy(minimal(strategy))) == ()


def test_shared_streams_shrink_to_a_few_plain_roots() -> None:
    """One root has nobody to share with, so that what is left has several."""
    strategy = cases(apis=("fsdp2",), offers=tuple(NEWER))
    plain = minimal(strategy)
    steps = features_of(plain)["steps"]

    def has(case: CaseSpec) -> bool:
        return case.share_comm_ctx and features_of(case)["steps"] == steps

    def simple(case: CaseSpec) -> bool:
        options = {unit for unit in case.plan.units if unit != Fsdp2Unit(path=unit.path)}
        rest = msgspec.structs.replace(
            case,
            model=plain.model,
            plan=plain.plan,
            optimizer=plain.optimizer,
            share_comm_ctx=False,
        )
        return not options and len(anatomy(case).parameters) <= 3 and rest == plain

    shrinks_to(simple, strategy, has)
