"""The kinds of module: a file each. To add one, write its file and name it in `Node`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import get_args

from fsdpfuzz.case.modules.activation import Activation, ActivationName
from fsdpfuzz.case.modules.attention import Attention
from fsdpfuzz.case.modules.base import TOKENS, Brought, Child, NodeBase, Parameter, Place, Shape
from fsdpfuzz.case.modules.branches import Branches
from fsdpfuzz.case.modules.buffered import Buffered
from fsdpfuzz.case.modules.conv_norm import BATCH_NORM, ConvNorm
from fsdpfuzz.case.modules.dropout import Dropout
from fsdpfuzz.case.modules.embedding import Embedding
from fsdpfuzz.case.modules.empty import Empty
from fsdpfuzz.case.modules.encoder_layer import MULTIHEAD, EncoderLayer
from fsdpfuzz.case.modules.experts import Experts
from fsdpfuzz.case.modules.extra_state import ExtraState
from fsdpfuzz.case.modules.gain import Gain
from fsdpfuzz.case.modules.idle import Idle
from fsdpfuzz.case.modules.imported import Imported, ImportedModule, ImportedParameter
from fsdpfuzz.case.modules.in_place import VIEWED, InPlace
from fsdpfuzz.case.modules.keyed import BY_KEYWORD, Keyed
from fsdpfuzz.case.modules.kv_reuse import KEYS_VALUES, REUSING, KvReuse
from fsdpfuzz.case.modules.layer_drop import LayerDrop
from fsdpfuzz.case.modules.linear import Linear
from fsdpfuzz.case.modules.lora import Lora
from fsdpfuzz.case.modules.matrix import Matrix
from fsdpfuzz.case.modules.method import Method
from fsdpfuzz.case.modules.norm import Norm
from fsdpfuzz.case.modules.outputs import SEVERAL, Outputs
from fsdpfuzz.case.modules.parametrized import Parametrized
from fsdpfuzz.case.modules.positions import Positions
from fsdpfuzz.case.modules.repeat import Repeat
from fsdpfuzz.case.modules.residual import Residual
from fsdpfuzz.case.modules.sequential import Sequential
from fsdpfuzz.case.modules.side_output import SideOutput
from fsdpfuzz.case.modules.switch import Switch
from fsdpfuzz.case.modules.transformer import Transformer
from fsdpfuzz.case.modules.transposed import Transposed
from fsdpfuzz.case.modules.two_names import TwoNames
from fsdpfuzz.case.modules.walk import Called, Walk
from fsdpfuzz.errors import ContractError

Node = (
    Linear
    | Norm
    | Embedding
    | Activation
    | Dropout
    | Gain
    | Buffered
    | ExtraState
    | Idle
    | Lora
    | EncoderLayer
    | Attention
    | KvReuse
    | Positions
    | Transformer
    | Matrix
    | Sequential
    | Residual
    | Branches
    | Repeat
    | Switch
    | Outputs
    | Keyed
    | Method
    | ConvNorm
    | Parametrized
    | LayerDrop
    | InPlace
    | Experts
    | Empty
    | Transposed
    | SideOutput
    | TwoNames
)

Model = Node | Imported
"""What a case can train: a tree of nodes, or a model of somebody's own as a whole."""

KINDS: dict[str, type[NodeBase]] = {kind.kind(): kind for kind in get_args(Node)}
"""All kinds of module, by name."""


def tree_of(model: Model) -> Node:
    """The tree of nodes that a model is; :class:`ContractError` for an imported one."""
    if isinstance(model, Imported):
        raise ContractError(f"{model.target} is no tree of nodes")
    return model


def complete(kinds: Iterable[type[NodeBase]]) -> None:
    """:class:`ContractError` for a kind that leaves out what every kind has to say."""
    for kind in kinds:
        for name in ("width_after", "visit", "module"):
            if getattr(kind, name) is getattr(NodeBase, name):
                raise ContractError(f"the module kind {kind.kind()} lacks {name}()")


complete((*KINDS.values(), Imported))
for _kind in KINDS.values():
    # msgspec looks the types of a struct's fields up in the struct's own module, when the first
    # decoder is made: a node that holds nodes has to find the whole union there.
    sys.modules[_kind.__module__].Node = Node  # type: ignore[attr-defined]

CLASSES: dict[str, tuple[str, ...]] = {
    **{name: kind.classes for name, kind in KINDS.items() if kind.classes},
    SEVERAL: ("steps.modules.outputs.Several",),
    BY_KEYWORD: ("steps.modules.keyed.ByKeyword",),
    VIEWED: ("steps.modules.in_place.Viewed",),
    "conv": ("torch.nn.Conv1d",),
    BATCH_NORM: ("torch.nn.BatchNorm1d",),
    "sided": ("steps.modules.branches.Sided",),
    "encoder_stack_layer": ("torch.nn.TransformerEncoderLayer",),
    "decoder_stack_layer": ("torch.nn.TransformerDecoderLayer",),
    MULTIHEAD: ("torch.nn.MultiheadAttention",),
    KEYS_VALUES: ("steps.modules.kv_reuse.KeysValues",),
    REUSING: ("steps.modules.kv_reuse.Reusing",),
}
"""For each kind that can be wrapped by class: the classes that its modules may have."""
BY_KEYWORDS = ("encoder_stack_layer", "decoder_stack_layer", BY_KEYWORD, MULTIHEAD)
"""Kinds of modules that are called with keyword arguments."""

__all__ = [
    "BATCH_NORM",
    "BY_KEYWORD",
    "BY_KEYWORDS",
    "CLASSES",
    "KINDS",
    "MULTIHEAD",
    "SEVERAL",
    "TOKENS",
    "VIEWED",
    "Activation",
    "ActivationName",
    "Attention",
    "Branches",
    "Brought",
    "Buffered",
    "Called",
    "Child",
    "ConvNorm",
    "Dropout",
    "Embedding",
    "Empty",
    "EncoderLayer",
    "Experts",
    "ExtraState",
    "Gain",
    "Idle",
    "Imported",
    "ImportedModule",
    "ImportedParameter",
    "InPlace",
    "Keyed",
    "KvReuse",
    "LayerDrop",
    "Linear",
    "Lora",
    "Matrix",
    "Method",
    "Model",
    "Node",
    "NodeBase",
    "Norm",
    "Outputs",
    "Parameter",
    "Parametrized",
    "Place",
    "Positions",
    "Repeat",
    "Residual",
    "Sequential",
    "Shape",
    "SideOutput",
    "Switch",
    "Transformer",
    "Transposed",
    "TwoNames",
    "Walk",
    "tree_of",
]
