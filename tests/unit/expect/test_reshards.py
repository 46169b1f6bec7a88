"""Which units a backward has to reshard by a hook of their own."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Checkpoint,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Lora,
    Node,
    Op,
    RequiresGrad,
    Residual,
    Sequential,
    Switch,
    anatomy,
)
from fsdpfuzz.expect import backward_reshards, may_stay_whole

TWO = Sequential(children=(Linear(out=2), Linear(out=2)))
ITERATION: tuple[Op, ...] = (Forward(), Backward())


def case(
    model: Node,
    units: tuple[str, ...],
    frozen: tuple[str, ...] = (),
    *,
    program: tuple[Op, ...] = ITERATION,
    input_grad: bool = False,
    checkpoints: tuple[Checkpoint, ...] = (),
) -> CaseSpec:
    return CaseSpec(
        world_size=2,
        model=model,
        inputs=Dense(width=2, requires_grad=input_grad),
        plan=Fsdp1Plan(units=tuple(Fsdp1Unit(path=path) for path in units)),
        frozen=frozen,
        checkpoints=checkpoints,
        program=program,
    )


def reshards(given: CaseSpec) -> list[set[str]] | None:
    """Of rank 0, one set for each backward."""
    found = backward_reshards(anatomy(given), 0)
    return None if found is None else [set(units) for units in found]


def of_layer(*paths: str) -> tuple[str, ...]:
    return tuple(f"{path}.{name}" for path in paths for name in ("weight", "bias"))


def test_trained_units_do_and_a_root_without_parameters_does_not() -> None:
    assert reshards(case(TWO, ("0", "1", ""))) == [{"0", "1"}]


@pytest.mark.parametrize(
    ("frozen", "input_grad", "expected"),
    [
        (of_layer("0"), False, {"1"}),
        (of_layer("0"), True, {"0", "1"}),
        (of_layer("1"), False, {"0", "1"}),
    ],
)
def test_a_frozen_unit_does_if_its_input_requires_grad(
    frozen: tuple[str, ...], input_grad: bool, expected: set[str]
) -> None:
    given = case(TWO, ("0", "1", ""), frozen, input_grad=input_grad)
    assert reshards(given) == [expected]


def test_the_branches_of_an_adapter_have_the_input_of_the_whole() -> None:
    adapter = Lora(out=2, rank=1)
    units = ("base", "down", "up", "")
    assert reshards(case(adapter, units, ("down.weight",))) == [{"base", "up"}]
    both = ("down.weight", "up.weight")
    assert reshards(case(adapter, units, both)) == [{"base"}]
    assert reshards(case(adapter, units, ("up.weight",))) == [{"base", "down", "up"}]


def test_a_residual_passes_on_what_its_input_requires() -> None:
    model = Sequential(children=(Linear(out=2), Residual(body=Linear(out=2)), Linear(out=2)))
    given = case(model, ("0", "1.body", "2", ""), of_layer("1.body", "2"))
    assert reshards(given) == [{"0", "1.body", "2"}]


def test_each_backward_counts_by_what_is_frozen_at_its_time() -> None:
    thaw = RequiresGrad(parameters=of_layer("0"), value=True)
    given = case(TWO, ("0", "1", ""), of_layer("0"), program=(*ITERATION, thaw, *ITERATION))
    assert reshards(given) == [{"1"}, {"0", "1"}]


def test_nothing_is_promised_where_hooks_belong_to_other_backwards() -> None:
    reentrant = Checkpoint(path="0", reentrant=True)
    assert reshards(case(TWO, ("",), checkpoints=(reentrant,))) is None
    dropped = (Forward(drop=True), *ITERATION)
    assert reshards(case(TWO, ("",), program=dropped)) is None
    second = CaseSpec(
        world_size=2,
        model=TWO,
        inputs=Dense(width=2),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
        program=ITERATION,
    )
    assert reshards(second) is None


@pytest.mark.parametrize("sync", [True, False])
def test_without_synchronisation_only_what_forward_keeps_whole_stays_so(*, sync: bool) -> None:
    program = (Forward(sync=sync), Backward(), Forward(), Backward())
    given = CaseSpec(
        world_size=4,
        model=Sequential(children=tuple(Linear(out=2) for _ in range(5))),
        inputs=Dense(width=2),
        plan=Fsdp1Plan(
            units=(
                Fsdp1Unit(path="0", sharding="SHARD_GRAD_OP"),
                Fsdp1Unit(path="1", sharding="FULL_SHARD"),
                Fsdp1Unit(path=""),
            )
        ),
        program=program,
    )
    a = anatomy(given)
    assert may_stay_whole(a, 1) == (set() if sync else {"0"})
    assert may_stay_whole(a, 3) == set()


def test_fsdp2_shards_again_without_synchronisation() -> None:
    given = CaseSpec(
        world_size=2,
        model=TWO,
        inputs=Dense(width=2),
        plan=Fsdp2Plan(
            units=(Fsdp2Unit(path="0", reshard_after_forward=False), Fsdp2Unit(path=""))
        ),
        program=(Forward(sync=False), Backward()),
    )
    assert may_stay_whole(anatomy(given), 1) == set()


@pytest.mark.parametrize(("taken_is_frozen", "whole"), [(True, {"0"}), (False, set())])
def test_a_path_that_is_not_taken_reaches_nothing(taken_is_frozen: bool, whole: set[str]) -> None:
    """What is trained in the other path keeps no unit from staying whole."""
    paths = Switch(children=(Linear(out=2, bias=False), Linear(out=2, bias=False)))
    given = CaseSpec(
        world_size=2,
        model=Sequential(children=(Sequential(children=(Linear(out=2), paths)), Linear(out=2))),
        inputs=Dense(width=2),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path="0"),)),
        frozen=of_layer("0.0") if taken_is_frozen else ("0.0.bias",),
        program=ITERATION,
    )
    assert may_stay_whole(anatomy(given), 1) == whole
