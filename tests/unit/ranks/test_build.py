"""The built model has exactly the names and shapes that the case foresees."""

from __future__ import annotations

import inspect

import msgspec
import pytest
import torch

from fsdpfuzz.case import (
    Activation,
    Branches,
    Buffered,
    CaseSpec,
    Checkpoint,
    CheckpointKind,
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
    Method,
    Node,
    Norm,
    Positions,
    Rebuild,
    Repeat,
    Residual,
    Sequential,
    Switch,
    Tie,
    Tokens,
    Transformer,
    anatomy,
)
from fsdpfuzz.case.modules import (
    Attention,
    ConvNorm,
    Empty,
    Experts,
    ExtraState,
    KvReuse,
    LayerDrop,
    Parametrized,
    Transposed,
)
from fsdpfuzz.case.modules.keyed import Keyed
from fsdpfuzz.steps.modules.chain import Chain
from tests.unit.ranks.executed import built


def seq(*children: Node) -> Sequential:
    return Sequential(children=children)


MODELS: dict[str, Node] = {
    "linear": Linear(out=5),
    "norms": seq(Norm(), Norm(variant="rms"), Norm(affine=False)),
    "leaves": seq(Activation(fn="tanh"), Dropout(), Gain(), Buffered(updates=True), Idle()),
    "conv_norm": seq(ConvNorm(channels=2), ConvNorm(affine=False)),
    "scalar": Gain(scalar=True),
    "lora": Lora(out=7, rank=2, bias=False),
    "matrix": Matrix(body=Linear(out=6), buffered=True),
    "residual": Residual(body=seq(Linear(out=9), Linear(out=4))),
    "concat": Branches(children=(Linear(out=2), Linear(out=3))),
    "sum": Branches(children=(Linear(out=2), Linear(out=2)), merge="sum"),
    "side": Branches(children=(Linear(out=4), Linear(out=4)), merge="stack", side=True),
    "method": Method(body=seq(Linear(out=9), Linear(out=2))),
    "repeat": Repeat(body=seq(Linear(out=4), Linear(out=4)), times=3, no_grad="first_child"),
    "switch": Switch(children=(Linear(out=4), seq(Linear(out=2), Linear(out=4)))),
    "parametrized": seq(
        Parametrized(out=3),
        Parametrized(out=4, bias=False, form="weight_norm_dim1"),
        Parametrized(out=2, form="orthogonal"),
    ),
    "layer_drop": LayerDrop(children=(seq(Linear(out=2), Linear(out=4)), Linear(out=4)), start=1),
    "experts": Experts(children=(seq(Linear(out=2), Linear(out=4)), Gain()), top=2, start=1),
    "encoder": seq(Positions(rows=3), EncoderLayer(heads=2, causal=True)),
    "empty": seq(Linear(out=3), Empty()),
    "transposed": seq(Transposed(out=3), Transposed(out=2, bias=False)),
    "attention": seq(Attention(heads=2, mask="causal"), Attention(bias=False, batch_first=False)),
    "kv_reuse": KvReuse(heads=4, kv_heads=2, layers=3),
    "extra_state": seq(ExtraState(counts=True), Linear(out=4), ExtraState(as_dict=True)),
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
    return {p.fqn: p.shape for place in anatomy(case).places for p in place.parameters}


@pytest.mark.parametrize("name", MODELS)
def test_names_shapes_and_order_are_foreseen(name: str) -> None:
    case = case_of(MODELS[name])
    model = built(case)
    found = {fqn: tuple(parameter.shape) for fqn, parameter in model.named_parameters()}
    assert found == foreseen(case)
    assert list(found) == list(foreseen(case))
    modules = {path for path, _ in model.named_modules()}
    assert {place.path for place in anatomy(case).places} <= modules
    buffers = {buffer for place in anatomy(case).places for buffer in place.buffers}
    assert {fqn for fqn, _ in model.named_buffers()} == buffers


@pytest.mark.parametrize("name", MODELS)
def test_the_width_that_comes_out_is_foreseen(name: str) -> None:
    case = case_of(MODELS[name])
    output = built(case)(torch.ones(2, 3, 4))
    assert output.shape[-1] == anatomy(case).places[0].width_out


@pytest.mark.parametrize("name", [*MODELS, "keyed", "transformer"])
def test_the_name_that_the_input_has_is_foreseen(name: str) -> None:
    tokens = Transformer(rows=11, width=4)
    case = (
        case_of(tokens, inputs=Tokens())
        if name == "transformer"
        else case_of(MODELS.get(name, Keyed(body=Linear(out=4))))
    )
    model = built(case)
    places = [place for place in anatomy(case).places if place.callable_alone]
    for place in places:
        taken = inspect.signature(model.get_submodule(place.path).forward).parameters
        assert next(iter(taken)) == place.takes, place.path


def test_a_chain_looks_for_what_a_later_plan_has_it_ask() -> None:
    units = Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="0", grouped=("1",))))
    case = case_of(
        seq(Linear(out=4), Linear(out=4)),
        plan=units,
        checkpoints=(Checkpoint(path="1", kind="function"),),
        program=(Rebuild(plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),))), Forward()),
    )
    assert isinstance(built(case), Chain)
    assert not isinstance(built(msgspec.structs.replace(case, program=(Forward(),))), Chain)


def test_a_chain_takes_its_input_as_a_sequence_does() -> None:
    asked = (Checkpoint(path="1", kind="function"),)
    model = built(case_of(seq(Linear(out=4), Linear(out=4)), checkpoints=asked))
    x = torch.ones(2, 3, 4)
    assert torch.equal(model(input=x), model(x))


def test_a_transformer_is_foreseen_but_for_its_tied_head() -> None:
    case = case_of(Transformer(rows=11, width=4), inputs=Tokens())
    found = {fqn: tuple(p.shape) for fqn, p in built(case).named_parameters()}
    assert found == foreseen(case)
    assert built(case)(torch.ones(2, 3, dtype=torch.int64)).shape == (2, 3, 11)


def test_a_tie_is_one_parameter_object() -> None:
    case = case_of(
        seq(Embedding(rows=7, out=4), Linear(out=7, bias=False)),
        inputs=Tokens(),
        ties=(Tie(source="0.weight", target="1.weight"),),
    )
    model = built(case)
    assert model.get_parameter("0.weight") is model.get_parameter("1.weight")


def test_frozen_parameters_do_not_require_grad() -> None:
    model = built(case_of(seq(Linear(out=4), Linear(out=4)), frozen=("1.weight",)))
    assert [fqn for fqn, p in model.named_parameters() if not p.requires_grad] == ["1.weight"]


def test_the_seed_decides_the_weights() -> None:
    first, again = built(case_of(Linear(out=5), seed=7)), built(case_of(Linear(out=5), seed=7))
    other = built(case_of(Linear(out=5), seed=8))
    assert torch.equal(first.get_parameter("weight"), again.get_parameter("weight"))
    assert not torch.equal(first.get_parameter("weight"), other.get_parameter("weight"))


@pytest.mark.parametrize("kind", ["function", "function_offload"])
def test_recomputing_a_child_keeps_the_names(kind: CheckpointKind) -> None:
    model = seq(Linear(out=4), Linear(out=4))
    recomputed = Checkpoint(path="1", kind=kind, reentrant=True)
    plain, own = built(case_of(model)), built(case_of(model, checkpoints=(recomputed,)))
    assert list(plain.state_dict()) == list(own.state_dict())
    x = torch.ones(2, 3, 4, requires_grad=True)
    assert torch.equal(plain(x), own(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_seed_decides_the_same_weights_in_any_dtype(dtype: torch.dtype) -> None:
    case = case_of(seq(Linear(out=4), Gain()))
    usual, own = built(case), built(case, dtype)
    assert {p.dtype for p in own.parameters()} == {dtype}
    for first, second in zip(usual.parameters(), own.parameters(), strict=True):
        assert torch.equal(first.to(dtype), second)
