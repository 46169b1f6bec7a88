"""Every draw is valid, most draws train, and what people use FSDP with does occur."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fsdpfuzz import strategies
from fsdpfuzz.errors import UsageError
from fsdpfuzz.spec import (
    FEATURES,
    Activation,
    CaseSpec,
    Dense,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Node,
    Repeat,
    Sequential,
    case_places,
    check,
    decode,
    digest,
    encode,
    features,
    foreseen_rejections,
    frozen_names,
    parameters,
    unit_owner,
)
from fsdpfuzz.strategies._steer import without_unit

ROOT = Path(__file__).parents[3]


def drawn(strategy: st.SearchStrategy[CaseSpec], count: int, start: int = 1) -> list[CaseSpec]:
    cases: list[CaseSpec] = []

    @seed(start)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(case: CaseSpec) -> None:
        cases.append(case)

    collect()
    return cases


@cache
def sample() -> list[CaseSpec]:
    return drawn(strategies.cases(world_sizes=(2, 3, 4)), 1000)


def test_every_draw_is_checked_and_survives_json() -> None:
    for case in sample():
        check(case)
        assert decode(encode(case)) == case


def test_names_do_not_need_filtering() -> None:
    # Hypothesis would count a filtered draw as invalid and draw again.
    assert len(sample()) == 1000


def test_refused_cases_are_few_and_deliberate() -> None:
    share = sum(bool(foreseen_rejections(case)) for case in sample()) / len(sample())
    assert 0.01 < share < 0.10
    clean = drawn(strategies.cases(misuse=False), 300)
    assert [case for case in clean if foreseen_rejections(case)] == []


def test_known_ground_is_rare_and_can_be_kept_off() -> None:
    met = Counter(name for case in sample() for name in strategies.known_ground(case))
    assert met
    assert all(count / len(sample()) < 0.03 for count in met.values()), met
    avoided = drawn(strategies.cases(avoid=frozenset(strategies.GROUND)), 300)
    assert [case for case in avoided if strategies.known_ground(case)] == []


@pytest.mark.parametrize("name", [n for n, g in strategies.GROUND.items() if g.needs == "tie"])
def test_the_ground_of_ties_is_kept_off_alone(name: str) -> None:
    cases = drawn(strategies.cases(avoid=frozenset({name})), 300)
    assert [case for case in cases if name in strategies.known_ground(case)] == []


def test_nearly_every_case_trains_something() -> None:
    def trains(case: CaseSpec) -> bool:
        frozen = frozen_names(case)
        used = [p.fqn for place in case_places(case) for p in place.parameters if p.used]
        tied = [tie.source for tie in case.ties if tie.target in used]
        return any(fqn not in frozen for fqn in (*used, *tied))

    idle = [case for case in sample() if not trains(case)]
    assert len(idle) / len(sample()) < 0.02
    assert all(isinstance(case.inputs, Dense) and case.inputs.requires_grad for case in idle)


def test_every_parameter_has_a_unit() -> None:
    for case in sample():
        assert None not in unit_owner(case).values()


def test_reentrant_checkpointing_gets_an_input_that_requires_grad() -> None:
    for case in sample():
        if any(checkpoint.reentrant for checkpoint in case.checkpoints):
            if isinstance(case.inputs, Dense):
                assert case.inputs.requires_grad
            else:
                first = next(p.fqn for place in case_places(case) for p in place.parameters)
                assert first not in frozen_names(case)


WANTED: dict[str, set[str]] = {
    "api": {"fsdp1", "fsdp2"},
    "world_size": {"2", "3", "4"},
    "wrap": {"nested", "custom_policy", "module_classes"},
    "units": {"1", "2", "3+"},
    "root": {"wrapped", "open"},
    "nesting": {"flat", "root", "deep"},
    "bare_unit": {"on", "off"},
    "sharding": {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "mixed"},
    "use_orig_params": {"on", "off"},
    "backward_prefetch": {"BACKWARD_PRE", "BACKWARD_POST", "off", "mixed"},
    "forward_prefetch": {"on", "off", "mixed"},
    "limit_all_gathers": {"on", "off"},
    "reshard_after_forward": {"default", "on", "off", "int", "mixed"},
    "freeze": {"none", "alternate", "adapters", "some"},
    "frozen_unit": {"on", "off"},
    "mixed_unit": {"on", "off"},
    "tied": {"no", "within unit"},
    "reused": {"no", "grad", "no_grad"},
    "unused": {"on", "off"},
    "one_element": {"on", "off"},
    "empty_shard": {"on", "off"},
    "uneven": {"on", "off"},
    "buffers": {"no", "persistent", "non-persistent", "updating"},
    "input_grad": {"on", "off"},
    "inputs": {"dense", "sequence", "tokens"},
    "optimizer": {"sgd", "adam", "adamw"},
    "accumulation": {"off", "sync", "no_sync"},
    "steps": {"1", "2", "3"},
    "zero_grad": {"none", "zero", "mixed", "never"},
    "merge": {"no", "concat", "sum", "stack"},
    "norm": {"no", "layer", "rms"},
    "embedding": {"on", "off"},
    "lora": {"on", "off"},
    "residual": {"on", "off"},
    "own_parameter": {"on", "off"},
    "recomputed_unit": {"on", "off"},
}


@pytest.mark.parametrize("name", WANTED)
def test_every_value_occurs(name: str) -> None:
    seen = Counter(features(case).get(name) for case in sample())
    assert WANTED[name] <= seen.keys(), seen


def test_checkpoints_of_every_kind_side_and_form_occur() -> None:
    seen = {
        (c.kind, c.reentrant, c.side) for case in sample() for c in case.checkpoints
    }  # fmt: skip
    forms = {(kind, r) for kind, r, _ in seen}
    assert forms == {
        *((k, r) for k in ("wrapper", "function") for r in (False, True)),
        ("offload", False),
    }
    assert {side for _, _, side in seen} == {"inside", "around"}


def test_relu_is_not_drawn() -> None:
    functions = {
        place.node.fn
        for case in sample()
        for place in case_places(case)
        if isinstance(place.node, Activation)
    }
    assert functions == {"gelu", "silu", "tanh", "softplus"}


def test_models_stay_small() -> None:
    sizes = [len(case_places(case)) for case in sample()]
    assert max(sizes) <= 60
    assert sum(sizes) / len(sizes) < 15


def test_features_are_the_documented_ones() -> None:
    assert all(features(case).keys() <= FEATURES.keys() for case in sample())


def test_the_same_seed_draws_the_same_cases() -> None:
    first, again = (drawn(strategies.cases(), 60, start=7) for _ in range(2))
    assert [digest(case) for case in first] == [digest(case) for case in again]


@pytest.mark.parametrize("banned", ["repeat", "lora", "idle", "branches"])
def test_banned_features_do_not_occur(banned: str) -> None:
    kinds: set[str] = set()

    @settings(max_examples=60, database=None, deadline=None)
    @given(strategies.module_trees(4, banned=frozenset({banned})))
    def collect(tree: Node) -> None:
        model = tree if isinstance(tree, Sequential) else Sequential(children=(tree,))
        kinds.update(str(child.__struct_config__.tag) for child in model.children)
        assert any(parameter.used for parameter in parameters(tree, 4))

    collect()
    assert banned not in kinds
    assert "linear" in kinds


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"apis": ("fsdp3",)}, "fsdp3"),
        ({"world_sizes": ()}, r"world_sizes=\[\]"),
        ({"world_sizes": (9,)}, "9"),
        ({"avoid": frozenset({"nothing"})}, "nothing"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        strategies.cases(**options)  # type: ignore[arg-type]


def test_a_stray_import_of_the_folder_fails_with_advice() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import strategies"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "ImportError" in done.stderr
    assert "from fsdpfuzz import strategies" in done.stderr


def test_a_unit_goes_with_its_first_child_that_is_called_on_its_own() -> None:
    model = Repeat(
        body=Sequential(children=(Linear(out=4), Linear(out=4))), times=2, no_grad="first_child"
    )
    units = tuple(Fsdp2Unit(path=path) for path in ("body", "body.0"))
    case = CaseSpec(
        world_size=2, model=model, inputs=Dense(width=4), plan=Fsdp2Plan(units=units), program=()
    )
    check(case)
    assert without_unit(case, "body.0").plan == Fsdp2Plan(units=(Fsdp2Unit(path=""),))
