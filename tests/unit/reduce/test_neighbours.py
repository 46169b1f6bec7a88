"""Every neighbour is a sound case that is plainer in one thing."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from fsdpfuzz.case import (
    DIMENSIONS,
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
    Op,
    Precision,
    Sequential,
    Simpler,
    StateDict,
    Step,
    Switch,
    anatomy,
    as_document,
    decode,
    digest,
    dtypes_fit,
    encode,
    foreseen_rejections,
    within,
)
from fsdpfuzz.case.operations import (
    AverageUnmanaged,
    Clip,
    FullParams,
    Overflow,
    Rebuild,
    Transfer,
    Unscale,
    UpdateScale,
)
from fsdpfuzz.case.wrap import Unit
from fsdpfuzz.reduce import neighbours, simpler
from fsdpfuzz.seeds import SEEDS
from fsdpfuzz.strategies import cases
from tests.unit.reduce.samples import FIRST, SECOND, without_a_child, without_an_operation

CASES = [FIRST, SECOND, *(seed.case for seed in SEEDS[::5])]


def changed(first: Any, second: Any) -> set[str]:
    """Names of the fields in which two structs differ."""
    names = first.__struct_fields__
    return {name for name in names if getattr(first, name) != getattr(second, name)}


def fields_changed(before: tuple[Any, ...], after: tuple[Any, ...]) -> set[str]:
    """The same over two tuples: ``items`` if some are gone, else fields of those that differ."""
    if len(before) != len(after):
        left = iter(before)
        gone = all(any(item == other for other in left) for item in after)
        return {"items"} if gone and len(after) < len(before) else {"items", "and more"}
    pairs = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    if any(type(a) is not type(b) for a, b in pairs):
        return {"kinds"}
    return {name for a, b in pairs for name in changed(a, b)}


def within_it(path: str, unit: Unit) -> Unit:
    """The unit without what it is told to ignore elsewhere: units found by class get it all."""
    modules = tuple(name for name in unit.ignored if within(name, path))
    parameters = tuple(name for name in unit.ignored_parameters if within(name, path))
    return msgspec.structs.replace(unit, ignored=modules, ignored_parameters=parameters)


def replanned(program: tuple[Op, ...]) -> tuple[Op, ...]:
    """The program without what a rebuild wraps in: all that it is built with stays."""
    return tuple(
        msgspec.structs.replace(op, plan=Fsdp1Plan(units=(Fsdp1Unit(path=""),)))
        if isinstance(op, Rebuild)
        else op
        for op in program
    )


def things(case: CaseSpec, neighbour: CaseSpec) -> set[str]:
    """In what two cases differ, in words."""
    fields = changed(case, neighbour)
    if "mesh" in fields and fields <= {"mesh", "plan", "program"}:
        # Strategies that need one go with it, those of rebuilds too, and nothing else.
        assert replanned(case.program) == replanned(neighbour.program)
        return {"mesh"}
    if fields == {"mesh", "tensor_parallel"} and case.tensor_parallel is not None:
        # Each replica then has as many shards as ranks.
        shard = 1 if case.mesh is None else case.mesh.shard * case.tensor_parallel.size
        assert neighbour.mesh is not None
        assert neighbour.mesh.shard == shard
        return {"tensor_parallel"}
    if "grad_scaler" in fields and fields <= {"grad_scaler", "program"}:
        # What is asked of it goes with it, and nothing else.
        told = (Unscale, UpdateScale, Overflow)
        assert neighbour.program == tuple(o for o in case.program if not isinstance(o, told))
        return {"grad_scaler"}
    (field,) = fields
    before, after = getattr(case, field), getattr(neighbour, field)
    if field == "plan":
        shape = {name for name in changed(before, after) if name != "units"}
        paths = [[unit.path for unit in plan.units] for plan in (before, after)]
        if shape or paths[0] != paths[1]:
            # Units come or go, or are named in another way; those that stay have what they had.
            options = [
                {p: within_it(p, u) for p, u in anatomy(c).options.items()}
                for c in (case, neighbour)
            ]
            both = options[0].keys() & options[1].keys()
            more = {n for p in both for n in changed(options[0][p], options[1][p])}
            if options[0].keys() == options[1].keys():
                assert anatomy(case).owners == anatomy(neighbour).owners
            return {"units"} | more - {"path"}  # those found by class have the root's
        return fields_changed(before.units, after.units)
    if isinstance(before, tuple) and before and isinstance(before[0], msgspec.Struct):
        names = {f"{field}.{name}" for name in fields_changed(before, after)}
        # One call loads the model and the optimizer's state, so that it goes with this.
        loading = [op for op in after if isinstance(op, Transfer)]
        if "program.state" in names and not any(op.state for op in loading):
            names.discard("program.together")
        # The whole model has no prefix: it goes with the module whose it is.
        whole = not any(getattr(op, "submodule", "") for op in after)
        return names - {"program.prefix"} if whole and "program.submodule" in names else names
    if isinstance(before, msgspec.Struct) and isinstance(after, msgspec.Struct):
        return changed(before, after)
    return fields  # also where a struct as a whole is left out


def assert_in_one_thing(case: CaseSpec) -> None:
    for neighbour in simpler(case):
        if neighbour.words:
            assert len(things(case, neighbour.case)) == 1, (neighbour.words, as_document(case))


@pytest.mark.parametrize("case", CASES, ids=digest)
def test_each_option_differs_in_one_thing(case: CaseSpec) -> None:
    assert_in_one_thing(case)


def test_a_prefix_goes_with_its_module() -> None:
    state = StateDict(form="full", submodule="0", prefix="dropped")
    case = CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=1), Linear(out=1))),
        inputs=Dense(width=2, batch=1),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
        program=(state,),
    )
    assert_in_one_thing(case)
    told = {neighbour.words: things(case, neighbour.case) for neighbour in simpler(case)}
    assert told["submodules"] == {"program.submodule"}
    assert told["keep_submodule_prefixes"] == {"program.prefix"}
    other = msgspec.structs.replace(state, submodule="1", prefix="kept")
    elsewhere = msgspec.structs.replace(case, program=(other,))
    assert things(case, elsewhere) == {"program.submodule", "program.prefix"}


@pytest.mark.parametrize("option", ["forward_prefetch", "limit_all_gathers"])
def test_a_second_thing_would_be_noticed(option: str) -> None:
    flipped = not getattr(FIRST.plan.units[0], option)

    def spoilt(case: CaseSpec) -> list[Simpler]:
        found = []
        for neighbour in _simpler(case):
            plan = neighbour.case.plan
            units = [msgspec.structs.replace(u, **{option: flipped}) for u in plan.units]
            plan = msgspec.structs.replace(plan, units=tuple(units))
            found.append(Simpler(msgspec.structs.replace(neighbour.case, plan=plan), "words"))
        return found

    (dimension,) = (d for d in DIMENSIONS if d.name == "sharding")
    _simpler = dimension.simpler
    with mock.patch.object(dimension, "simpler", spoilt), pytest.raises(AssertionError):
        assert_in_one_thing(FIRST)


def assert_sound(case: CaseSpec) -> None:
    own, refused = digest(case), bool(foreseen_rejections(anatomy(case)))
    seen = Counter(digest(neighbour.case) for neighbour in simpler(case))
    assert own not in seen
    assert set(seen.values()) <= {1}
    for neighbour in simpler(case):
        assert decode(encode(neighbour.case)) == neighbour.case
        assert refused or not foreseen_rejections(anatomy(neighbour.case))


@pytest.mark.parametrize("case", CASES, ids=digest)
def test_each_is_sound_another_case_and_met_once(case: CaseSpec) -> None:
    assert_sound(case)


@settings(max_examples=90, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(case=cases(world_sizes=(2, 3)))
def test_so_it_is_for_whatever_is_drawn(case: CaseSpec) -> None:
    assert_sound(case)
    assert_in_one_thing(case)


def test_what_needs_two_children_keeps_them() -> None:
    """Their number is no contradiction within the case, so only reading it back tells."""
    paths = Switch(children=(Linear(out=1, bias=False), Linear(out=1, bias=False)))
    case = CaseSpec(
        world_size=2,
        model=paths,
        inputs=Dense(width=1, batch=1),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
        program=(Forward(), Backward()),
    )
    assert any(neighbour.case.model == Linear(out=1, bias=False) for neighbour in simpler(case))
    assert_sound(case)


@pytest.mark.parametrize("case", [FIRST, SECOND], ids=["fsdp1", "fsdp2"])
def test_a_step_to_a_neighbour_leads_back_nowhere(case: CaseSpec) -> None:
    """Whichever neighbour is taken, there is an end to it."""
    seen, now = {digest(case)}, case
    for _ in range(400):
        after = next((n.case for n in simpler(now)), None)
        if after is None:
            return
        assert digest(after) not in seen
        seen.add(digest(after))
        now = after
    pytest.fail(f"still going at {encode(now)!r}")


@pytest.mark.parametrize("case", [FIRST, SECOND], ids=["fsdp1", "fsdp2"])
def test_each_operation_that_can_go_is_tried(case: CaseSpec) -> None:
    """Each forward with its backward, and each operation that stands for itself."""
    tried = {n.case.program for n in simpler(case)}
    alone = [op for op in case.program if op.kind() not in ("forward", "backward")]
    for op in alone:
        i = case.program.index(op)
        assert case.program[:i] + case.program[i + 1 :] in tried, op
    pairs = [
        smaller.program
        for smaller in without_an_operation(case)
        if len(smaller.program) == len(case.program) - 2
        and [op.kind() for op in smaller.program].count("forward")
        == [op.kind() for op in smaller.program].count("backward")
        == [op.kind() for op in case.program].count("forward") - 1
    ]
    assert pairs
    assert set(pairs) & tried


def test_one_of_the_losses_that_share_a_backward_is_tried_without() -> None:
    shared = (Forward(), Forward(masked=0), Backward())
    program = (*shared, Forward(), Backward())
    tried = {n.case.program for n in simpler(msgspec.structs.replace(SECOND, program=program))}
    assert {program[1:], program[:1] + program[2:], shared, program[3:]} <= tried
    # The loss of another backward stays with its own.
    assert (*shared[:2], Backward()) in tried
    assert (Forward(), Forward(masked=0), Forward(), Backward()) not in tried


@pytest.mark.parametrize("case", [FIRST, SECOND], ids=["fsdp1", "fsdp2"])
def test_each_child_that_can_go_is_tried(case: CaseSpec) -> None:
    tried = {n.case.model for n in simpler(case)}
    plain = msgspec.structs.replace(
        case, frozen=(), held_out=(), ties=(), checkpoints=(), twins=(), program=case.program[-4:]
    )
    root = [u for u in case.plan.units if not u.path]
    root = [msgspec.structs.replace(unit, ignored=()) if unit.ignored else unit for unit in root]
    plain = msgspec.structs.replace(
        plain, plan=msgspec.structs.replace(case.plan, units=tuple(root))
    )
    # Widths that follow from those before them change the models that come behind.
    sound = [
        smaller.model for smaller in without_a_child(plain) if not neighbours._unsound(smaller)
    ]
    assert sound
    assert set(sound) <= tried


def test_the_plainest_is_reached_without_a_run() -> None:
    made = neighbours.plainest(FIRST, DIMENSIONS)
    assert len(encode(made)) < len(encode(FIRST)) / 2
    assert made.plan.units == (type(FIRST.plan.units[0])(path=""),)
    assert (made.checkpoints, made.frozen, made.held_out, made.twins) == ((), (), (), ())


def test_a_switch_gives_way_to_a_row_and_its_flips_go() -> None:
    case = CaseSpec(
        world_size=2,
        model=Switch(children=(Linear(out=3), Linear(out=3))),
        inputs=Dense(width=3),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path="branches.1"), Fsdp2Unit(path=""))),
        program=(Flip(path="", ranks=(0, 1)), Forward(), Flip(path="", ranks=(0,)), Backward()),
    )
    row = Sequential(children=(Linear(out=3), Linear(out=3)))
    (made,) = (found.case for found in simpler(case) if found.case.model == row)
    assert [unit.path for unit in made.plan.units] == ["1", ""]
    assert made.program == (Forward(), Backward())


def test_no_neighbour_puts_out_what_does_not_fit() -> None:
    plan = Fsdp2Plan(
        units=(
            Fsdp2Unit(path="0", precision=Precision(param="float16", output="float32")),
            Fsdp2Unit(path=""),
        )
    )
    model = Sequential(children=(Linear(out=1), Linear(out=1)))
    case = CaseSpec(
        world_size=2, model=model, inputs=Dense(width=1), plan=plan, program=(Forward(),)
    )
    left = [neighbour.case for neighbour in simpler(case)]
    kept = [c for c in left if [u.path for u in c.plan.units] == ["0", ""] and c.model == model]
    assert kept
    assert all(dtypes_fit(anatomy(c)) for c in left)


def test_an_operation_is_tried_on_the_first_parameter_of_a_module() -> None:
    """A bias that is zero at first needs a step before a lost write of it shows."""
    model = Sequential(children=(Linear(out=2), Linear(out=3)))
    plan = Fsdp1Plan(units=(Fsdp1Unit(path=""),))
    program = (Forward(), Backward(), Step(), FullParams(written=("1.bias",)))
    case = CaseSpec(world_size=2, model=model, inputs=Dense(width=2), plan=plan, program=program)
    first = msgspec.structs.replace(case, program=(*program[:3], FullParams(written=("1.weight",))))
    assert first in [neighbour.case for neighbour in simpler(case)]
    assert case not in [neighbour.case for neighbour in simpler(first)]


def test_what_is_averaged_goes_with_what_was_ignored() -> None:
    """Neither can go alone: each is unsound, or trains apart, without the other."""
    plan = Fsdp1Plan(units=(Fsdp1Unit(path="", ignored_parameters=("0.weight",)),))
    model = Sequential(children=(Linear(out=2), Linear(out=3)))
    program = (Forward(), Backward(), AverageUnmanaged(), Clip(max_norm=0.1))
    case = CaseSpec(world_size=2, model=model, inputs=Dense(width=2), plan=plan, program=program)
    alone = msgspec.structs.replace(case, plan=Fsdp1Plan(units=(Fsdp1Unit(path=""),)))
    without = msgspec.structs.replace(alone, program=(Forward(), Backward(), program[-1]))
    found = {digest(neighbour.case): neighbour.words for neighbour in simpler(case)}
    assert digest(alone) not in found
    assert found[digest(without)] == ""
