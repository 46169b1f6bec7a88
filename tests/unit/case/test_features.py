"""A case, a unit and a parameter in short texts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fsdpfuzz.case import (
    FEATURES,
    PARAMETER_FEATURES,
    UNIT_FEATURES,
    Activation,
    Backward,
    Branches,
    CaseSpec,
    Checkpoint,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Idle,
    Linear,
    Lora,
    Op,
    Plan,
    Rebuild,
    Repeat,
    RequiresGrad,
    Sequential,
    Step,
    Switch,
    Tie,
    Variant,
    ZeroGrad,
    anatomy,
    case_features,
    check,
    features,
    parameter_features,
    unit_features,
)
from fsdpfuzz.case.hazards.hooked_memory import HookedMemoryDimension
from fsdpfuzz.case.modules import Outputs, SideOutput
from fsdpfuzz.case.operations import ClearGrad
from fsdpfuzz.errors import ContractError
from tests.unit.case.saved import documents, saved
from tests.unit.case.test_units import fsdp1, fsdp2, make

TIE = Tie(source="0.weight", target="1.0.weight")
BY_CLASS = Fsdp1Plan(units=(Fsdp1Unit(path=""),), wrap="module_classes", classes=("linear",))


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (make(fsdp1("")), {"api": "fsdp1", "units": "1", "nesting": "flat", "wrap": "nested"}),
        (make(fsdp2("", "1")), {"units": "2", "nesting": "root", "bare_unit": "off"}),
        (make(fsdp2("", "1", "1.0")), {"units": "3+", "nesting": "deep"}),
        (make(fsdp2("0", "1", "2")), {"root": "open", "nesting": "flat", "one_element": "on"}),
        (
            make(fsdp2("", "0"), frozen=("0.weight", "0.bias")),
            {"freeze": "some", "frozen_unit": "on", "mixed_unit": "off"},
        ),
        (make(fsdp2("", "0"), frozen=("0.bias",)), {"mixed_unit": "on", "frozen_unit": "off"}),
        (make(fsdp2("", "1"), ties=(TIE,)), {"tied": "nested"}),
        (make(fsdp2("0", "1", "2"), ties=(TIE,)), {"tied": "across units"}),
        (make(fsdp2(""), ties=(TIE,)), {"tied": "within unit"}),
        (
            make(fsdp2("", "1"), checkpoints=(Checkpoint(path="1", side="around"),)),
            {"checkpoint": "wrapper-around", "recomputed_unit": "on"},
        ),
        (
            make(fsdp2(""), checkpoints=(Checkpoint(path="1", reentrant=True),)),
            {"checkpoint": "wrapper-reentrant-within", "recomputed_unit": "off"},
        ),
        (
            make(fsdp1("", "1"), checkpoints=(Checkpoint(path="1"),)),
            {"checkpoint": "wrapper-inside", "unit_called_again": "off"},
        ),
        (
            # Whoever calls the module does it, hooks of the unit included.
            make(fsdp1("", "1"), checkpoints=(Checkpoint(path="1", kind="function_offload"),)),
            {"checkpoint": "function_offload-around", "unit_called_again": "on"},
        ),
        (
            # A class finds a module that has its checkpoint already.
            make(BY_CLASS, checkpoints=(Checkpoint(path="0"),)),
            {"checkpoint": "wrapper-around", "unit_called_again": "on"},
        ),
        (make(fsdp2(""), model=Repeat(body=Linear(out=4), no_grad="body")), {"reused": "no_grad"}),
        (make(fsdp2(""), world_size=4), {"world_size": "4", "empty_shard": "on"}),
        (make(fsdp2(""), world_size=3), {"uneven": "on"}),
        (
            # Two rows for each of the first two ranks, the fifth for the third.
            make(fsdp2(""), model=Linear(out=5, bias=False), world_size=4),
            {"empty_shard": "on", "uneven": "on"},
        ),
        (make(fsdp2("", "2")), {"single_element_unit": "on", "unit_without_gradient": "off"}),
        (
            make(fsdp2("", "0"), frozen=("0.weight", "0.bias")),
            {"unit_without_gradient": "on", "single_element_unit": "off"},
        ),
        (
            make(fsdp1("", "0", sharding="SHARD_GRAD_OP"), frozen=("0.weight", "0.bias")),
            {"kept_without_gradient": "on"},
        ),
        (make(fsdp2("", "0"), program=(Forward(target="0"),)), {"uncalled_unit": "on"}),
        (make(fsdp2("0"), model=Sequential(children=(Idle(),))), {"identity_unit": "on"}),
        (
            # In a module that takes a second input.
            make(fsdp1("branches.0"), model=Branches(children=(Idle(),), merge="sum", side=True)),
            {"identity_unit": "on"},
        ),
        (
            make(fsdp1("branches.0"), model=Branches(children=(Linear(out=4),), side=True)),
            {"identity_unit": "off"},
        ),
        (make(fsdp1(""), model=Switch(children=(Linear(out=4), Idle()))), {"identity_unit": "on"}),
        (make(fsdp1(""), model=Outputs(body=Idle())), {"identity_unit": "on"}),
        (make(fsdp1("inner"), model=Outputs(body=Idle())), {"identity_unit": "on"}),
        # What is put out is a sum.
        (make(fsdp1("", "inner"), model=Outputs(body=Idle(), both=True)), {"identity_unit": "off"}),
        (make(fsdp1("", "inner"), model=Outputs(body=Linear(out=4))), {"identity_unit": "off"}),
        (make(fsdp2(""), twins=(Variant(name="other", frozen=()),)), {"variants": "frozen"}),
    ],
)
def test_features(case: CaseSpec, expected: dict[str, str]) -> None:
    found = features(case)
    assert {name: found[name] for name in expected} == expected


def test_features_of_the_other_api_are_left_out() -> None:
    assert "sharding" not in features(make(fsdp2("")))
    assert "reshard_after_forward" not in features(make(fsdp1("")))


def test_adapters_are_recognised() -> None:
    model = Sequential(children=(Lora(out=4, bias=False), Linear(out=4, bias=False)))
    case = make(fsdp2(""), model=model, frozen=("0.base.weight", "1.weight"))
    assert features(case)["freeze"] == "adapters"


def test_a_change_after_a_lone_forward_is_told_apart() -> None:
    thaw = RequiresGrad(parameters=("0.bias",), value=False)
    trained = make(fsdp2(""), program=(Forward(), Backward(), thaw, Step()))
    lone = make(fsdp2(""), program=(Forward(grad=False), thaw))
    assert features(trained)["refrozen"] == "yes"
    assert features(lone)["refrozen"] == "after lone forward"
    assert features(make(fsdp2("")))["refrozen"] == "no"


@pytest.mark.parametrize(
    ("plan", "frozen", "expected"),
    [
        # What the root puts out requires no grad: its hooks wait for it in vain.
        (fsdp1("", ignored=("0.layer",)), ("1.weight", "1.bias"), "after lone forward"),
        (fsdp1("", "0.layer"), ("1.weight", "1.bias"), "after lone forward"),
        (fsdp1("", ignored=("0.layer",)), (), "yes"),
        (
            Fsdp2Plan(units=(Fsdp2Unit(path="", ignored=("0.layer",)),)),
            ("1.weight", "1.bias"),
            "after lone forward",
        ),
        # Each unit of fsdp2 tells that a backward has begun.
        (fsdp2("", "0.layer"), ("1.weight", "1.bias"), "yes"),
    ],
)
def test_a_backward_beside_the_output_leaves_a_forward_lone(
    plan: Plan, frozen: tuple[str, ...], expected: str
) -> None:
    side = SideOutput(body=Activation(), on="input")
    model = Sequential(children=(side, Linear(out=2)))
    thaw = RequiresGrad(parameters=("1.weight", "1.bias"), value=True)
    given = make(plan, model=model, frozen=frozen, program=(Forward(), Backward(), thaw))
    check(given)
    assert features(given)["refrozen"] == expected


def test_features_of_a_unit() -> None:
    root, inner = Fsdp2Unit(path=""), Fsdp2Unit(path="1", reshard_after_forward=False)
    case = make(
        Fsdp2Plan(units=(root, inner)),
        frozen=("1.0.weight",),
        checkpoints=(Checkpoint(path="1", side="around"),),
        program=(Forward(),),
    )
    found = unit_features(anatomy(case), "1")
    expected = {
        "root": "inner",
        "freeze": "some",
        "recomputed": "around",
        "elements": "many",
        "gradient": "on",
        "called": "on",
    }
    assert {name: found[name] for name in expected} == expected
    other = unit_features(anatomy(case), "")
    assert (other["root"], other["recomputed"], other["freeze"]) == ("model", "no", "none")
    assert found["reshard_after_forward"] != other["reshard_after_forward"]


@pytest.mark.parametrize(
    ("placed", "where"),
    [
        ((), "no"),
        ((Checkpoint(path=""), Checkpoint(path="1")), "no"),
        ((Checkpoint(path="1", kind="function_offload"),), "alone"),
        ((Checkpoint(path="", kind="offload"), Checkpoint(path="1")), "alone"),
        ((Checkpoint(path=""), Checkpoint(path="1", kind="function_offload")), "recomputed"),
        ((Checkpoint(path=""), Checkpoint(path="1", kind="offload")), "recomputed"),
        ((Checkpoint(path="", reentrant=True), Checkpoint(path="1", kind="offload")), "alone"),
        ((Checkpoint(path=""), Checkpoint(path="1.0", kind="offload")), "no"),
        ((Checkpoint(path=""), Checkpoint(path="1.1", kind="offload")), "no"),
    ],
)
def test_what_a_unit_saves_may_be_offloaded(placed: tuple[Checkpoint, ...], where: str) -> None:
    case = make(fsdp2("", "1"), checkpoints=placed, program=(Forward(),))
    assert unit_features(anatomy(case), "1")["offloaded"] == where


def test_all_that_a_unit_saves_may_be_saved_by_a_module_within() -> None:
    within = Checkpoint(path="1.1.body", kind="offload")
    for placed, where in (((), "alone"), ((Checkpoint(path=""),), "recomputed")):
        case = make(fsdp2("", "1.1"), checkpoints=(*placed, within), program=(Forward(),))
        assert unit_features(anatomy(case), "1.1")["offloaded"] == where
        assert unit_features(anatomy(case), "")["offloaded"] == "no"


def test_a_tied_parameter_is_recomputed_under_either_name() -> None:
    """The unit manages it once, by the other name."""
    model = Sequential(children=(Linear(out=4), Linear(out=4, bias=False)))
    tie = Tie(source="0.weight", target="1.weight")
    placed = (Checkpoint(path="1", reentrant=True),)
    case = make(fsdp1(""), model=model, ties=(tie,), checkpoints=placed)
    found = unit_features(anatomy(case), "")
    assert (found["recomputed"], found["reentrant"]) == ("part", "part")


def test_a_module_of_a_list_is_recomputed_though_an_inner_unit_has_its_parameters() -> None:
    """It is the list's forward that the recomputation begins, or ends."""
    model = Sequential(children=(Linear(out=4), Sequential(children=(Linear(out=4),))))
    plan = Fsdp2Plan(units=(Fsdp2Unit(path="0", grouped=("1",)), Fsdp2Unit(path="1.0")))
    for path, value in (("1", "part"), ("1.0", "no")):
        case = make(plan, model=model, checkpoints=(Checkpoint(path=path),))
        assert unit_features(anatomy(case), "0")["recomputed"] == value


def test_features_of_a_unit_of_the_other_api_are_left_out() -> None:
    plan = Fsdp1Plan(units=(Fsdp1Unit(path=""), Fsdp1Unit(path="1", sharding="NO_SHARD")))
    found = unit_features(anatomy(make(plan)), "1")
    assert found["sharding"] == "NO_SHARD"
    assert "reshard_after_forward" not in found


def test_features_of_a_parameter() -> None:
    a = anatomy(make(fsdp2("", "1"), world_size=3, ties=(TIE,), frozen=("0.weight",)))
    weight = parameter_features(a, "0.weight")
    # Four rows over three ranks: 2, 2 and none.
    assert (weight["frozen"], weight["tied"], weight["rows"]) == ("on", "nested", "few")
    gain = parameter_features(a, "2.gain")
    assert (gain["frozen"], gain["tied"], gain["rows"], gain["used"]) == ("off", "no", "few", "on")


FREEZE = RequiresGrad(parameters=("0.weight",), value=False)
THAW = RequiresGrad(parameters=("0.weight",), value=True)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ((Backward(), FREEZE, Forward()), "on"),
        ((Backward(), Step(), FREEZE, Forward(grad=False)), "on"),
        ((Backward(), ZeroGrad(set_to_none=False), FREEZE, Forward()), "on"),
        ((Backward(), ClearGrad(parameters=("1.0.weight",)), FREEZE, Forward()), "on"),
        ((Backward(), FREEZE), "off"),
        ((FREEZE, Backward(), Forward()), "off"),
        ((Backward(), ZeroGrad(), FREEZE, Forward()), "off"),
        ((Backward(), FREEZE, ZeroGrad(), Forward()), "off"),
        ((Backward(), ClearGrad(parameters=("0.weight",)), FREEZE, Forward()), "off"),
        ((Backward(), FREEZE, THAW, Forward()), "off"),
        ((Backward(), FREEZE, Forward(), THAW), "on"),
        ((Backward(), FREEZE, Forward(), THAW, Forward()), "unfrozen"),
        ((Backward(), FREEZE, Forward(), ZeroGrad(), THAW, Forward()), "unfrozen"),
        ((Backward(), FREEZE, Forward(), THAW, FREEZE, Forward()), "on"),
        ((Backward(), Rebuild(plan=fsdp2("")), FREEZE, Forward()), "off"),
    ],
)
def test_a_parameter_may_be_frozen_with_its_gradient(
    program: tuple[Op, ...], expected: str
) -> None:
    a = anatomy(make(fsdp2(""), program=(Forward(), *program)))
    assert parameter_features(a, "0.weight")["frozen_with_gradient"] == expected
    assert parameter_features(a, "1.0.weight")["frozen_with_gradient"] == "off"


def test_an_optimizer_clears_the_gradients_of_what_it_holds() -> None:
    program = (Forward(), Backward(), ZeroGrad(), FREEZE, Forward())
    apart = anatomy(make(fsdp2(""), program=program, held_out=("0.weight",)))
    assert parameter_features(apart, "0.weight")["frozen_with_gradient"] == "on"
    without = anatomy(make(fsdp2(""), program=program, held_out=("0.weight",), optimizer=None))
    assert parameter_features(without, "0.weight")["frozen_with_gradient"] == "off"


@pytest.mark.parametrize(
    ("rows", "ranks", "expected"),
    [
        (1, 2, "few"),
        (3, 2, "uneven"),
        (4, 3, "few"),
        (5, 3, "uneven"),
        (4, 4, "even"),
        # Chunks of two rows: the last rank gets none.
        (5, 4, "few"),
        (6, 4, "few"),
        (7, 4, "uneven"),
    ],
)
def test_rows_are_few_where_a_rank_gets_none(rows: int, ranks: int, expected: str) -> None:
    case = make(fsdp1(""), model=Linear(out=rows), world_size=ranks)
    assert parameter_features(anatomy(case), "weight")["rows"] == expected


@pytest.mark.parametrize("name", documents())
def test_saved_cases_have_values_that_are_listed(name: str) -> None:
    """Values that are not listed beforehand are numbers and joined words, of few features."""
    case = saved(name)
    a = anatomy(case)
    told = [(FEATURES, case_features(a))]
    told += [(UNIT_FEATURES, unit_features(a, path)) for path in a.units]
    told += [(PARAMETER_FEATURES, parameter_features(a, p.fqn)) for p in a.parameters[:4]]
    for known, found in told:
        for feature, value in found.items():
            listed = known[feature].values
            assert not listed or value in listed or feature in OPEN, (feature, value)
            assert case.api in known[feature].apis, feature


SELDOM = {
    "changed_alone",
    "clipped_whole",
    "cut_output",
    "divided_low",
    "emptied",
    "empty_parameter",
    "extensions",
    "frozen_in_no_sync",
    "grad_scaler",
    "handed_again",
    "handed_view",
    "hook_moved",
    "kept_norm",
    "lacked_in_no_sync",
    "lacking_state",
    "lost_change",
    "offloaded_dropout",
    "offloaded_input",
    "own_state",
    "recomputed_root",
    "reduce_group",
    "replicated",
    "reset_early",
    "resharded_gather",
    "run_through",
    "second_graph",
    "sequence_parallel",
    "side_loss",
    "share_comm_ctx",
    "shared_order",
    "shared_recomputed",
    "shared_silent",
    "stepped_whole",
    "stored_low",
    "transposed",
    "two_names",
    "two_orders",
    "unfrozen_in_inference",
    "unrestored",
    "unscaled",
}
"""Features with values that are too seldom drawn to be met with each value of the others."""
OPEN = {"checkpoint", "divide_factor", "mesh", "optim_stateless", "steps", "unstepped", "variants"}
OPEN |= SELDOM
"""Features that have more values than are listed, or as many as one likes."""


def test_a_feature_that_cannot_be_told_is_no_feature_that_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a = anatomy(make(fsdp2("")))

    def broken(*_: object) -> Iterator[tuple[str, str]]:
        raise KeyError("1.body")

    monkeypatch.setattr(HookedMemoryDimension, "unit_values", broken)
    with pytest.raises(ContractError, match=r"features of hooked_memory: KeyError\('1.body'\)"):
        # Which takes a KeyError for a name that is not there.
        unit_features(a, "").get("hooked_memory")
