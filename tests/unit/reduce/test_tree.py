"""A smaller model takes along what names its modules."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fsdpfuzz.case import (
    CaseSpec,
    Checkpoint,
    Dense,
    Embedding,
    EncoderLayer,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Matrix,
    Node,
    RequiresGrad,
    Residual,
    Sequential,
    Tie,
    Tokens,
    Transformer,
    anatomy,
    check,
)
from fsdpfuzz.case.modules import SideOutput
from fsdpfuzz.reduce.names import renamed
from fsdpfuzz.reduce.neighbours import _unsound
from fsdpfuzz.reduce.tree import smaller_models
from fsdpfuzz.seeds import SEEDS
from tests.unit.reduce.samples import FIRST, SECOND, nodes, seq

SMALL = CaseSpec(
    world_size=2,
    model=seq(Linear(out=3), Residual(body=seq(Linear(out=5), Linear(out=3))), Linear(out=2)),
    inputs=Dense(width=3),
    plan=Fsdp2Plan(
        units=(Fsdp2Unit(path="1.body.1"), Fsdp2Unit(path="2", ignored=("2",)), Fsdp2Unit(path=""))
    ),
    frozen=("1.body.1.bias", "2.bias"),
    held_out=("0.weight",),
    checkpoints=(Checkpoint(path="1", kind="function"), Checkpoint(path="2", kind="wrapper")),
    program=(Forward(), RequiresGrad(parameters=("1.body.1.bias", "0.bias"), value=True)),
)
check(SMALL)


def with_model(model: Node) -> list[CaseSpec]:
    """The neighbours of `SMALL` with that model."""
    return [case for case in smaller_models(SMALL) if case.model == model]


def test_without_a_child_those_behind_it_move_up() -> None:
    body = Residual(body=seq(Linear(out=5), Linear(out=3)))
    model = seq(body, Linear(out=2))
    (case,) = with_model(model)
    assert [unit.path for unit in case.plan.units] == ["0.body.1", "1", ""]
    assert case.plan.units[1].ignored == ("1",)
    assert case.frozen == ("0.body.1.bias", "1.bias")
    assert case.held_out == ()
    assert [c.path for c in case.checkpoints] == ["0", "1"]
    (changed,) = (op for op in case.program if isinstance(op, RequiresGrad))
    assert changed.parameters == ("0.body.1.bias",)


def test_what_names_the_child_alone_goes_with_it() -> None:
    model = seq(Linear(out=3), Residual(body=seq(Linear(out=5), Linear(out=3))))
    (case,) = with_model(model)
    assert [unit.path for unit in case.plan.units] == ["1.body.1", ""]
    assert case.frozen == ("1.body.1.bias",)
    assert [c.path for c in case.checkpoints] == ["1"]


def test_a_child_takes_the_place_of_what_holds_it() -> None:
    model = seq(Linear(out=3), seq(Linear(out=5), Linear(out=3)), Linear(out=2))
    (case,) = with_model(model)
    assert [unit.path for unit in case.plan.units] == ["1.1", "2", ""]
    assert case.frozen == ("1.1.bias", "2.bias")
    assert [c.path for c in case.checkpoints] == ["1", "2"]


def test_a_module_inside_becomes_the_whole_model() -> None:
    assert {Linear(out=2), Linear(out=3), Linear(out=5)} <= {c.model for c in smaller_models(SMALL)}
    case = next(c for c in smaller_models(SMALL) if c.model == seq(Linear(out=5), Linear(out=3)))
    assert [unit.path for unit in case.plan.units] == ["1", ""]
    assert case.frozen == ("1.bias",)


def test_an_operation_on_nothing_that_is_left_goes() -> None:
    case = next(c for c in smaller_models(SMALL) if c.model == Linear(out=2))
    assert [op.kind() for op in case.program] == ["forward"]


def test_equal_widths_stay_equal() -> None:
    widths = {
        (n.children[0].out, n.children[1].body.children[-1].out)
        for n in (c.model for c in smaller_models(SMALL))
        if isinstance(n, Sequential)
        and len(n.children) == 3
        and isinstance(n.children[0], Linear)
        and isinstance(n.children[1], Residual)
        and isinstance(n.children[1].body, Sequential)
        and isinstance(n.children[1].body.children[-1], Linear)
    }
    assert {first for first, _ in widths} >= {1, 2, 3}
    assert all(first == second for first, second in widths)


def test_tokens_give_way_to_dense_inputs() -> None:
    case = CaseSpec(
        world_size=2,
        model=seq(Embedding(rows=7, out=4), Linear(out=7, bias=False), Linear(out=2)),
        inputs=Tokens(),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path="1"), Fsdp2Unit(path=""))),
        ties=(Tie(source="0.weight", target="1.weight"),),
        program=(Forward(),),
    )
    dense = [c for c in smaller_models(case) if isinstance(c.inputs, Dense)]
    (without,) = (c for c in dense if c.model == seq(Linear(out=7, bias=False), Linear(out=2)))
    assert without.plan.units[0].path == "0"
    assert without.ties == ()
    assert not _unsound(without)


CASES = [FIRST, SECOND, SMALL, *(seed.case for seed in SEEDS[::9])]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.api}-{len(str(case))}")
def test_most_smaller_models_are_sound_cases(case: CaseSpec) -> None:
    """No name is left that means nothing: that alone would not pass."""
    made = list(smaller_models(case))
    sound = [smaller for smaller in made if not _unsound(smaller)]
    if len(list(nodes(case.model))) > 1:
        assert len(sound) > len(made) / 2
    for smaller in sound:
        assert anatomy(smaller).places


def every(kind: str, value: Any) -> list[str]:
    """The FQNs that fields of a kind hold, told by their types."""
    from fsdpfuzz.reduce.names import _named_fields

    found: list[str] = []
    for name, names, _ in _named_fields(value.__class__):
        held = getattr(value, name)
        for item in held if isinstance(held, tuple) else (held,):
            if isinstance(item, msgspec.Struct):
                found += every(kind, item)
            elif names == kind and isinstance(item, str):
                found.append(item)
    return found


def test_renaming_reaches_every_name() -> None:
    for case in (FIRST, SECOND, SMALL):
        modules, parameters = every("module", case), every("parameter", case)
        assert modules
        assert parameters
        made = renamed(case, lambda path: f"x.{path}", lambda fqn: f"y.{fqn}")
        assert made is not None
        assert every("module", made) == [f"x.{path}" for path in modules]
        assert every("parameter", made) == [f"y.{fqn}" for fqn in parameters]
        assert "y." not in str(made.model)


def test_what_a_case_cannot_do_without_is_said_to_be_gone() -> None:
    assert renamed(SMALL, lambda _: None, lambda fqn: fqn) is None
    bare = renamed(SMALL, lambda path: path, lambda _: None)
    assert bare is not None
    assert (bare.frozen, bare.held_out) == ((), ())
    assert [op.kind() for op in bare.program] == ["forward"]


def test_a_layer_in_place_of_more_takes_what_was_put_inside() -> None:
    (case,) = with_model(seq(Linear(out=3), Linear(out=3, bias=False), Linear(out=2)))
    assert [unit.path for unit in case.plan.units] == ["1", "2", ""]
    assert case.frozen == ("2.bias",)


def test_a_parameter_of_an_attention_is_followed() -> None:
    """Its FQN reaches into a module that the attention holds."""
    layer, linear = EncoderLayer(hidden=3), Linear(out=3, bias=False)
    case = CaseSpec(
        world_size=2,
        model=seq(Embedding(rows=1, out=3), linear, layer),
        inputs=Tokens(),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
        frozen=("2.layer.self_attn.out_proj.weight",),
        program=(Forward(),),
    )
    check(case)
    frozen = {c.model: c.frozen for c in smaller_models(case)}
    embedding = Embedding(rows=1, out=3)
    assert frozen[seq(embedding, layer)] == ("1.layer.self_attn.out_proj.weight",)
    assert frozen[seq(embedding, linear, linear)] == ("2.weight",)


def test_a_module_with_parameters_of_its_own_gives_way_to_a_row() -> None:
    case = CaseSpec(
        world_size=2,
        model=Matrix(body=Linear(out=3, bias=False)),
        inputs=Dense(width=3),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path="body"), Fsdp2Unit(path=""))),
        program=(Forward(),),
    )
    row = seq(Linear(out=3, bias=False), Linear(out=3, bias=False))
    (made,) = (c for c in smaller_models(case) if c.model == row)
    assert [unit.path for unit in made.plan.units] == ["0", ""]
    assert not _unsound(made)


def test_a_module_with_a_layer_beside_its_body_gives_way_to_a_row_of_both() -> None:
    case = CaseSpec(
        world_size=2,
        model=SideOutput(body=Linear(out=3, bias=False), on="input"),
        inputs=Dense(width=3),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path="body"), Fsdp2Unit(path=""))),
        program=(Forward(),),
    )
    row = seq(Linear(out=3, bias=False), Linear(out=3, bias=False))
    (made,) = (c for c in smaller_models(case) if c.model == row)
    assert [unit.path for unit in made.plan.units] == ["0", ""]
    assert not _unsound(made)


def test_the_weight_of_a_layer_stands_for_a_parameter_of_another_name() -> None:
    case = CaseSpec(
        world_size=2,
        model=Matrix(body=Linear(out=3)),
        inputs=Dense(width=3),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
        frozen=("matrix",),
        program=(Forward(),),
    )
    (made,) = (c for c in smaller_models(case) if c.model == Linear(out=3, bias=False))
    assert made.frozen == ("weight",)


def test_two_layers_give_way_to_one_with_a_bias() -> None:
    layer = Linear(out=3, bias=False)
    case = CaseSpec(
        world_size=2,
        model=seq(layer, layer, layer),
        inputs=Dense(width=3),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path="2"), Fsdp2Unit(path=""))),
        program=(Forward(),),
    )
    found = [c for c in smaller_models(case) if c.model == seq(Linear(out=3), layer)]
    assert [[unit.path for unit in c.plan.units] for c in found] == [["1", ""]]
    assert not _unsound(found[0])


def test_what_takes_tokens_gives_way_to_two_layers_behind_an_embedding() -> None:
    case = CaseSpec(
        world_size=2,
        model=Transformer(rows=3, width=2, heads=1, hidden=1),
        inputs=Tokens(),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="transformer.decoder.norm"))),
        program=(Forward(),),
    )
    layer = Linear(out=3, bias=False)
    model = seq(Embedding(rows=3, out=3), layer, layer)
    found = [c for c in smaller_models(case) if c.model == model]
    assert not any(_unsound(c) for c in found)
    assert {tuple(unit.path for unit in c.plan.units) for c in found} >= {("", "1"), ("", "2")}
