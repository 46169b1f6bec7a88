"""Each strategy shrinks towards what its docstring says; what a failure doesn't need goes off."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fsdpfuzz import strategies
from fsdpfuzz.spec import (
    TOKENS,
    Activation,
    Backward,
    Branches,
    Buffered,
    CaseSpec,
    Checkpoint,
    Dense,
    Embedding,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Gain,
    Idle,
    Linear,
    Lora,
    Matrix,
    Node,
    Norm,
    Optimizer,
    Repeat,
    Residual,
    Sequential,
    Step,
    Tie,
    Tokens,
    case_places,
    features,
    foreseen_rejections,
    places,
    planned_units,
)
from tests.unit.strategies.minimal import minimal

PLAIN = Linear(out=1, bias=False)
PAIR = Sequential(children=(Linear(out=4, bias=False), Linear(out=4, bias=False)))
ONCE = (Forward(), Backward(), Step())
PLANS = (Fsdp1Plan(units=(Fsdp1Unit(path=""),)), Fsdp2Plan(units=(Fsdp2Unit(path=""),)))
SIMPLEST: dict[str, CaseSpec] = {
    case.api: case
    for case in (
        CaseSpec(world_size=2, model=PLAIN, inputs=Dense(width=1, batch=1), plan=plan, program=ONCE)
        for plan in PLANS
    )
}


def holds(kind: type[Node], width: int = 4) -> Callable[[Node], bool]:
    return lambda tree: any(isinstance(place.node, kind) for place in places(tree, width))


def off(case: CaseSpec, *needed: str) -> None:
    """What is not needed has the value of the simplest case."""
    simplest = features(SIMPLEST[case.api])
    found = features(case)
    unneeded = {k: v for k, v in found.items() if k not in needed and v != simplest[k]}
    assert unneeded == {}


def test_every_docstring_says_where_it_shrinks() -> None:
    parts = [getattr(strategies, name) for name in strategies.__all__]
    functions = [part for part in parts if callable(part) and part is not strategies.known_ground]
    assert len(functions) >= 10
    for function in functions:
        assert "Shrinks towards" in (function.__doc__ or ""), function


def test_inputs() -> None:
    assert minimal(strategies.inputs()) == Dense(width=1, batch=1)
    assert minimal(strategies.inputs(), lambda i: isinstance(i, Tokens)) == Tokens(
        batch=1, length=1
    )


def test_optimizers() -> None:
    assert minimal(strategies.optimizers()) == Optimizer()
    assert minimal(strategies.optimizers(), lambda o: o.name != "sgd").name == "adam"


def test_programs() -> None:
    assert minimal(strategies.programs()) == ONCE
    unsynced = minimal(strategies.programs(), lambda p: any(op == Forward(sync=False) for op in p))
    assert unsynced == (Forward(sync=False), Backward(), *ONCE)


def test_trees() -> None:
    assert minimal(strategies.module_trees(4)) == PLAIN
    assert minimal(strategies.module_trees(TOKENS)) == Embedding(rows=1, out=1)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Activation, Sequential(children=(PLAIN, Activation()))),
        (Norm, Norm(affine=True)),
        (Gain, Gain()),
        (Lora, Lora(out=1, rank=1, bias=False)),
        (Buffered, Sequential(children=(PLAIN, Buffered()))),
        (Idle, Sequential(children=(PLAIN, Idle()))),
        (Residual, Residual(body=Linear(out=4, bias=False))),
        (Repeat, Repeat(body=Linear(out=4, bias=False))),
        (Matrix, Matrix(body=PLAIN)),
        (Branches, Branches(children=(PLAIN,))),
        (Sequential, Sequential(children=(PLAIN, PLAIN))),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_trees_with(kind: type[Node], expected: Node) -> None:
    tree = minimal(strategies.module_trees(4), holds(kind))
    if isinstance(expected, Sequential):
        # The layer that a tree needs may stand on either side.
        assert isinstance(tree, Sequential)
        assert set(tree.children) == set(expected.children)
    elif tree != expected:
        # Another tree as small: a layer and, beside it, the kind around an activation.
        assert len(places(tree, 4)) <= len(places(expected, 4)) + 2


def test_ties() -> None:
    strategy = strategies.ties(PAIR, 4)
    assert minimal(strategy) == ()
    assert minimal(strategy, len) == (Tie(source="0.weight", target="1.weight"),)


def test_freeze_masks() -> None:
    strategy = strategies.freeze_masks(PAIR, 4)
    assert minimal(strategy) == ()
    assert len(minimal(strategy, bool)) == 1
    tied = strategies.freeze_masks(PAIR, 4, ties=(Tie(source="0.weight", target="1.weight"),))
    assert minimal(tied, lambda mask: "1.weight" not in mask) == ()


def test_fsdp1_plans() -> None:
    strategy = strategies.fsdp1_plans(PAIR, 4)
    assert minimal(strategy) == Fsdp1Plan(units=(Fsdp1Unit(path=""),))
    assert minimal(strategy, lambda plan: len(plan.units) > 1) == Fsdp1Plan(
        units=(Fsdp1Unit(path=""), Fsdp1Unit(path="0"))
    )
    open_root = minimal(strategy, lambda plan: all(unit.path for unit in plan.units))
    assert open_root == Fsdp1Plan(units=(Fsdp1Unit(path="0"), Fsdp1Unit(path="1")))


def test_fsdp2_plans() -> None:
    strategy = strategies.fsdp2_plans(PAIR, 4)
    assert minimal(strategy) == Fsdp2Plan(units=(Fsdp2Unit(path=""),))
    assert minimal(strategy, lambda plan: len(plan.units) > 1) == Fsdp2Plan(
        units=(Fsdp2Unit(path=""), Fsdp2Unit(path="0"))
    )


def test_checkpoint_placements() -> None:
    strategy = strategies.checkpoint_placements(PAIR, 4, units=("", "1"))
    assert minimal(strategy) == ()
    assert minimal(strategy, bool) == (Checkpoint(path=""),)
    assert minimal(strategy, lambda found: any(c.reentrant for c in found)) == (
        Checkpoint(path="", reentrant=True),
    )
    assert minimal(strategy, lambda found: any(c.path == "0" for c in found)) == (
        Checkpoint(path="0"),
    )


@pytest.mark.parametrize("api", ["fsdp1", "fsdp2"])
def test_cases(api: str) -> None:
    assert minimal(strategies.cases(apis=(api,))) == SIMPLEST[api]


@pytest.mark.parametrize("api", ["fsdp1", "fsdp2"])
def test_cases_with_two_units(api: str) -> None:
    # On known ground there may be several units, or a tie across them, without a choice.
    drawn = strategies.cases(apis=(api,), misuse=False, avoid=frozenset(strategies.GROUND))
    case = minimal(drawn, lambda c: len(planned_units(c)) > 1)
    assert len(planned_units(case)) <= 3  # Two layers, at times with the root around them.
    assert len(case_places(case)) <= 3
    model = ("residual", "own_parameter", "unused", "merge")
    off(case, "units", "nesting", "bare_unit", "wrap", *model)


@pytest.mark.parametrize("api", ["fsdp1", "fsdp2"])
def test_cases_with_a_tie(api: str) -> None:
    drawn = strategies.cases(apis=(api,), misuse=False, avoid=frozenset(strategies.GROUND))
    case = minimal(drawn, lambda c: c.ties)
    assert len(case.ties) == 1
    assert len(case_places(case)) <= 7
    assert (case.frozen, case.checkpoints, case.program) == ((), (), ONCE)
    assert planned_units(case) == ("",)


@pytest.mark.parametrize("api", ["fsdp1", "fsdp2"])
def test_cases_with_frozen_parameters(api: str) -> None:
    drawn = strategies.cases(apis=(api,), misuse=False, avoid=frozenset(strategies.GROUND))
    case = minimal(drawn, lambda c: c.frozen)
    assert len(case.frozen) <= 2  # A whole unit, where the API wants that.
    assert len(case.program) == 3
    plan = ("use_orig_params", "units", "nesting", "bare_unit", "single_element_unit")
    model = ("unused", "own_parameter", "lora", "input_grad")
    off(case, "freeze", "mixed_unit", "frozen_unit", "quiet_unit", "wrap", *plan, *model)


@pytest.mark.parametrize("api", ["fsdp1", "fsdp2"])
def test_cases_with_reentrant_checkpointing(api: str) -> None:
    case = minimal(strategies.cases(apis=(api,)), lambda c: any(k.reentrant for k in c.checkpoints))
    assert case.model == PLAIN
    assert case.inputs == Dense(width=1, batch=1, requires_grad=True)
    off(case, "checkpoint", "recomputed_unit", "input_grad", "reentrant")


def test_cases_with_repetition() -> None:
    case = minimal(
        strategies.cases(), lambda c: any(isinstance(p.node, Repeat) for p in case_places(c))
    )
    assert case.model == Repeat(body=Linear(out=1, bias=False))
    off(case, "reused")


@pytest.mark.parametrize("name", strategies.MISUSE)
def test_misuse_can_be_drawn_and_shrinks(name: str) -> None:
    strategy = strategies.cases(apis=(name.partition("_")[0],))
    case = minimal(strategy, lambda c: [r.name for r in foreseen_rejections(c)] == [name])
    assert len(case_places(case)) <= 4
    assert case.program == ONCE
    assert case.checkpoints == ()
