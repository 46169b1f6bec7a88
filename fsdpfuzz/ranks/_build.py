"""From a case to a plain module on the CPU: tree, ties, freezing. No FSDP here.

Every rank and every replica builds the same weights because construction draws from the
global generator, seeded with the case's seed, in the order of the tree.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from fsdpfuzz.errors import ContractError
from fsdpfuzz.ranks import _modules as modules
from fsdpfuzz.spec import (
    Activation,
    Branches,
    Buffered,
    CaseSpec,
    Dropout,
    Embedding,
    EncoderLayer,
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
    Transformer,
    width_after,
    width_in,
)

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "softplus": nn.Softplus,
    "relu": nn.ReLU,
}

NODE_CLASSES: dict[str, tuple[type[nn.Module], ...]] = {
    "linear": (nn.Linear,),
    "norm": (nn.LayerNorm, nn.RMSNorm),
    "embedding": (nn.Embedding,),
    "gain": (modules.Gain,),
    "buffered": (modules.Buffered,),
    "lora": (modules.Lora,),
    "matrix": (modules.Matrix,),
    "sequential": (nn.Sequential, modules.Chain),
    "residual": (modules.Residual,),
    "branches": (modules.Branches, modules.SidedBranches),
    "sided": (modules.Sided,),
    "repeat": (modules.Repeat, modules.RepeatAside),
    "encoder_layer": (modules.EncoderLayer,),
    "encoder_stack_layer": (nn.TransformerEncoderLayer,),
    "decoder_stack_layer": (nn.TransformerDecoderLayer,),
}
"""Which classes a node kind becomes, for ``ModuleWrapPolicy``."""


def build(case: CaseSpec) -> nn.Module:
    """The model of ``case`` on the CPU in float32, tied and frozen, in train mode."""
    torch.manual_seed(case.seed)
    recomputed = {c.path for c in case.checkpoints if c.kind.startswith("function")}
    model = _node(case.model, width_in(case), "", recomputed)
    tie(model, case.ties)
    freeze(model, case.frozen)
    return model


def tie(model: nn.Module, ties: Sequence[Tie]) -> None:
    """Makes each target the same ``nn.Parameter`` object as its source."""
    for pair in ties:
        owner, _, name = pair.target.rpartition(".")
        setattr(model.get_submodule(owner), name, model.get_parameter(pair.source))


def freeze(model: nn.Module, frozen: Sequence[str]) -> None:
    """Clears ``requires_grad`` of the named parameters."""
    for fqn in frozen:
        model.get_parameter(fqn).requires_grad_(False)


def _node(node: Node, width: int, path: str, recomputed: set[str]) -> nn.Module:
    prefix = f"{path}." if path else ""

    def child(name: str, inner: Node, ins: int = width) -> nn.Module:
        return _node(inner, ins, f"{prefix}{name}", recomputed)

    match node:
        case Sequential():
            return _sequential(node, width, prefix, recomputed)
        case Residual():
            return modules.Residual(child("body", node.body))
        case Repeat():
            body = child("body", node.body)
            if node.no_grad == "off":
                return modules.Repeat(body, node.times)
            part = "" if node.no_grad == "body" else "0"
            return modules.RepeatAside(body, node.times, part)
        case Matrix():
            out = width_after(node.body, width)
            return modules.Matrix(child("body", node.body), out, node.buffered)
        case Switch():
            inner = [child(f"branches.{i}", n) for i, n in enumerate(node.children)]
            return modules.Switch(inner)
        case Branches(side=True):
            sided = [
                modules.Sided(child(f"branches.{i}.inner", n)) for i, n in enumerate(node.children)
            ]
            return modules.SidedBranches(list(sided), node.merge)
        case Branches():
            inner = [child(f"branches.{i}", n) for i, n in enumerate(node.children)]
            return modules.Branches(inner, node.merge)
        case _:
            return _leaf(node, width)


def _sequential(node: Sequential, width: int, prefix: str, recomputed: set[str]) -> nn.Module:
    children = []
    for i, inner in enumerate(node.children):
        children.append(_node(inner, width, f"{prefix}{i}", recomputed))
        width = width_after(inner, width)
    plain = recomputed.isdisjoint(f"{prefix}{i}" for i in range(len(children)))
    return nn.Sequential(*children) if plain else modules.Chain(*children)


def _leaf(node: Node, width: int) -> nn.Module:
    match node:
        case Linear():
            return nn.Linear(width, node.out, bias=node.bias)
        case Norm(variant="layer"):
            return nn.LayerNorm(width, elementwise_affine=node.affine)
        case Norm():
            return nn.RMSNorm(width, elementwise_affine=node.affine)
        case Embedding():
            return nn.Embedding(node.rows, node.out)
        case Activation():
            return _ACTIVATIONS[node.fn]()
        case Dropout():
            return nn.Dropout(node.p)
        case Gain():
            return modules.Gain() if node.scalar else modules.Gain(1)
        case Buffered():
            return modules.Buffered(width, node.persistent, node.updates)
        case Idle():
            return modules.Idle(width)
        case Lora():
            return modules.Lora(width, node.out, node.rank, node.bias)
        case Positions():
            return modules.Positions(node.rows, width)
        case EncoderLayer():
            return modules.EncoderLayer(
                width, node.heads, node.hidden, node.dropout, node.norm_first, node.causal
            )
        case Transformer():
            return modules.TiedTransformer(
                node.rows,
                node.width,
                node.heads,
                node.hidden,
                node.encoders,
                node.decoders,
                node.dropout,
            )
        case _:
            raise ContractError(f"no module is built for {type(node).__name__}")
