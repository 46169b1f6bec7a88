"""What is drawn of a model that its own code wraps: as it is, and with a thing or two changed."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsdpfuzz.case import (
    CaseSpec,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Imported,
    ImportedModule,
    ImportedParameter,
    Precision,
    anatomy,
    check,
    foreseen_rejections,
    lower,
    written,
)
from fsdpfuzz.case.operations import Clip
from fsdpfuzz.reduce import simpler
from fsdpfuzz.strategies import cases


def _module(path: str, *, alone: bool = True) -> ImportedModule:
    weight = ImportedParameter(name="weight", shape=(4, 4))
    bias = ImportedParameter(name="bias", shape=(4,), frozen=path == "first")
    return ImportedModule(path=path, cls="Linear", alone=alone, parameters=(weight, bias))


MODEL = Imported(
    target="mine.py",
    functions=("Small.model", "batch", "shard", "optimizer", "clip"),
    modules=(ImportedModule(path="", cls="Net", alone=True), *map(_module, ("first", "second"))),
    calls=("first", "second"),
    computes_in=("bfloat16",),
    wrapped=True,
)
PLAN = Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="first")))
WORDS = ("accumulate", "forward_backward", "clip", "step", "eval", "reload")
QUIET = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def drawn(strategy: st.SearchStrategy[CaseSpec], number: int) -> list[CaseSpec]:
    found: list[CaseSpec] = []

    @settings(QUIET, max_examples=number)
    @given(strategy)
    def take(case: CaseSpec) -> None:
        found.append(case)

    take()
    return found


def test_as_it_is_only_program_and_seed_are_drawn() -> None:
    for case in drawn(cases(apis=("fsdp2",), model=MODEL, plan=PLAN), 60):
        check(case)
        assert (case.plan, case.frozen, case.checkpoints) == (PLAN, ("first.bias",), ())
        assert case.optimizer is None or case.optimizer.name == "own"
        assert all(op.own for op in case.program if isinstance(op, Clip))


def test_their_own_program_is_all_that_is_trained() -> None:
    found = drawn(cases(apis=("fsdp2",), model=MODEL, plan=PLAN, words=WORDS), 30)
    assert {case.program for case in found} == {written(WORDS, PLAN, clips=True)}
    assert len({case.seed for case in found}) > 5


def test_around_it_one_or_two_things_are_changed_and_none_is_refused() -> None:
    changed: Counter[str] = Counter()
    for case in drawn(cases(apis=("fsdp2",), model=MODEL, plan=PLAN, around=True), 200):
        check(case)
        a = anatomy(case)
        lower(a)
        assert not foreseen_rejections(a)
        units = {unit.path for unit in case.plan.units}
        names = {
            "frozen": case.frozen != MODEL.own_frozen,
            "checkpoint": bool(case.checkpoints),
            "unit": units != {"", "first"},
            "precision": any(unit.precision is not None for unit in case.plan.units),
            "mesh": case.mesh is not None,
        }
        changed.update(name for name, so in names.items() if so)
        changed["nothing"] += not any(names.values())
        changed["three"] += sum(names.values()) > 2
        own = a.imported
        assert own is not None
        assert own.wrapped == (case.plan == PLAN and case.mesh is None)
    assert all(changed[name] > 5 for name in ("frozen", "checkpoint", "unit", "precision", "mesh"))
    assert not changed["three"]


def test_another_mask_takes_the_wrapping_out_of_hands_that_freeze() -> None:
    model = msgspec.structs.replace(MODEL, leaves_frozen=("second.weight",))
    found = drawn(cases(apis=("fsdp2",), model=model, plan=PLAN, around=True), 100)
    masks: dict[bool, set[tuple[str, ...]]] = {True: set(), False: set()}
    for case in found:
        check(case)
        own = anatomy(case).imported
        assert own is not None
        masks[own.wrapped].add(case.frozen)
    assert masks[True] == {("second.weight",)}
    assert len(masks[False]) > 2


def test_over_a_mesh_there_is_no_local_state_dict() -> None:
    plan = Fsdp1Plan(units=(Fsdp1Unit(path=""), Fsdp1Unit(path="first")))
    model = msgspec.structs.replace(MODEL, leaves_frozen=())  # flat units are frozen as a whole
    strategy = cases(focus="state_dict", apis=("fsdp1",), model=model, plan=plan, around=True)
    found = drawn(strategy, 300)
    meshes = Counter(case.mesh is not None for case in found)
    assert min(meshes[True], meshes[False]) > 20
    for case in found:
        check(case)


def test_what_was_changed_is_reduced_to_what_was_written() -> None:
    start = next(
        case
        for case in drawn(cases(apis=("fsdp2",), model=MODEL, plan=PLAN, around=True), 200)
        if case.frozen != MODEL.own_frozen and case.plan == PLAN
    )
    plainer = [found.case for found in simpler(start)]
    assert msgspec.structs.replace(start, frozen=MODEL.own_frozen) in plainer
    assert all(case.frozen in (start.frozen, MODEL.own_frozen) for case in plainer)


def test_units_stay_where_nobody_knows_what_runs_in_their_precision() -> None:
    low = Precision(param="bfloat16")
    units = (Fsdp2Unit(path="", precision=low), Fsdp2Unit(path="first", precision=low))
    given: dict[str, set[tuple[str, ...]]] = {}
    for name, halves in (("known", ("bfloat16",)), ("unknown", ())):
        model = msgspec.structs.replace(MODEL, computes_in=halves)
        strategy = cases(apis=("fsdp2",), model=model, plan=Fsdp2Plan(units=units), around=True)
        given[name] = {tuple(unit.path for unit in c.plan.units) for c in drawn(strategy, 100)}
    assert given["unknown"] == {("", "first")}
    assert given["known"] >= {("", "first"), ("",), ("", "first", "second")}


def test_what_is_used_outside_of_its_calls_is_in_no_list_of_modules() -> None:
    """Else it would be read before the first of the list is called: sharded."""
    modules = (
        ImportedModule(path="", cls="Net", alone=True),
        *(_module(path, alone=path != "second") for path in ("first", "second", "third")),
    )
    model = msgspec.structs.replace(
        MODEL, modules=modules, calls=("first", "second", "third"), wrapped=False
    )
    found = drawn(cases(apis=("fsdp2",), model=model), 400)
    listed = {(unit.path, *unit.grouped) for case in found for unit in case.plan.units}
    assert {paths for paths in listed if len(paths) > 1} == {("first", "third")}


def test_their_own_program_goes_with_what_a_unit_ignores() -> None:
    """The optimizer is drawn behind the program, and takes no list of tensors and DTensors then."""
    unit = Fsdp2Unit(path="", ignored_parameters=("first.bias",))
    plan, words = Fsdp2Plan(units=(unit,)), ("forward_backward", "clip", "step")
    # It is frozen by their own code, so a norm has no part in it.
    model = msgspec.structs.replace(MODEL, functions=("model", "batch", "shard"))
    found = drawn(cases(apis=("fsdp2",), model=model, plan=plan, words=words), 30)
    assert {case.program for case in found} == {written(words, plan)}
    for case in found:
        check(case)
