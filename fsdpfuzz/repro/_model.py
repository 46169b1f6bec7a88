"""The model of a case as source: one expression, its ties, what is frozen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fsdpfuzz.errors import ContractError
from fsdpfuzz.repro._layout import Expression, call, listing, statement
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
    Transformer,
    case_places,
    width_after,
    width_in,
)

_ACTIVATIONS = {
    "gelu": "nn.GELU",
    "silu": "nn.SiLU",
    "tanh": "nn.Tanh",
    "softplus": "nn.Softplus",
    "relu": "nn.ReLU",
}
CLASSES: dict[str, tuple[str, ...]] = {
    "linear": ("nn.Linear",),
    "norm": ("nn.LayerNorm", "nn.RMSNorm"),
    "embedding": ("nn.Embedding",),
    "gain": ("Gain",),
    "buffered": ("Buffered",),
    "lora": ("Lora",),
    "matrix": ("Matrix",),
    "sequential": ("nn.Sequential",),
    "residual": ("Residual",),
    "branches": ("Branches",),
    "sided": ("Sided",),
    "repeat": ("Repeat",),
    "encoder_layer": ("EncoderLayer",),
    "encoder_stack_layer": ("nn.TransformerEncoderLayer",),
    "decoder_stack_layer": ("nn.TransformerDecoderLayer",),
}
"""Classes of a node kind, for ``ModuleWrapPolicy``; subclasses of these go without saying."""


@dataclass(slots=True)
class ModelText:
    """The expression that builds a model, and the classes it needs beyond torch's."""

    expression: Expression
    classes: set[str] = field(default_factory=set)
    float32_eps: bool = False
    """Whether ``nn.RMSNorm``, whose default follows the dtype, is given float32's."""


def model_text(
    case: CaseSpec, recomputed: frozenset[str], *, two_dtypes: bool = False
) -> ModelText:
    """The model of ``case``. ``recomputed`` are the paths whose caller recomputes them.

    With ``two_dtypes`` it computes the same in float64 as in float32, but for rounding.
    """
    text = ModelText("", float32_eps=two_dtypes)
    text.expression = _node(case.model, width_in(case), "", recomputed, text)
    return text


def changes(case: CaseSpec, depth: int) -> list[str]:
    """Statements that tie and freeze parameters of ``model``."""
    lines = [f"{attribute(t.target)} = {attribute(t.source)}" for t in case.ties]
    return lines + list(_freezing(case, depth))


def attribute(fqn: str, root: str = "model") -> str:
    """The module or parameter at an FQN as an expression: ``model[0].body.weight``."""
    text = root
    for part in fqn.split(".") if fqn else ():
        text += f"[{part}]" if part.isdigit() else f".{part}"
    return text


def names_literal(names: Sequence[str]) -> Expression:
    """A tuple literal of strings."""
    if len(names) == 1:
        return f'("{names[0]}",)'
    return call("", *(f'"{name}"' for name in names))


def _freezing(case: CaseSpec, depth: int) -> Iterator[str]:
    left = set(case.frozen)
    if not left:
        return
    targets = {tie.target for tie in case.ties}
    found = case_places(case)
    covered: list[str] = []
    # A transformer's head shares a weight that is not listed among its parameters.
    shares = any(isinstance(place.node, Transformer) for place in found)
    for place in () if shares else found:
        inside = {
            p.fqn
            for other in found
            if not place.path or other.path == place.path or other.path.startswith(f"{place.path}.")
            for p in other.parameters
        }
        # A module with a tied parameter is not frozen as a whole: its partner may be trained.
        if inside & left and inside <= set(case.frozen) and not inside & targets:
            covered.append(place.path)
            left -= inside
    for path in covered:
        yield f"{attribute(path)}.requires_grad_(False)"
    names = [name for name in case.frozen if name in left]
    if len(names) > 2:
        yield from statement("for name in ", names_literal(names), depth=depth, tail=":")
        yield "    model.get_parameter(name).requires_grad_(False)"
    else:
        for name in names:
            yield f"{attribute(name)}.requires_grad_(False)"


def _node(
    node: Node, width: int, path: str, recomputed: frozenset[str], text: ModelText
) -> Expression:
    prefix = f"{path}." if path else ""

    def child(name: str, inner: Node, ins: int = width) -> Expression:
        return _node(inner, ins, f"{prefix}{name}", recomputed, text)

    def own(name: str, *args: Expression) -> Expression:
        text.classes.add(name)
        return call(name, *args)

    match node:
        case Sequential():
            items = []
            for i, inner in enumerate(node.children):
                items.append(child(str(i), inner, width))
                width = width_after(inner, width)
            paths = {f"{prefix}{i}" for i in range(len(items))}
            return own("Chain", *items) if paths & recomputed else call("nn.Sequential", *items)
        case Residual():
            return own("Residual", child("body", node.body))
        case Repeat():
            body = child("body", node.body)
            if node.no_grad == "off":
                return own("Repeat", body, f"{node.times}")
            part = "" if node.no_grad == "body" else "0"
            return own("RepeatAside", body, f"{node.times}", f'"{part}"')
        case Matrix():
            out = width_after(node.body, width)
            return own("Matrix", child("body", node.body), f"{out}", f"{node.buffered}")
        case Switch():
            inner_ones = (child(f"branches.{i}", n) for i, n in enumerate(node.children))
            return own("Switch", listing(*inner_ones))
        case Branches(side=True):
            sided = [
                own("Sided", child(f"branches.{i}.inner", n)) for i, n in enumerate(node.children)
            ]
            return own("SidedBranches", listing(*sided), f'"{node.merge}"')
        case Branches():
            plain = [child(f"branches.{i}", n) for i, n in enumerate(node.children)]
            return own("Branches", listing(*plain), f'"{node.merge}"')
        case _:
            name, *args = _leaf(node, width)
            if name == "nn.RMSNorm" and text.float32_eps:
                args.append("eps=torch.finfo(torch.float32).eps")
            if name[0].isupper():
                text.classes.add(name)
            return call(name, *args)


def _leaf(node: Node, width: int) -> tuple[str, ...]:
    match node:
        case Linear():
            bias = () if node.bias else ("bias=False",)
            return ("nn.Linear", f"{width}", f"{node.out}", *bias)
        case Norm():
            name = "nn.LayerNorm" if node.variant == "layer" else "nn.RMSNorm"
            affine = () if node.affine else ("elementwise_affine=False",)
            return (name, f"{width}", *affine)
        case Embedding():
            return ("nn.Embedding", f"{node.rows}", f"{node.out}")
        case Activation():
            return (_ACTIVATIONS[node.fn],)
        case Dropout():
            return ("nn.Dropout", f"{node.p}")
        case Gain():
            return ("Gain",) if node.scalar else ("Gain", "1")
        case Buffered():
            return ("Buffered", f"{width}", f"{node.persistent}", f"{node.updates}")
        case Idle():
            return ("Idle", f"{width}")
        case Lora():
            return ("Lora", f"{width}", f"{node.out}", f"{node.rank}", f"{node.bias}")
        case Positions():
            return ("Positions", f"{node.rows}", f"{width}")
        case EncoderLayer():
            sizes = (width, node.heads, node.hidden, node.dropout, node.norm_first, node.causal)
            return ("EncoderLayer", *map(str, sizes))
        case Transformer():
            stacks = (node.heads, node.hidden, node.encoders, node.decoders, node.dropout)
            return ("TiedTransformer", *map(str, (node.rows, node.width, *stacks)))
        case _:
            raise ContractError(f"no source is written for {type(node).__name__}")
