"""Every draw is sound, most draws train, and all that a case can have does occur."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from fsdpfuzz.case import (
    FEATURES,
    KINDS,
    OPERATIONS,
    OPTIONS,
    PARAMETER_FEATURES,
    REJECTIONS,
    TOKENS,
    UNIT_FEATURES,
    Activation,
    Backward,
    CaseSpec,
    CheckpointKind,
    EncoderLayer,
    Feature,
    Forward,
    Transformer,
    anatomy,
    check,
    decode,
    digest,
    encode,
    foreseen_rejections,
    parameter_features,
    unit_features,
    variant_of,
    within,
)
from fsdpfuzz.errors import UsageError
from fsdpfuzz.known import Known
from fsdpfuzz.strategies import FOCUSES, cases
from fsdpfuzz.strategies.drawing import LOTS, Focus
from tests.unit.strategies.sample import (
    IN_A_TEST,
    SIZE,
    drawn,
    everything,
    features_of,
    in_a_test,
    large,
    sample,
)

ROOT = Path(__file__).parents[3]
each_focus = pytest.mark.parametrize("focus", FOCUSES)


@each_focus
def test_every_draw_is_sound_and_survives_json(focus: Focus) -> None:
    for case in sample(focus).cases:
        check(case)
        assert decode(encode(case)) == case
        for variant in case.twins:
            check(variant_of(case, variant))


@each_focus
def test_no_draw_is_filtered(focus: Focus) -> None:
    statuses = in_a_test(focus).statuses
    assert statuses["valid"] == len(in_a_test(focus).cases) == IN_A_TEST
    assert statuses["invalid"] == 0, statuses
    # Hypothesis copies choices about and ends what then needs more of them than before.
    assert statuses["overrun"] < 0.6 * SIZE, statuses


@each_focus
def test_refused_cases_are_few_and_deliberate(focus: Focus) -> None:
    refused = sum(bool(foreseen_rejections(anatomy(case))) for case in sample(focus).cases)
    assert 0 < refused < 0.10 * SIZE


def test_every_documented_refusal_is_asked_for() -> None:
    asked = Counter(r.name for case in everything() for r in foreseen_rejections(anatomy(case)))
    assert asked.keys() == REJECTIONS.keys(), asked


KNOWN: dict[Focus, float] = {
    "parity": 0.25,
    "state_dict": 0.37,
    "memory": 0.35,
    "checkpoint": 0.37,
    "fine_tune": 0.40,
    "exec_order": 0.60,
}
"""Of how many draws at most the loop keeps off, for what is known of PyTorch 2.13 on gloo."""


@each_focus
def test_most_of_what_is_drawn_is_worth_a_run(focus: Focus) -> None:
    known = Known.load(ROOT / "corpus" / "known")
    met: Counter[str] = Counter()
    covered = 0
    for case in sample(focus).cases:
        names = known.showing(case, torch="2.13.0", backend="gloo")
        met.update(names)
        covered += bool(names)
    assert 0 < covered < KNOWN[focus] * SIZE, met.most_common()


@each_focus
def test_draws_differ(focus: Focus) -> None:
    assert len({digest(case) for case in sample(focus).cases}) > 0.99 * SIZE
    assert len({digest(case) for case in in_a_test(focus).cases}) > 0.4 * IN_A_TEST


@each_focus
def test_every_parameter_of_a_training_has_a_unit_or_is_ignored(focus: Focus) -> None:
    for case in sample(focus).cases:
        if any(isinstance(op, Backward) for op in case.program):
            a = anatomy(case)
            modules = [path for unit in a.plan.units for path in unit.ignored]
            alone = {fqn for unit in a.plan.units for fqn in unit.ignored_parameters}
            for fqn, owner in a.owners.items():
                told = fqn in alone or any(within(fqn, path) for path in modules)
                assert owner is not None or told, (fqn, digest(case))


@each_focus
def test_every_backward_has_something_to_compute(focus: Focus) -> None:
    nothing_but_inputs = nothing = 0
    for case in sample(focus).cases:
        losses = trains_in_each_loss(case)
        if not (all(losses) or case.inputs.needs_grad()):
            # What a forward leaves out in its turn may be all that is trained.
            assert anatomy(case).numbered, digest(case)
            nothing += 1
        nothing_but_inputs += bool(losses) and not any(losses)
    assert nothing_but_inputs < 0.05 * SIZE
    assert nothing < 0.005 * SIZE


def trains_in_each_loss(case: CaseSpec) -> list[bool]:
    """For each forward that waits for its backward, on each rank: whether a parameter that it
    uses is trained."""
    a = anatomy(case)
    read = {place.path: [p.fqn for p in place.parameters if p.used] for place in a.places}
    brought = {place.path for place in a.places if place.node is None}
    found = []
    for rank in range(case.world_size if a.switches else 1):
        for _, op, now in a.situations(rank):
            if isinstance(op, Forward) and op.waits:
                called = {call.path for call in a.calls(op, now)}
                paths = called | {p for p in brought if any(p.startswith(c) for c in called)}
                found.append(any(now.trained[fqn] for path in paths for fqn in read[path]))
    return found


NOT_MIXED = "one unit has one value"
LACKING: dict[str, dict[tuple[str, str], str]] = {
    "case": {
        ("held_out", "on"): "only seeds of the documents keep parameters from the optimizer",
        ("transferred", "several"): "another model loads once at most",
        ("limit_all_gathers", "mixed"): "one such refusal is drawn: use_orig_params=mixed",
    },
    "unit": {
        (option.name, "mixed"): NOT_MIXED
        for option in OPTIONS
        # A unit can place its own parameters differently.
        if "mixed" in option.feature.values and option.name != "shard_placement"
    },
    "parameter": {},
}
"""The listed values of features that no draw has, each with the reason."""


@cache
def seen() -> dict[str, dict[str, Counter[str]]]:
    """How often each value of each feature of cases, units and parameters occurs."""
    counts: dict[str, dict[str, Counter[str]]] = {"case": {}, "unit": {}, "parameter": {}}

    def add(kind: str, found: Mapping[str, str]) -> None:
        for name, value in found.items():
            counts[kind].setdefault(name, Counter())[value] += 1

    for case in everything():
        a = anatomy(case)
        add("case", features_of(case))
        for path in a.units:
            add("unit", unit_features(a, path))
        for parameter in a.parameters:
            add("parameter", parameter_features(a, parameter.fqn))
    return counts


@pytest.mark.parametrize(
    ("kind", "name", "feature"),
    [
        pytest.param(kind, name, feature, id=f"{kind}-{name}")
        for kind, known in (
            ("case", FEATURES),
            ("unit", UNIT_FEATURES),
            ("parameter", PARAMETER_FEATURES),
        )
        for name, feature in known.items()
    ],
)
def test_every_value_occurs(kind: str, name: str, feature: Feature) -> None:
    counts = seen()[kind][name]
    never = {value for value in feature.values if not counts[value]}
    assert never == {value for (n, value) in LACKING[kind] if n == name}, counts
    assert feature.open or counts.keys() <= set(feature.values), counts


def test_values_of_open_features_occur() -> None:
    counts = seen()["case"]
    assert counts["world_size"].keys() == {"2", "3", "4"}
    assert counts["steps"].keys() >= {"0", "1", "2", "3"}
    assert counts["variants"].keys() >= {"no", "checkpoints", "frozen"}
    for kind in ("dropout", "switch", "positions", "encoder_layer", "transformer"):
        assert counts["kinds"][kind], counts["kinds"]


def test_every_kind_of_module_occurs() -> None:
    nodes = (place.node for case in everything() for place in anatomy(case).places)
    counts = Counter(node.kind() for node in nodes if node is not None)
    assert counts.keys() == KINDS.keys()
    assert min(counts[kind] for kind in KINDS) >= 10, counts


def test_every_operation_occurs() -> None:
    counts = Counter(op.kind() for case in everything() for op in case.program)
    assert counts.keys() == OPERATIONS.keys()
    assert min(counts.values()) >= 10, counts


def test_checkpoints_of_every_kind_form_and_side_occur() -> None:
    placed = [c for case in everything() for c in case.checkpoints]
    placed += [c for case in everything() for v in case.twins for c in v.checkpoints or ()]
    kinds: set[str] = set(get_args(CheckpointKind))
    forms = {(c.kind, c.reentrant) for c in placed}
    assert forms == {(kind, False) for kind in kinds} | {
        (kind, True) for kind in kinds - {"offload", "composable"}
    }
    sides = {(c.kind, c.side) for c in placed}
    assert sides == {(kind, "inside") for kind in kinds} | {
        (kind, "around") for kind in kinds - {"composable"}
    }


def test_every_optimizer_in_every_form_occurs() -> None:
    used = [case.optimizer for case in everything() if case.optimizer is not None]
    assert {(o.name, o.foreach) for o in used} == {
        (name, foreach) for name in ("sgd", "adam", "adamw") for foreach in (None, False, True)
    }
    assert {o.momentum for o in used if o.name == "sgd"} == {0.0, 0.9}


def test_every_precision_occurs() -> None:
    given = {unit.precision for case in everything() for unit in case.plan.units}
    assert {(p.param, p.reduce) for p in given if p is not None} == {
        (param, reduce) for param in ("bfloat16", "float16") for reduce in (None, "float32")
    }


def test_relu_is_not_drawn() -> None:
    """At its kink rounding decides on all of a gradient."""
    nodes = [place.node for case in everything() for place in anatomy(case).places]
    functions = {node.fn for node in nodes if isinstance(node, Activation)}
    assert functions == {"gelu", "silu", "tanh", "softplus"}
    layers = {(type(n), n.fn) for n in nodes if isinstance(n, EncoderLayer | Transformer)}
    assert layers == {(EncoderLayer, "silu"), (Transformer, "silu")}


@each_focus
def test_models_stay_small(focus: Focus) -> None:
    sizes = sorted(len(anatomy(case).places) for case in large(focus))
    assert sizes[-1] <= 40
    assert sizes[len(sizes) // 2] <= 12
    assert max(len(case.program) for case in large(focus)) <= 48


@each_focus
def test_only_what_is_asked_for_is_drawn(focus: Focus) -> None:
    for api in ("fsdp1", "fsdp2"):
        for case in drawn(cases(focus=focus, apis=(api,), world_sizes=(3,)), 40).cases:
            assert (case.api, case.world_size) == (api, 3)
    assert {case.api for case in sample(focus).cases} == {"fsdp1", "fsdp2"}
    assert {case.world_size for case in sample(focus).cases} == {2, 3, 4}


def test_one_rank_is_drawn_where_it_is_asked_for() -> None:
    for focus in FOCUSES:
        for case in drawn(cases(focus=focus, world_sizes=(1,)), 40).cases:
            check(case)
            assert features_of(case)["world_size"] == "1"


def test_tokens_meet_an_embedding_first() -> None:
    for case in everything():
        a = anatomy(case)
        if a.tokens:
            assert {p.kind for p in a.places if p.width_in == TOKENS and p.parameters} <= {
                "embedding",
                "transformer",
            }


def test_the_same_seed_draws_the_same_cases() -> None:
    first, again, other = (drawn(cases(), 60, start).cases for start in (7, 7, 8))
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"apis": ("fsdp3",)}, "fsdp3"),
        ({"apis": ()}, r"apis=\[\]"),
        ({"world_sizes": ()}, r"world_sizes=\[\]"),
        ({"world_sizes": (0,)}, "0"),
        ({"world_sizes": (9,)}, "9"),
        ({"focus": "nothing"}, "nothing.*exec_order"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        cases(**options)  # type: ignore[arg-type]


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


def test_what_a_seed_draws_does_not_hang_on_the_modules_that_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hypothesis draws numbers that it finds in the source of modules outside of packages."""
    before = drawn(cases(), 40).cases
    (tmp_path / "many_numbers.py").write_text(f"NUMBERS = {list(range(LOTS))}\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("many_numbers")
    assert drawn(cases(), 40).cases == before
