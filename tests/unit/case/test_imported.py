"""A case about a model of somebody's own: its structure is data, and little else is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

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
    Given,
    Imported,
    ImportedModule,
    ImportedParameter,
    Optimizer,
    Precision,
    RequiresGrad,
    Step,
    Tie,
    anatomy,
    check,
    decode,
    dtypes_fit,
    encode,
    lower,
    parameter_features,
    unit_features,
    within,
)
from fsdpfuzz.case.modules.imported import called_alike
from fsdpfuzz.case.operations import OptimState
from fsdpfuzz.case.recipe import Call, Do, values, walk
from fsdpfuzz.errors import CaseError
from fsdpfuzz.expect import backward_reshards, order_warnings, settled, traffic
from fsdpfuzz.reduce import simpler
from fsdpfuzz.strategies import cases
from fsdpfuzz.strategies.drawing import Focus

replace = msgspec.structs.replace
MODEL = Imported(
    target="mymodel.py",
    modules=(
        ImportedModule(path="", cls="Net", alone=True),
        ImportedModule(
            path="embed",
            cls="Embedding",
            alone=True,
            parameters=(ImportedParameter(name="weight", shape=(7, 4)),),
        ),
        ImportedModule(path="blocks", cls="ModuleList"),
        ImportedModule(
            path="blocks.0",
            cls="Block",
            alone=True,
            parameters=(
                ImportedParameter(name="scale", shape=(4,), frozen=True),
                ImportedParameter(name="spare", shape=(3,), used=False),
            ),
            buffers=("mean",),
            changed=("mean",),
        ),
        ImportedModule(
            path="head",
            cls="Linear",
            alone=True,
            parameters=(ImportedParameter(name="weight", shape=(7, 4), tied="embed.weight"),),
        ),
    ),
    calls=("embed", "blocks.0", "blocks.0", "head"),
    loss="attribute",
)
CASE = CaseSpec(
    world_size=2,
    model=MODEL,
    inputs=Given(),
    plan=Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="blocks.0"))),
    ties=(Tie(source="embed.weight", target="head.weight"),),
    program=(Forward(), Backward(), Step()),
    loss="own",
)
FOCUSES: tuple[Focus, ...] = ("parity", "state_dict", "memory", "checkpoint", "fine_tune")


def test_it_is_data_and_comes_back() -> None:
    check(CASE)
    assert decode(encode(CASE)) == CASE


def test_its_places_are_its_modules() -> None:
    a = anatomy(CASE)
    assert list(a.by_path) == ["", "embed", "blocks", "blocks.0", "head"]
    assert [p.fqn for p in a.distinct] == ["embed.weight", "blocks.0.scale", "blocks.0.spare"]
    assert a.owners["head.weight"] == ""
    assert not a.by_fqn["blocks.0.spare"].used
    assert a.by_path["blocks.0"].buffers == ("blocks.0.mean",)
    assert MODEL.own_frozen == ("blocks.0.scale",)


def test_nothing_is_promised_of_what_it_computes() -> None:
    a = anatomy(CASE)
    assert traffic(a, 0) == {}
    assert settled(a)
    first = replace(CASE, plan=Fsdp1Plan(units=(Fsdp1Unit(path=""),)), debug_level="DETAIL")
    assert backward_reshards(anatomy(first), 0) is None
    assert order_warnings(anatomy(first)) is None
    wrapped = replace(CASE, model=replace(MODEL, wrapped=True))
    assert not settled(anatomy(wrapped))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"inputs": Dense(width=4)}, "goes with inputs 'given'"),
        ({"ties": ()}, "tied as its own code does it"),
        ({"loss": "projection"}, "'own' is the loss"),
        ({"program": (Forward(target="head"), Backward())}, "takes, or returns"),
        ({"checkpoints": (Checkpoint(path="head", kind="function_offload"),)}, "use a wrapper"),
        ({"keyword_input": True}, "says what an imported model is given"),
    ],
)
def test_what_contradicts_it_is_refused(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(CaseError, match=reason):
        check(replace(CASE, **fields))


def functions(case: CaseSpec) -> Iterator[str]:
    recipe = lower(anatomy(case))
    for body in (*(p.body for p in recipe.procedures), recipe.main):
        for statement in walk(body):
            for value in values(statement.call) if isinstance(statement, Do) else ():
                if isinstance(value, Call) and isinstance(value.function, str):
                    yield value.function
                elif type(value).__name__ == "Global":
                    yield value.name  # type: ignore[union-attr]


def test_its_functions_are_called_by_name() -> None:
    found = set(functions(CASE))
    assert {"imported.mymodel.model", "imported.mymodel.batch"} <= found
    assert "torch.distributed.fsdp.fully_shard" in found
    own = replace(CASE, model=replace(MODEL, loss="function", wrapped=True))
    found = set(functions(own))
    assert {"imported.mymodel.loss", "imported.mymodel.shard"} <= found
    assert "torch.distributed.fsdp.fully_shard" not in found


@pytest.mark.parametrize(
    ("optimizer", "own", "expected"),
    [
        (None, {}, ("none", "off", "off")),
        (Optimizer(), {}, ("one", "off", "off")),
        (Optimizer(momentum=0.0), {}, ("none", "off", "off")),
        (Optimizer(weight_decay=0.1), {}, ("one", "off", "on")),
        (Optimizer(name="adam"), {}, ("several", "on", "off")),
        (Optimizer(name="adam", weight_decay=0.1), {}, ("several", "on", "on")),
        (Optimizer(name="adamw", weight_decay=0.1), {}, ("several", "on", "off")),
        (Optimizer(name="own", momentum=0.0), {}, ("none", "off", "off")),
        (Optimizer(name="own"), {}, ("one", "off", "off")),
        (
            Optimizer(name="own"),
            {"several_states": True, "counts_steps": True},
            ("several", "on", "off"),
        ),
        (Optimizer(name="own"), {"decays_state": True}, ("one", "off", "on")),
    ],
)
def test_what_the_optimizer_keeps_of_a_parameter(
    optimizer: Optimizer | None, own: dict[str, bool], expected: tuple[str, ...]
) -> None:
    model = replace(MODEL, **own)
    case = replace(CASE, model=model, optimizer=optimizer, held_out=("blocks.0.spare",))
    names = ("state_tensors", "counted_steps", "decaying_state")
    # By each of its names.
    for fqn in ("embed.weight", "head.weight"):
        found = parameter_features(anatomy(case), fqn)
        assert tuple(found[name] for name in names) == expected
    left = parameter_features(anatomy(case), "blocks.0.spare")
    assert tuple(left[name] for name in names) == ("none", "off", "off")


def test_it_stays_as_it_is_when_a_case_is_reduced() -> None:
    large = replace(CASE, checkpoints=(Checkpoint(path="blocks.0"),), seed=3)
    found = [s.case for s in simpler(large)]
    assert found
    assert all(case.model == MODEL and case.ties == CASE.ties for case in found)
    assert any(not case.checkpoints for case in found)


def test_of_its_own_wrapping_only_the_program_gets_simpler() -> None:
    wrapped = replace(CASE, model=replace(MODEL, wrapped=True), seed=3, frozen=MODEL.own_frozen)
    found = [s.case for s in simpler(wrapped)]
    assert any(case.program != wrapped.program for case in found)
    assert {case.plan for case in found} == {wrapped.plan}
    assert {case.frozen for case in found} == {wrapped.frozen}


@pytest.mark.parametrize("focus", FOCUSES)
def test_it_is_drawn_as_it_is(focus: Focus) -> None:
    @settings(max_examples=60, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(case=cases(focus=focus, model=MODEL))
    def drawn(case: CaseSpec) -> None:
        check(case)
        assert case.model == MODEL
        a = anatomy(case)
        assert all(a.by_path[unit].alone for unit in a.units)
        assert not a.split_ties
        for checkpoint in case.checkpoints:
            assert a.by_path[checkpoint.path].alone
            assert not checkpoint.reentrant
            assert not within("blocks.0.mean", checkpoint.path)
        assert all(unit.precision is None for unit in case.plan.units)
        assert not case.probes

    drawn()


SAVED = (
    *CASE.program,
    OptimState(strict=False),
    RequiresGrad(parameters=("embed.weight",), value=False),
)


@pytest.mark.parametrize(
    "changes",
    [
        {"program": SAVED},
        {"frozen": ("embed.weight", "blocks.0.scale", "blocks.0.spare"), "program": (Forward(),)},
    ],
)
def test_an_optimizer_of_what_is_trained_takes_always_the_same(changes: dict[str, Any]) -> None:
    found = {}
    for skips in (False, True):
        model = replace(MODEL, functions=("optimizer",), stateful=True, skips_frozen=skips)
        found[skips] = replace(CASE, model=model, optimizer=Optimizer(name="own"), **changes)
    check(found[False])
    with pytest.raises(CaseError, match="takes what is trained when it is made"):
        check(found[True])
    # Whatever is saved, and whatever is frozen, but not both.
    check(replace(found[True], program=CASE.program, frozen=()))


def test_what_feeds_a_reentrant_checkpoint_of_their_own_is_trained() -> None:
    one = (ImportedParameter(name="weight", shape=(2, 2)),)
    paths = ("embed", "first", "second", "head")
    modules = (
        ImportedModule(path="", cls="Net", alone=True, parameters=one),
        *(ImportedModule(path=path, alone=True, parameters=one) for path in paths),
    )
    own = replace(MODEL, modules=modules, calls=paths)
    assert own.before_reentrant == ()
    plain, wrapped = replace(own, recomputes=("second",)), replace(own, shard_recomputes=("first",))
    assert plain.before_reentrant == ("weight", "embed.weight", "first.weight")
    assert wrapped.before_reentrant == ()
    assert replace(wrapped, wrapped=True).before_reentrant == ("weight", "embed.weight")
    units = (Fsdp1Unit(path=""), Fsdp1Unit(path="first"), Fsdp1Unit(path="second"))
    told = replace(CASE, model=plain, plan=Fsdp1Plan(units=units), ties=())
    features = {path: unit_features(anatomy(told), path)["reentrant"] for path in ("", "second")}
    assert features == {"": "no", "second": "whole"}
    cut = replace(told, plan=Fsdp1Plan(units=units[:1]))
    assert unit_features(anatomy(cut), "")["reentrant"] == "part"
    masks: set[str] = set()

    @settings(max_examples=100, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(case=cases(focus="fine_tune", model=plain))
    def drawn(case: CaseSpec) -> None:
        masks.update(case.frozen)
        assert not any(isinstance(op, RequiresGrad) for op in case.program)

    drawn()
    assert masks == {"second.weight", "head.weight"}


def test_code_between_units_takes_no_low_output() -> None:
    one = (ImportedParameter(name="weight", shape=(2,)),)
    modules = (
        ImportedModule(path="", cls="Net", alone=True),
        *(ImportedModule(path=path, alone=True, parameters=one) for path in ("gate", "body")),
    )
    given = replace(CASE, model=replace(MODEL, modules=modules, calls=("gate", "body")), ties=())
    for root, output, fits in ((False, None, False), (False, "float32", True), (True, None, True)):
        low = Precision(param="bfloat16", output=output)  # type: ignore[arg-type]
        paths = ("", "gate", "body") if root else ("gate", "body")
        units = tuple(Fsdp2Unit(path=path, precision=low) for path in paths)
        assert dtypes_fit(anatomy(replace(given, plan=Fsdp2Plan(units=units)))) == fits


def test_a_wrapping_that_freezes_takes_no_other_mask() -> None:
    given = replace(CASE, model=replace(MODEL, leaves_frozen=("blocks.0.scale",)), frozen=())
    check(given)
    wrapped = replace(given, model=replace(given.model, wrapped=True))
    with pytest.raises(CaseError, match="leaves these frozen and no other: blocks"):
        check(wrapped)
    check(replace(wrapped, frozen=("blocks.0.scale",)))
    trained = replace(wrapped, model=replace(wrapped.model, leaves_frozen=()))
    check(trained)
    with pytest.raises(CaseError, match="and no other: none"):
        check(replace(trained, frozen=("blocks.0.scale",)))


def test_such_an_optimizer_is_drawn_where_it_does() -> None:
    model = replace(MODEL, functions=("optimizer",), stateful=True, skips_frozen=True)
    seen: Counter[str] = Counter()

    @settings(max_examples=150, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(case=cases(focus="fine_tune", model=model))
    def drawn(case: CaseSpec) -> None:
        check(case)
        seen[case.optimizer.name if case.optimizer else ""] += 1

    drawn()
    assert seen["own"] > 20
    assert seen["sgd"] > 20


def test_its_own_plan_is_kept() -> None:
    @settings(max_examples=40, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(case=cases(apis=("fsdp2",), model=MODEL, plan=CASE.plan))
    def drawn(case: CaseSpec) -> None:
        assert case.plan == CASE.plan
        assert case.frozen == MODEL.own_frozen
        assert (case.checkpoints, case.twins, case.mesh) == ((), (), None)

    drawn()


def test_modules_beside_one_that_hangs_on_the_data_may_hang_on_it_too() -> None:
    paths = ["", "router", "experts", "experts.0", "experts.0.up", "experts.1", "head"]
    counts = [{"": 1, "router": 1, "experts.0": 1, "experts.1": n, "head": 1} for n in (0, 1)]
    assert called_alike(counts, paths) == {"", "router", "experts", "head"}


@pytest.mark.parametrize(
    ("frozen", "expected"),
    [((), "off"), (("b.weight",), "on"), (("a.weight",), "off"), (("a.weight", "b.weight"), "on")],
)
def test_what_the_last_of_several_modules_may_put_out(
    frozen: tuple[str, ...], expected: str
) -> None:
    """What they are given nobody knows: the first may put out what requires grad in any case."""
    weight = ImportedParameter(name="weight", shape=(3, 3))
    model = Imported(
        target="mymodel.py",
        modules=(
            ImportedModule(path="", cls="Net", alone=True),
            ImportedModule(path="a", cls="Linear", alone=True, parameters=(weight,)),
            ImportedModule(path="b", cls="Linear", alone=True, parameters=(weight,)),
        ),
        calls=("a", "b"),
    )
    case = CaseSpec(
        world_size=2,
        model=model,
        inputs=Given(),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="a", grouped=("b",)))),
        frozen=frozen,
        program=(Forward(), Backward()),
    )
    assert unit_features(anatomy(case), "a")["quiet_end"] == expected
