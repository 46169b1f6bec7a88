"""What fsdp1's ways to wrap say, refuse, and lower to."""

from __future__ import annotations

from typing import Any

import pytest

from fsdpfuzz.case import (
    CaseSpec,
    Checkpoint,
    Dense,
    EncoderLayer,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Linear,
    Node,
    Precision,
    Residual,
    Sequential,
    Tie,
    anatomy,
    by_hand,
    check,
    features,
    is_sound,
    lower,
)
from fsdpfuzz.case.modules import ConvNorm
from fsdpfuzz.case.recipe import Call, Do, Global, Inside, Items, Statement, With, walk
from fsdpfuzz.case.wrap import WrapDimension
from fsdpfuzz.errors import CaseError

ROOT = (Fsdp1Unit(path=""),)
# 12 and 20 elements in one module, 4 beside it.
MODEL = Sequential(
    children=(
        Sequential(children=(Linear(out=4, bias=False), Linear(out=4))),
        Linear(out=1, bias=False),
    )
)


def case(wrap: Any, model: Node = MODEL, **fields: Any) -> CaseSpec:
    values: dict[str, Any] = {"world_size": 2, "model": model, "inputs": Dense(width=3)}
    for name in ("checkpoints", "ties", "program"):
        if name in fields:
            values[name] = fields.pop(name)
    plan = Fsdp1Plan(**{"units": ROOT, "wrap": wrap} | fields)
    return CaseSpec(**{"program": (Forward(),)} | values | {"plan": plan})


def units(given: CaseSpec) -> tuple[str, ...]:
    check(given)
    return anatomy(given).units


def wrapped(given: CaseSpec) -> list[Call]:
    """The calls that make units."""
    shard = lower(anatomy(given)).procedure("shard")
    found = (s.call for s in walk(shard.body) if isinstance(s, Do))
    return [made for made in found if isinstance(made, Call)]


def policy(given: CaseSpec) -> Call:
    (made,) = wrapped(given)
    found = dict(made.options)["auto_wrap_policy"]
    assert isinstance(found, Call)
    return found


@pytest.mark.parametrize(
    ("least", "expected"),
    [
        (1, ("", "0.0", "0.1", "1")),
        (5, ("", "0.0", "0.1")),
        (12, ("", "0.0", "0.1")),
        (13, ("", "0.1")),
        (21, ("", "0")),
        (33, ("",)),
    ],
)
def test_units_by_size_are_what_is_large_enough_without_the_units_in_it(
    least: int, expected: tuple[str, ...]
) -> None:
    given = case("size_policy", min_num_params=least)
    assert units(given) == expected
    assert (features(given)["size_leaves"], features(given)["size_excluded"]) == ("off", "off")


def test_what_a_policy_passes_over_counts_in_what_is_around_it() -> None:
    assert units(case("size_policy", min_num_params=12, excluded=("linear",))) == ("", "0")
    held = Sequential(children=(Residual(body=Linear(out=3)), Linear(out=3)))
    leaf = case("size_policy", held, min_num_params=12, leaves=("residual",))
    assert units(leaf) == ("", "1")
    assert features(leaf)["size_leaves"] == "on"
    spared = case("size_policy", min_num_params=1, excluded=("linear",))
    assert features(spared)["size_excluded"] == "on"


def test_a_tied_parameter_counts_once_in_what_holds_both_names() -> None:
    square = Sequential(
        children=(Sequential(children=(Linear(out=3), Linear(out=3))), Linear(out=1))
    )
    tied = (Tie(source="0.0.weight", target="0.1.weight"),)
    apart = case("size_policy", square, min_num_params=16)
    assert units(apart) == ("", "0")
    assert units(case("size_policy", square, min_num_params=16, ties=tied)) == ("",)
    assert units(case("size_policy", square, min_num_params=15, ties=tied)) == ("", "0")


def test_what_is_ignored_neither_counts_nor_becomes_a_unit() -> None:
    ignoring = (Fsdp1Unit(path="", ignored=("0.0",)),)
    assert units(case("size_policy", min_num_params=4, units=ignoring)) == ("", "0.1", "1")
    less = (Fsdp1Unit(path="", ignored_parameters=("0.1.bias",)),)
    assert units(case("size_policy", min_num_params=17, units=less)) == ("", "0")


def test_a_batch_norm_is_kept_out_of_mixed_precision_whatever_its_size() -> None:
    model = Sequential(children=(ConvNorm(channels=2), Linear(out=3)))
    low = (Fsdp1Unit(path="", precision=Precision(param="bfloat16", buffer="bfloat16")),)
    assert units(case("size_policy", model, min_num_params=13)) == ("", "0")
    # Of 16 elements, 4 lie in the norm's unit.
    assert units(case("size_policy", model, min_num_params=13, units=low)) == ("", "0.bn")
    ways: dict[str, dict[str, Any]] = {
        "lambda_policy": {"chosen": ("1",)},
        "transformer_policy": {"classes": ("linear",)},
    }
    for wrap, told in ways.items():
        assert units(case(wrap, model, units=low, **told)) == ("", "0.bn", "1")


def test_units_found_by_class_or_named_have_the_options_of_the_root() -> None:
    root = (Fsdp1Unit(path="", sharding="SHARD_GRAD_OP", use_orig_params=True),)
    ways: dict[str, dict[str, Any]] = {
        "transformer_policy": {"classes": ("linear",)},
        "lambda_policy": {"chosen": ("0.0", "0.1", "1")},
    }
    for wrap, told in ways.items():
        given = case(wrap, units=root, **told)
        assert units(given) == ("", "0.0", "0.1", "1")
        found = anatomy(given).fsdp1_options.values()
        assert {(unit.sharding, unit.use_orig_params) for unit in found} == {
            ("SHARD_GRAD_OP", True)
        }


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"wrap": "size_policy"}, "min_num_params go with wrap='size_policy'"),
        ({"wrap": "nested", "min_num_params": 3}, "min_num_params go with"),
        ({"wrap": "lambda_policy"}, "chosen go with wrap='lambda_policy'"),
        ({"wrap": "nested", "chosen": ("0",)}, "chosen go with"),
        ({"wrap": "lambda_policy", "chosen": ("7",)}, "no module '7'"),
        (
            {
                "wrap": "lambda_policy",
                "chosen": ("0.1",),
                "units": (Fsdp1Unit(path="", ignored=("0",)),),
            },
            "'0.1' is ignored, and so no unit",
        ),
        ({"wrap": "transformer_policy"}, "classes go with"),
        ({"wrap": "transformer_policy", "classes": ("none",)}, "no class of modules"),
        ({"wrap": "enable_wrap", "leaves": ("linear",)}, "passed over"),
        (
            {"wrap": "size_policy", "min_num_params": 3, "units": (*ROOT, Fsdp1Unit(path="0"))},
            "list the root alone",
        ),
        (
            {"wrap": "size_policy", "min_num_params": 3, "units": (Fsdp1Unit(path="0"),)},
            "starts from the root",
        ),
    ],
)
def test_what_does_not_go_together(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(CaseError, match=reason):
        check(case(**fields))


def test_no_policy_breaks_into_what_is_called_as_a_whole() -> None:
    model = Sequential(children=(EncoderLayer(), Linear(out=3)))
    with pytest.raises(CaseError, match=r"a unit of '0\.layer', which is not called by itself"):
        check(case("size_policy", model, min_num_params=50))
    check(case("size_policy", model, min_num_params=50, leaves=("encoder_layer",)))
    with pytest.raises(CaseError, match="would make units within it"):
        check(case("size_policy", model, min_num_params=50, excluded=("norm",)))


def test_a_wrapper_is_a_module_of_another_class() -> None:
    wrapped = (Checkpoint(path="0"),)
    sizes: dict[str, Any] = {"min_num_params": 12, "checkpoints": wrapped}
    assert units(case("size_policy", **sizes)) == ("", "0.0", "0.1")
    with pytest.raises(CaseError, match="passes over '0', but not its wrapper"):
        check(case("size_policy", **sizes, excluded=("sequential",)))
    called = (Checkpoint(path="0", kind="function"),)
    check(case("size_policy", min_num_params=12, checkpoints=called, excluded=("sequential",)))


@pytest.mark.parametrize(
    ("wrap", "told"),
    [
        ("size_policy", {"min_num_params": 33}),
        ("transformer_policy", {"classes": ("sequential",)}),
        ("module_classes", {"classes": ("sequential",)}),
    ],
)
def test_the_root_is_found_once_more_in_a_wrapper(wrap: str, told: dict[str, Any]) -> None:
    with pytest.raises(CaseError, match="finds the root once more"):
        check(case(wrap, checkpoints=(Checkpoint(path=""),), **told))
    check(case(wrap, checkpoints=(Checkpoint(path="", side="around"),), **told))
    if wrap == "size_policy":
        check(case(wrap, checkpoints=(Checkpoint(path=""),), min_num_params=37))


def test_policies_are_told_what_they_go_by() -> None:
    sized = case(
        "size_policy",
        min_num_params=4,
        leaves=("residual",),
        excluded=("sequential",),
        model=Sequential(children=(Residual(body=Linear(out=3)), Linear(out=3))),
    )
    told = policy(sized)
    assert told.function == "functools.partial"
    assert told.args == (Global("torch.distributed.fsdp.wrap.size_based_auto_wrap_policy"),)
    assert dict(told.options) == {
        "min_num_params": 4,
        "force_leaf_modules": Items("set", (Global("steps.modules.residual.Residual"),)),
        "exclude_wrap_modules": Items(
            "set",
            tuple(
                Global(f"torch.nn.{name}") for name in ("ModuleList", "ModuleDict", "Sequential")
            ),
        ),
    }
    classes = policy(case("transformer_policy", classes=("linear",)))
    assert dict(classes.options) == {
        "transformer_layer_cls": Items("set", (Global("torch.nn.Linear"),))
    }
    within = (Checkpoint(path="0.1"),)
    named = policy_beside(case("lambda_policy", chosen=("0", "0.1"), checkpoints=within))
    modules = Inside("model", "0"), Inside("model", "0.1._checkpoint_wrapped_module")
    assert named.args == (Items("set", modules),)


def policy_beside(given: CaseSpec) -> Call:
    """The policy, where something is placed before the units are made."""
    return next(
        told
        for made in wrapped(given)
        for name, told in made.options
        if name == "auto_wrap_policy" and isinstance(told, Call)
    )


def test_wrap_is_told_what_differs_from_the_root() -> None:
    listed = (
        Fsdp1Unit(path="", forward_prefetch=True, ignored=("1",)),
        Fsdp1Unit(path="0", forward_prefetch=True, sharding="NO_SHARD"),
        Fsdp1Unit(path="0.1", use_orig_params=True),
    )
    body = lower(anatomy(case("enable_wrap", units=listed))).procedure("shard").body
    (within,) = (s for s in body if isinstance(s, With))
    assert within.who == "fsdp"
    assert isinstance(within.context, Call)
    assert [name for name, _ in within.context.options] == [
        "wrapper_cls",
        "forward_prefetch",
        "device_id",
    ]
    assert [made(statement) for statement in within.body] == [
        ("0.1", {"use_orig_params": True, "forward_prefetch": False}),
        ("0", {"sharding_strategy": Global("torch.distributed.fsdp.ShardingStrategy.NO_SHARD")}),
        ("", {"ignored_modules": body[0].into[0]}),  # type: ignore[union-attr]
    ]


def made(statement: Statement) -> tuple[str, dict[str, Any]]:
    assert isinstance(statement, Do)
    assert isinstance(statement.call, Call)
    (target,) = statement.into
    return getattr(target, "path", ""), dict(statement.call.options)


def test_a_checkpoint_that_the_plain_model_has_is_placed_in_both() -> None:
    listed = (*ROOT, Fsdp1Unit(path="0"))
    model = Sequential(children=(ConvNorm(), Linear(out=3)))
    given = case("enable_wrap", model, units=listed, checkpoints=(Checkpoint(path="0"),))
    body = lower(anatomy(given)).procedure("shard").body
    assert [(type(s), getattr(s, "who", "")) for s in body] == [(With, "fsdp"), (Do, "reference")]


def plainer(given: CaseSpec) -> list[tuple[str, Fsdp1Plan]]:
    steps = WrapDimension().simpler(given)
    return [
        (s.words, s.case.plan)
        for s in steps
        if isinstance(s.case.plan, Fsdp1Plan) and is_sound(s.case)
    ]


def nested(given: CaseSpec, *paths: str) -> Fsdp1Plan | Fsdp2Plan:
    assert isinstance(given.plan, Fsdp1Plan)
    return by_hand(given, given.plan, paths).plan


def test_each_way_has_plainer_ones() -> None:
    sized = case("size_policy", min_num_params=12, excluded=("linear",))
    found = dict(plainer(sized))
    assert found["size_based_auto_wrap_policy"] == nested(sized, "", "0")
    assert found["exclude_wrap_modules"] == Fsdp1Plan(
        units=ROOT, wrap="size_policy", min_num_params=12
    )
    assert found["nested units"] == Fsdp1Plan(units=ROOT)
    named = plainer(case("lambda_policy", chosen=("0", "1")))
    assert named[0] == ("lambda_auto_wrap_policy", nested(sized, "", "0", "1"))
    assert Fsdp1Plan(units=ROOT, wrap="lambda_policy", chosen=("1",)) in [plan for _, plan in named]
    listed = (*ROOT, Fsdp1Unit(path="0"))
    assert plainer(case("enable_wrap", units=listed))[0] == ("enable_wrap", Fsdp1Plan(units=listed))


def test_they_are_said_in_words() -> None:
    said = [
        case("nested"),
        case("enable_wrap"),
        case("size_policy", min_num_params=12, excluded=("linear",), leaves=("residual",)),
        case("transformer_policy", classes=("linear",)),
        case("lambda_policy", chosen=("0",)),
    ]
    assert [given.plan.words() for given in said] == [
        "fsdp1, wrapped one by one",
        "fsdp1, enable_wrap",
        "fsdp1, size_based_auto_wrap_policy(12, leaf residual, not linear)",
        "fsdp1, transformer_auto_wrap_policy(linear)",
        "fsdp1, lambda_auto_wrap_policy(0)",
    ]
