"""What each focus is for: what its source document exercises, and what makes its cases sound."""

from __future__ import annotations

from collections import Counter

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Flip,
    Forward,
    Fsdp2Plan,
    Mode,
    RequiresGrad,
    StateDict,
    Tokens,
    Variant,
    anatomy,
    calls_by_the_book,
    dtypes_fit,
    is_orderly,
    mixed_units,
    within,
)
from fsdpfuzz.expect.order import order_error, order_warnings, parting
from fsdpfuzz.seeds import by_family
from fsdpfuzz.strategies import FOCUSES
from fsdpfuzz.strategies.drawing import Focus
from tests.unit.strategies.sample import SIZE, everything, features_of, large, sample

DOCUMENTS: dict[str, Focus] = {
    "000": "checkpoint",
    "001": "state_dict",
    "002": "fine_tune",
    "003": "exec_order",
    "004": "memory",
}
ONLY_SEEDS = {
    ("variants", "plan"): "variants that are drawn have the plan of their case",
    ("held_out", "on"): "and hold out what the case freezes, not what both train",
    ("steps", "6"): "a program has three iterations at most",
}
"""What no draw has, and why."""
MAX_ELSEWHERE = 3
"""How many values of a document are so rare in its focus that other focuses have to help."""


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_focus_draws_what_its_document_exercises(document: str) -> None:
    drawn = {pair for case in large(DOCUMENTS[document]) for pair in values(case)}
    asked = {pair for seed in by_family(document) for pair in values(seed.case)}
    assert len(asked - drawn - ONLY_SEEDS.keys()) <= MAX_ELSEWHERE
    drawn = {pair for case in everything() for pair in values(case)}
    assert asked - drawn <= ONLY_SEEDS.keys()


def values(case: CaseSpec) -> set[tuple[str, str]]:
    """Name and value of each feature, each other kind of module by itself."""
    found = dict(features_of(case))
    kinds = found.pop("kinds").split("+")
    return {*found.items(), *(("kinds", kind) for kind in kinds)} - {("world_size", "1")}


@pytest.mark.parametrize("focus", FOCUSES)
def test_nothing_uses_gradients_or_saves_state_before_they_are_reduced(focus: Focus) -> None:
    for case in sample(focus).cases:
        assert is_orderly(case.program)
        assert calls_by_the_book(anatomy(case))
        assert dtypes_fit(anatomy(case)), case
        assert case.program


def test_a_program_without_training_saves_state() -> None:
    saving = [c for c in everything() if not any(isinstance(op, Backward) for op in c.program)]
    assert saving
    for case in saving:
        assert any(isinstance(op, StateDict) for op in case.program)


SCARCE = {("fsdp1", "full", True, True)}
"""One state dict in a thousand: its offload is known to crash."""


def test_most_state_dict_cases_save_and_half_of_them_train() -> None:
    cases = sample("state_dict").cases
    saves = [c for c in cases if any(isinstance(op, StateDict) for op in c.program)]
    trains = [c for c in saves if any(isinstance(op, Backward) for op in c.program)]
    assert len(saves) > 0.85 * SIZE
    assert len(trains) > 0.4 * SIZE
    taken = {
        (c.api, op.form, op.rank0_only, op.cpu_offload)
        for c in large("state_dict")
        for op in c.program
        if isinstance(op, StateDict)
    }
    assert taken | SCARCE == {
        (api, form, rank0, offload)
        for api, forms in (("fsdp1", ("full", "sharded", "local")), ("fsdp2", ("full", "sharded")))
        for form in forms
        for rank0 in (False, *([True] if form == "full" else []))
        for offload in (False, True)
    }


def test_memory_cases_run_under_the_tracker_with_each_option() -> None:
    tracked = [case for case in large("memory") if case.probes]
    assert len(tracked) > 0.1 * len(large("memory"))
    assert all(isinstance(case.plan, Fsdp2Plan) for case in tracked)
    found = {pair for case in tracked for pair in features_of(case).items()}
    assert found >= {("cpu_offload", "on"), ("precision", "on"), ("units", "3+"), ("steps", "3")}


def test_most_checkpoint_cases_have_a_variant_without_a_checkpoint() -> None:
    cases = sample("checkpoint").cases
    assert sum(bool(case.twins) for case in cases) > 0.6 * SIZE
    assert any(len(case.twins) == 2 for case in cases)
    for case in cases:
        placed = [case.checkpoints, *(v.checkpoints for v in case.twins)]
        assert len(set(placed)) == len(placed)
        assert not case.twins or any(not form for form in placed) or case.twins[0].frozen == ()


def test_reentrant_checkpointing_gets_an_input_that_requires_grad() -> None:
    met = 0
    for case in everything():
        forms = (case.checkpoints, *(v.checkpoints or () for v in case.twins))
        if any(c.reentrant for form in forms for c in form):
            met += 1
            if isinstance(case.inputs, Tokens):
                a = anatomy(case)
                around = [c.path for form in forms for c in form if c.reentrant]
                assert all(a.by_path[path].width_in for path in around)
            else:
                assert case.inputs.requires_grad
    assert met > 100


def test_a_held_out_variant_trains_as_the_frozen_case_does() -> None:
    found = [(c, v) for c in everything() for v in c.twins if v.frozen is not None]
    assert len(found) > 50
    for case, variant in found:
        assert variant == Variant(name="held_out", frozen=(), held_out=case.frozen)
        assert case.frozen
        assert not mixed_units(anatomy(case))
        assert not any(isinstance(op, RequiresGrad | Flip) for op in case.program)


def test_what_fine_tuning_changes_is_real() -> None:
    changes: Counter[bool] = Counter()
    for case in large("fine_tune"):
        frozen = set(case.frozen)
        for op in case.program:
            if isinstance(op, RequiresGrad):
                names = set(op.parameters)
                assert names
                assert frozen.issuperset(names) if op.value else not frozen.issuperset(names)
                frozen = frozen - names if op.value else frozen | names
                changes[op.value] += 1
    assert min(changes[True], changes[False]) > 20, changes


def test_ranks_part_in_the_first_iteration_later_and_not_at_all() -> None:
    found: Counter[str] = Counter()
    for case in large("exec_order"):
        a = anatomy(case)
        apart = parting(a) is not None
        found["error"] += order_error(a) is not None
        found["warned"] += any(order_warnings(a) or ())
        found["silent"] += apart and case.debug_level != "DETAIL"
        found["together"] += not apart and any(isinstance(op, Flip) for op in case.program)
        found["eval"] += any(isinstance(op, Mode) for op in case.program)
    assert min(found.values()) > 20, found


def test_collectives_match_where_nothing_stops_ranks_that_part() -> None:
    apart = 0
    for case in everything():
        a = anatomy(case)
        if parting(a) is None or order_error(a) is not None:
            continue
        assert case.api == "fsdp1"
        paths = [unit for unit in a.units if ".branches." in f".{unit}"]
        assert len(paths) > 1
        sizes = {
            sum(p.numel for p in a.parameters if within(p.fqn.rpartition(".")[0], path))
            for path in paths
        }
        assert len(sizes) == 1
        apart += 1
    assert apart > 20


def test_a_unit_goes_with_its_first_child_that_is_called_on_its_own() -> None:
    met = 0
    for case in everything():
        for place in anatomy(case).places:
            if getattr(place.node, "no_grad", "") == "first_child":
                met += first_children(case, place.path)
    assert met > 3


def first_children(case: CaseSpec, path: str) -> bool:
    """Whether the body at ``path`` is a unit; then its first child is one, or ignored whole."""
    a = anatomy(case)
    body = f"{path}.body".lstrip(".")
    first = f"{body}.0"
    managed = [fqn for fqn, owner in a.owners.items() if owner is not None and within(fqn, first)]
    assert body not in a.units or first in a.units or not managed
    return body in a.units


def test_lone_forwards_are_of_the_root_or_of_a_unit_below_it() -> None:
    targets = Counter(
        bool(op.target) for c in everything() for op in c.program if isinstance(op, Forward)
    )
    assert targets[True] > 10
    for case in everything():
        a = anatomy(case)
        for op in case.program:
            if isinstance(op, Forward) and op.target:
                assert not op.grad
                assert op.target in a.units
