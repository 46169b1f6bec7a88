"""What takes the place of operations, and what goes with them."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Flip,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Sequential,
    Step,
    Switch,
    ZeroGrad,
)
from fsdpfuzz.case.mesh import Mesh
from fsdpfuzz.case.operations import Rebuild
from fsdpfuzz.reduce import simpler
from tests.unit.reduce.samples import FIRST
from tests.unit.reduce.test_neighbours import assert_in_one_thing, assert_sound


def test_a_mesh_goes_with_the_strategies_of_rebuilds() -> None:
    hybrid = tuple(Fsdp1Unit(path=path, sharding="HYBRID_SHARD") for path in ("", "0"))
    plan, step = Fsdp1Plan(units=hybrid), (Forward(), Backward(), Step())
    case = CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=1), Linear(out=1))),
        inputs=Dense(width=1),
        plan=plan,
        program=(*step, ZeroGrad(), Rebuild(plan=plan), *step),
        mesh=Mesh(replicate=1, shard=2),
    )
    without = [neighbour for neighbour in simpler(case) if neighbour.case.mesh is None]
    assert without
    for neighbour in without:
        (rebuild,) = (op for op in neighbour.case.program if isinstance(op, Rebuild))
        for made in (neighbour.case.plan, rebuild.plan):
            assert isinstance(made, Fsdp1Plan)
            assert {unit.sharding for unit in made.units} == {"FULL_SHARD"}
    assert_in_one_thing(case)


def test_a_rebuild_gives_way_to_what_it_wraps_in() -> None:
    group = Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="0", grouped=("1",))))
    case = CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=1), Linear(out=1))),
        inputs=Dense(width=1),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
        program=(Rebuild(plan=group), Forward(), Backward()),
    )
    tried = [(n.case.plan, n.case.program) for n in simpler(case)]
    assert (group, case.program[1:]) in tried
    assert_sound(case)


@pytest.mark.parametrize("ranks", [(1, 2), (2,), (0, 1, 2), (0, 2)])
def test_a_flip_is_tried_on_one_rank_that_fewer_ranks_have(ranks: tuple[int, ...]) -> None:
    """Else the number of ranks could not go down."""
    case = CaseSpec(
        world_size=3,
        model=Switch(children=(Linear(out=1), Linear(out=1))),
        inputs=Dense(width=1),
        plan=Fsdp1Plan(units=(Fsdp1Unit(path=""),)),
        program=(Forward(), Backward(), Step(), Flip(path="", ranks=ranks)),
    )
    tried = {op.ranks for n in simpler(case) for op in n.case.program if isinstance(op, Flip)}
    assert tried - {ranks} == {(0,), ranks[:1]} - {ranks}
    last = msgspec.structs.replace(case, program=(*case.program[:3], Flip(path="", ranks=(0,))))
    assert 2 in {n.case.world_size for n in simpler(last) if n.case.program == last.program}
    assert_sound(case)


def test_a_module_is_called_by_itself_as_fsdp_says_or_not_at_all() -> None:
    """Its units go with the forward of it alone, and the root stays the first to be called."""
    evaluated = (Forward(), Backward(), Forward(grad=False, target="0"), Forward(grad=False))
    case = CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=3), Linear(out=3))),
        inputs=Dense(width=3),
        plan=Fsdp1Plan(units=(Fsdp1Unit(path=""), Fsdp1Unit(path="0"), Fsdp1Unit(path="1"))),
        program=evaluated,
    )
    tried = [neighbour.case for neighbour in simpler(case)]
    alone = [c for c in tried if any(getattr(op, "target", "") for op in c.program)]
    assert alone
    for neighbour in alone:
        assert "0" in {unit.path for unit in neighbour.plan.units}
        forwards = [op.target for op in neighbour.program if isinstance(op, Forward)]
        assert "" not in forwards or not forwards[0]
    misused = msgspec.structs.replace(case, plan=Fsdp1Plan(units=(Fsdp1Unit(path=""),)))
    assert any(n.case.program[0] == evaluated[2] for n in simpler(misused))


def test_one_of_several_losses_before_a_backward_can_go() -> None:
    program = (Forward(), Forward(), Forward(), Backward())
    case = msgspec.structs.replace(FIRST, program=program)
    assert program[1:] in {neighbour.case.program for neighbour in simpler(case)}
    # The last one keeps its backward, or needs none.
    case = msgspec.structs.replace(FIRST, program=program[2:])
    programs = {neighbour.case.program for neighbour in simpler(case)}
    assert programs <= {program[2:], (), (Forward(grad=False),)}
    assert (Forward(grad=False),) in programs


def test_no_step_comes_to_use_gradients_that_wait_for_their_reduction() -> None:
    """A loss without a backward at the end makes no difference to what comes before it."""
    waiting = (Forward(sync=False), Backward())
    for end in ((), (Forward(),)):
        program = (*waiting, Forward(), Backward(), Step(), *end)
        case = msgspec.structs.replace(FIRST, program=program)
        found = [neighbour.case.program for neighbour in simpler(case)]
        assert (*waiting, Step(), *end) not in found
        assert (*waiting, Forward(), Step(), *end) not in found
        assert (Forward(), Backward(), Step(), *end) in found
    # One that does so anyhow gets smaller as others do.
    misused = msgspec.structs.replace(FIRST, program=(*waiting, Step(), Forward()))
    assert (*waiting, Step()) in [neighbour.case.program for neighbour in simpler(misused)]
