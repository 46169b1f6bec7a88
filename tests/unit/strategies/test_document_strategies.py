"""Cases of checkpointing, fine-tuning and execution order are sound, varied and shrink."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import strategies as st

from fsdpfuzz import strategies
from fsdpfuzz.spec import (
    Backward,
    CaseSpec,
    Checkpoint,
    Flip,
    Forward,
    Fsdp1Plan,
    Linear,
    Mode,
    RequiresGrad,
    Switch,
    Twin,
    ZeroGrad,
    case_places,
    check,
    decode,
    encode,
    features,
    foreseen_rejections,
    frozen_names,
    mixed_units,
    order_error,
    order_warnings,
    parting,
    planned_units,
    variant_of,
    within,
)
from tests.unit.strategies.minimal import minimal
from tests.unit.strategies.test_cases import drawn
from tests.unit.strategies.test_shrinking import ONCE, PLAIN, SIMPLEST

Strategy = Callable[..., st.SearchStrategy[CaseSpec]]
STRATEGIES: dict[str, Strategy] = {
    "checkpoint": strategies.checkpoint_cases,
    "fine_tune": strategies.fine_tune_cases,
    "exec_order": strategies.exec_order_cases,
}
GROUND = frozenset(strategies.GROUND)


@cache
def sample(name: str) -> list[CaseSpec]:
    strategy = STRATEGIES[name]
    return [case for start in (1, 2, 3) for case in drawn(strategy(world_sizes=(2, 3)), 250, start)]


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_draw_is_checked_and_survives_json(name: str) -> None:
    for case in sample(name):
        check(case)
        assert decode(encode(case)) == case
        for twin in case.twins:
            check(variant_of(case, twin))


@pytest.mark.parametrize("name", STRATEGIES)
def test_refused_cases_are_few(name: str) -> None:
    cases = sample(name)
    assert sum(bool(foreseen_rejections(case)) for case in cases) < 0.10 * len(cases)


@pytest.mark.parametrize("name", ["checkpoint", "fine_tune"])
def test_without_misuse_none_is_refused(name: str) -> None:
    clean = drawn(STRATEGIES[name](misuse=False), 200)
    assert [case for case in clean if foreseen_rejections(case)] == []


@pytest.mark.parametrize("name", STRATEGIES)
def test_known_ground_is_rare_and_can_be_kept_off(name: str) -> None:
    met = sum(bool(strategies.known_ground(case)) for case in sample(name))
    assert met < 0.10 * len(sample(name))
    avoided = drawn(STRATEGIES[name](avoid=GROUND), 200)
    for case in avoided:
        # What FSDP refuses never comes as far as a defect.
        assert foreseen_rejections(case) or not strategies.known_ground(case)
        assert not any(strategies.known_ground(variant_of(case, twin)) for twin in case.twins)


WANTED: dict[str, dict[str, set[str]]] = {
    "checkpoint": {
        "api": {"fsdp1", "fsdp2"},
        "sharding": {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"},
        "input_grad": {"on", "off"},
        "steps": {"1", "2", "3"},
        "freeze": {"none", "some", "alternate"},
        "reused": {"no", "grad", "no_grad"},
        "buffers": {"no", "updating"},
    },
    "fine_tune": {
        "api": {"fsdp1", "fsdp2"},
        "frozen_unit": {"on", "off"},
        "refrozen": {"no", "yes", "after lone forward"},
        "precision": {"on", "off"},
        "backward_prefetch": {"BACKWARD_PRE", "BACKWARD_POST", "off"},
        "input_grad": {"on", "off"},
        "steps": {"1", "2", "3"},
        "reused": {"no", "grad", "no_grad"},
    },
    "exec_order": {
        "api": {"fsdp1", "fsdp2"},
        "world_size": {"2", "3"},
        "flips": {"no", "all", "some"},
        "debug_level": {"OFF", "INFO", "DETAIL"},
        "frozen_unit": {"on", "off"},
        "use_orig_params": {"on", "off"},
        "sharding": {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"},
        "backward_prefetch": {"BACKWARD_PRE", "BACKWARD_POST", "off"},
    },
}


@pytest.mark.parametrize(("name", "feature"), [(n, f) for n, w in WANTED.items() for f in w])
def test_every_value_occurs(name: str, feature: str) -> None:
    seen = Counter(str(features(case).get(feature)) for case in sample(name))
    assert WANTED[name][feature] <= seen.keys(), seen


def test_most_checkpoint_cases_have_a_twin_in_every_form() -> None:
    cases = sample("checkpoint")
    assert sum(bool(case.twins) for case in cases) > 0.85 * len(cases)
    assert any(len(case.twins) == 2 for case in cases)
    forms = {
        (c.kind, c.reentrant)
        for case in cases
        for checkpoints in (case.checkpoints, *(twin.checkpoints or () for twin in case.twins))
        for c in checkpoints
    }
    assert forms == {
        *((k, r) for k in ("wrapper", "function", "function_offload") for r in (False, True)),
        ("offload", False),
        ("composable", False),
    }
    for case in cases:
        for twin in case.twins:
            assert twin.checkpoints != case.checkpoints
        assert () in (case.checkpoints, *(t.checkpoints for t in case.twins)) or not case.twins


def test_a_held_out_twin_trains_as_the_frozen_case_does() -> None:
    twins = [(case, twin) for case in sample("fine_tune") for twin in case.twins]
    assert len(twins) > 50
    for case, twin in twins:
        assert twin == Twin(name="held_out", frozen=(), held_out=case.frozen)
        assert case.frozen
        assert not mixed_units(case)
        assert not any(isinstance(op, RequiresGrad) for op in case.program)


def test_what_fine_tuning_changes_is_real() -> None:
    changes = 0
    for case in sample("fine_tune"):
        frozen = set(frozen_names(case))
        for op in case.program:
            if isinstance(op, RequiresGrad) and op.value:
                assert frozen.issuperset(op.parameters)
                frozen -= set(op.parameters)
                changes += 1
            elif isinstance(op, RequiresGrad):
                assert not frozen.issuperset(op.parameters)
                frozen |= set(op.parameters)
                changes += 1
    assert changes > 50


def test_ranks_part_in_the_first_iteration_later_and_not_at_all() -> None:
    cases = sample("exec_order")
    errors = [case for case in cases if order_error(case) is not None]
    warned = [case for case in cases if any(order_warnings(case) or ())]
    silent = [case for case in cases if parting(case) is not None and case.debug_level != "DETAIL"]
    assert min(len(errors), len(warned), len(silent)) > 10
    assert {sum(bool(w) for w in order_warnings(case) or ()) for case in warned} >= {1, 2}
    assert any(isinstance(op, Mode) for case in cases for op in case.program)


def test_collectives_match_where_nothing_stops_ranks_that_part() -> None:
    apart = 0
    for case in sample("exec_order"):
        if parting(case) is None or order_error(case) is not None:
            continue
        assert case.api == "fsdp1"
        paths = [unit.path for unit in case.plan.units if unit.path.startswith("2.branches.")]
        assert len(paths) > 1
        sizes: Counter[str] = Counter()
        for place in case_places(case):
            for path in paths:
                sizes[path] += within(place.path, path) * sum(p.numel for p in place.parameters)
        assert len(set(sizes.values())) == 1
        apart += 1
    assert apart > 20


def test_one_twin_is_left_of_a_checkpoint_case() -> None:
    for api in ("fsdp1", "fsdp2"):
        case = minimal(strategies.checkpoint_cases(apis=(api,)))
        simplest = SIMPLEST[api]
        assert (case.model, case.program, case.plan) == (PLAIN, ONCE, simplest.plan)
        assert case.twins == (
            Twin(name="first", checkpoints=(Checkpoint(path="", side="around"),)),
        )


def test_a_composable_twin_shrinks() -> None:
    case = minimal(
        strategies.checkpoint_cases(apis=("fsdp2",)),
        lambda c: any(p.kind == "composable" for t in c.twins for p in t.checkpoints or ()),
    )
    assert len(planned_units(case)) == 1
    assert sum(isinstance(place.node, Linear) for place in case_places(case)) <= 2
    placed = [checkpoint for twin in case.twins for checkpoint in twin.checkpoints or ()]
    assert Checkpoint(path="", kind="composable", side="inside") in placed
    assert len(placed) <= 2


def test_a_fine_tuned_case_shrinks() -> None:
    for api in ("fsdp1", "fsdp2"):
        plain = minimal(strategies.fine_tune_cases(apis=(api,)))
        assert plain == SIMPLEST[api]
        twin = minimal(strategies.fine_tune_cases(apis=(api,)), lambda c: c.twins)
        assert len(planned_units(twin)) <= 3
        assert len(case_places(twin)) <= 4
        assert twin.program == ONCE
        unfrozen = minimal(
            strategies.fine_tune_cases(apis=(api,)),
            lambda c: any(isinstance(op, RequiresGrad) and op.value for op in c.program),
        )
        assert sum(isinstance(op, Backward) for op in unfrozen.program) <= 3
        assert len(case_places(unfrozen)) <= 4


def test_an_order_case_shrinks() -> None:
    plain = minimal(strategies.exec_order_cases())
    assert plain.program == (Forward(), Backward())
    assert plain.debug_level == "OFF"
    error = minimal(strategies.exec_order_cases(), lambda c: order_error(c) is not None)
    assert error.program == (Flip(path="2", ranks=(0,)), *ONCE, ZeroGrad())
    warned = minimal(strategies.exec_order_cases(), lambda c: any(order_warnings(c) or ()))
    assert [type(op) for op in warned.program].count(Flip) == 1
    assert sum(isinstance(op, Backward) for op in warned.program) == 2
    for case in (error, warned):
        assert case.world_size == 2
        assert isinstance(case.plan, Fsdp1Plan)
        assert all(unit.sharding == "FULL_SHARD" for unit in case.plan.units)
        (switch,) = (c for c in case.model.children if isinstance(c, Switch))  # type: ignore[union-attr]
        assert switch.children == (Linear(out=1, bias=False),) * 2
