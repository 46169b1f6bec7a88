"""The built model has exactly the names and shapes that the spec foresees."""

from __future__ import annotations

import pytest
import torch

from fsdpfuzz.ranks._build import build
from fsdpfuzz.spec import (
    Activation,
    Branches,
    Buffered,
    CaseSpec,
    Checkpoint,
    Dense,
    Dropout,
    Embedding,
    EncoderLayer,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Gain,
    Idle,
    Linear,
    Lora,
    Matrix,
    Node,
    Norm,
    Positions,
    Repeat,
    Residual,
    Sequential,
    Switch,
    Tie,
    Tokens,
    Transformer,
    case_places,
)


def seq(*children: Node) -> Sequential:
    return Sequential(children=children)


MODELS: dict[str, Node] = {
    "linear": Linear(out=5),
    "norms": seq(Norm(), Norm(variant="rms"), Norm(affine=False)),
    "leaves": seq(Activation(fn="tanh"), Dropout(), Gain(), Buffered(updates=True), Idle()),
    "scalar": Gain(scalar=True),
    "lora": Lora(out=7, rank=2, bias=False),
    "matrix": Matrix(body=Linear(out=6), buffered=True),
    "residual": Residual(body=seq(Linear(out=9), Linear(out=4))),
    "concat": Branches(children=(Linear(out=2), Linear(out=3))),
    "sum": Branches(children=(Linear(out=2), Linear(out=2)), merge="sum"),
    "side": Branches(children=(Linear(out=4), Linear(out=4)), merge="stack", side=True),
    "repeat": Repeat(body=seq(Linear(out=4), Linear(out=4)), times=3, no_grad="first_child"),
    "switch": Switch(children=(Linear(out=4), seq(Linear(out=2), Linear(out=4)))),
    "encoder": seq(Positions(rows=3), EncoderLayer(heads=2, causal=True)),
}


def case_of(model: Node, **changes: object) -> CaseSpec:
    values: dict[str, object] = {
        "world_size": 2,
        "model": model,
        "inputs": Dense(width=4, length=3),
        "plan": Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
        "program": (Forward(),),
    }
    return CaseSpec(**values | changes)  # type: ignore[arg-type]


def foreseen(case: CaseSpec) -> dict[str, tuple[int, ...]]:
    return {p.fqn: p.shape for place in case_places(case) for p in place.parameters}


@pytest.mark.parametrize("name", MODELS)
def test_names_shapes_and_order_are_foreseen(name: str) -> None:
    case = case_of(MODELS[name])
    model = build(case)
    built = {fqn: tuple(parameter.shape) for fqn, parameter in model.named_parameters()}
    assert built == foreseen(case)
    assert list(built) == list(foreseen(case))
    modules = {path for path, _ in model.named_modules()}
    assert {place.path for place in case_places(case)} <= modules
    buffers = {buffer for place in case_places(case) for buffer in place.buffers}
    assert {fqn for fqn, _ in model.named_buffers()} == buffers


@pytest.mark.parametrize("name", MODELS)
def test_the_width_that_comes_out_is_foreseen(name: str) -> None:
    case = case_of(MODELS[name])
    output = build(case)(torch.ones(2, 3, 4))
    assert output.shape[-1] == case_places(case)[0].width_out


def test_a_transformer_is_foreseen_but_for_its_tied_head() -> None:
    case = case_of(Transformer(rows=11, width=4), inputs=Tokens())
    built = {fqn: tuple(p.shape) for fqn, p in build(case).named_parameters()}
    assert built == foreseen(case)
    assert build(case)(torch.ones(2, 3, dtype=torch.int64)).shape == (2, 3, 11)


def test_a_tie_is_one_parameter_object() -> None:
    case = case_of(
        seq(Embedding(rows=7, out=4), Linear(out=7, bias=False)),
        inputs=Tokens(),
        ties=(Tie(source="0.weight", target="1.weight"),),
    )
    model = build(case)
    assert model.get_parameter("0.weight") is model.get_parameter("1.weight")


def test_frozen_parameters_do_not_require_grad() -> None:
    model = build(case_of(seq(Linear(out=4), Linear(out=4)), frozen=("1.weight",)))
    assert [fqn for fqn, p in model.named_parameters() if not p.requires_grad] == ["1.weight"]


def test_the_seed_decides_the_weights() -> None:
    first, again = build(case_of(Linear(out=5), seed=7)), build(case_of(Linear(out=5), seed=7))
    other = build(case_of(Linear(out=5), seed=8))
    assert torch.equal(first.get_parameter("weight"), again.get_parameter("weight"))
    assert not torch.equal(first.get_parameter("weight"), other.get_parameter("weight"))


def test_recomputing_a_child_keeps_the_names() -> None:
    model = seq(Linear(out=4), Linear(out=4))
    plain = case_of(model)
    recomputed = case_of(model, checkpoints=(Checkpoint(path="1", kind="function"),))
    assert list(build(plain).state_dict()) == list(build(recomputed).state_dict())
