"""Where fsdp1 must raise because ranks differ, where it must warn, and where it says nothing."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import (
    Anatomy,
    Backward,
    CaseSpec,
    Dense,
    Flip,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Linear,
    Mode,
    Op,
    RequiresGrad,
    Sequential,
    Switch,
    anatomy,
    features,
)
from fsdpfuzz.case.mesh import Mesh
from fsdpfuzz.case.units.sharding import Sharding
from fsdpfuzz.expect import (
    Deviation,
    order_error,
    order_warnings,
    parting,
    rank_in_warnings,
)
from tests.injected.by_hand import judged

ITERATION: tuple[Op, ...] = (Forward(), Backward())
FLIP = Flip(path="1", ranks=(1,))
EVERYWHERE = Flip(path="1", ranks=(0, 1))
BACK = (FLIP, FLIP)
"""Both sides of the switch are passed, and the first one is active again."""


def case(*program: Op, units: tuple[str, ...] = ("", "1.branches.0", "1.branches.1")) -> Anatomy:
    branch = Linear(out=2)
    model = Sequential(children=(Linear(out=2), Switch(children=(branch, branch)), Linear(out=2)))
    made = CaseSpec(
        world_size=2,
        model=model,
        inputs=Dense(width=2),
        plan=Fsdp1Plan(units=tuple(Fsdp1Unit(path=path) for path in units)),
        program=program,
        debug_level="DETAIL",
    )
    return anatomy(made)


def undetailed(a: Anatomy) -> Anatomy:
    return anatomy(msgspec.structs.replace(a.case, debug_level="OFF"))


@pytest.mark.parametrize(
    ("program", "forward"),
    [
        (ITERATION, None),
        ((FLIP, *ITERATION), 1),
        ((*BACK, *ITERATION), None),
        ((EVERYWHERE, *ITERATION), None),
        ((*ITERATION, FLIP, *ITERATION), 3),
        ((FLIP, Forward(target="0"), Backward(), *ITERATION), 3),
    ],
)
def test_ranks_part_at_the_first_forward_that_takes_different_sides(
    program: tuple[Op, ...], forward: int | None
) -> None:
    assert parting(case(*program)) == forward


def test_different_first_iterations_are_an_error() -> None:
    a = case(FLIP, *ITERATION)
    assert order_error(a) == 1
    assert order_warnings(a) is None


@pytest.mark.parametrize(
    "a",
    [
        undetailed(case(FLIP, *ITERATION)),
        case(*ITERATION, FLIP, *ITERATION),
        case(FLIP, *ITERATION, units=("1.branches.0", "1.branches.1")),
        case(FLIP, *ITERATION, units=("",)),
        case(Mode(train=False), FLIP, *ITERATION),
    ],
    ids=["no detail", "later", "no common root", "one unit", "eval mode"],
)
def test_no_error_is_promised(a: Anatomy) -> None:
    assert parting(a) is not None
    assert order_error(a) is None


def test_a_rank_that_leaves_its_own_order_warns_once_for_each_unit() -> None:
    one = case(*ITERATION, FLIP, *ITERATION)
    assert order_warnings(one) == (None, Deviation(op=3, units=1))
    both = case(*ITERATION, EVERYWHERE, *ITERATION)
    assert order_warnings(both) == (Deviation(op=3, units=1),) * 2


def test_each_rank_is_held_to_its_first_iteration_alone() -> None:
    again = case(*ITERATION, FLIP, *ITERATION, FLIP, *ITERATION)
    assert order_warnings(again) == (None, Deviation(op=3, units=1))


def test_an_iteration_warns_before_its_backward() -> None:
    """As fsdp1 is about to gather; what follows does not matter."""
    warned = Deviation(op=3, units=1)
    assert order_warnings(case(*ITERATION, EVERYWHERE, Forward())) == (warned, warned)
    assert order_warnings(case(*ITERATION, Forward())) == (None, None)
    assert order_warnings(case(Forward(), EVERYWHERE, Forward())) == (None, None)


@pytest.mark.parametrize("alone", [Forward(grad=False), Forward(drop=True)])
def test_a_forward_without_backward_is_compared_by_itself(alone: Forward) -> None:
    warned = Deviation(op=3, units=1)
    assert order_warnings(case(*ITERATION, EVERYWHERE, alone)) == (warned, warned)
    assert order_warnings(case(*ITERATION, alone, *ITERATION)) == (None, None)
    back = case(*ITERATION, alone, EVERYWHERE, *ITERATION)
    assert order_warnings(back) == (Deviation(op=4, units=1),) * 2


def test_a_first_iteration_in_eval_mode_is_recorded() -> None:
    trains = (Mode(train=False), *ITERATION, Mode(train=True))
    assert order_warnings(case(*trains, *ITERATION)) == (None, None)
    warned = Deviation(op=5, units=1)
    assert order_warnings(case(*trains, EVERYWHERE, *ITERATION)) == (warned, warned)


@pytest.mark.parametrize("train", [True, False])
def test_of_an_order_that_was_recorded_before_nothing_is_promised(train: bool) -> None:
    alone = (Mode(train=train), Forward(grad=False), Mode(train=True))
    assert order_warnings(case(*alone, EVERYWHERE, *ITERATION, *ITERATION)) is None
    assert order_warnings(case(*alone, *ITERATION, EVERYWHERE, *ITERATION)) is not None


def test_of_an_iteration_that_fsdp_does_not_see_end_nothing_is_promised() -> None:
    every = ("0.weight", "0.bias", "1.branches.0.weight", "1.branches.0.bias")
    frozen = (*every, "1.branches.1.weight", "1.branches.1.bias", "2.weight", "2.bias")
    thaw = RequiresGrad(parameters=frozen, value=True)
    quiet = anatomy(msgspec.structs.replace(case(*ITERATION, thaw, *ITERATION).case, frozen=frozen))
    assert order_warnings(quiet) is None
    freeze = RequiresGrad(parameters=frozen, value=False)
    assert order_warnings(case(*ITERATION, freeze, *ITERATION, thaw, *ITERATION)) is None


def test_warnings_are_not_promised_without_the_debug_level() -> None:
    assert order_warnings(undetailed(case(*ITERATION, FLIP, *ITERATION))) == (None, None)


def test_an_evaluation_between_iterations_is_none_and_gives_no_warning() -> None:
    looked = (Mode(train=False), Forward(grad=False), Mode(train=True))
    a = case(*ITERATION, *looked, *ITERATION)
    assert order_warnings(a) == (None, None)
    # Nor can a call in eval mode be taken for one that comes again.
    assert features(a.case)["unit_called_again"] == "off"
    trained = case(*ITERATION, Forward(grad=False), *ITERATION)
    assert features(trained.case)["unit_called_again"] == "on"


@pytest.mark.parametrize(
    ("sharding", "mesh", "numbers"),
    [
        ("FULL_SHARD", None, [0, 1, 2, 3]),
        ("NO_SHARD", None, [0, 1, 2, 3]),
        ("HYBRID_SHARD", Mesh(replicate=2, shard=2), [0, 1, 0, 1]),
        ("HYBRID_SHARD", Mesh(replicate=1, shard=4), [0, 1, 2, 3]),
    ],
)
def test_a_warning_gives_the_rank_in_the_group_that_the_root_is_sharded_over(
    sharding: Sharding, mesh: Mesh | None, numbers: list[int]
) -> None:
    made = CaseSpec(
        world_size=4,
        model=Switch(children=(Linear(out=1), Linear(out=1))),
        inputs=Dense(width=1),
        plan=Fsdp1Plan(
            units=(
                Fsdp1Unit(path="", sharding=sharding),
                Fsdp1Unit(path="branches.1", sharding=sharding),
            )
        ),
        program=(*ITERATION, Flip(path="", ranks=(0, 1, 2, 3)), Forward()),
        debug_level="DETAIL",
        mesh=mesh,
    )
    a = anatomy(made)
    assert [rank_in_warnings(a, rank) for rank in range(4)] == numbers
    assert judged(made).findings == ()


def test_without_units_ranks_have_their_own_numbers() -> None:
    a = case(*ITERATION, units=())
    assert [rank_in_warnings(a, rank) for rank in range(2)] == [0, 1]
