"""A walk over a model tree: modules, parameters and buffers by FQN, without importing torch.

`ranks/_build.py` must build exactly these names and shapes; a test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TypeAlias

from fsdpfuzz.errors import CaseError
from fsdpfuzz.spec._case import CaseSpec
from fsdpfuzz.spec._model import (
    Branches,
    Buffered,
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
)
from fsdpfuzz.spec._program import Dense

TOKENS = 0
"""Width of the data before an embedding: there is none."""

MAX_NODES = 512
MAX_DEPTH = 24
MAX_PARAMETER_ELEMENTS = 2**29

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the built model. ``used`` is False where no forward ever reads it."""

    fqn: str
    shape: Shape
    used: bool = True

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Place:
    """One module of the built model that a unit or a checkpoint can name.

    ``parameters`` and ``buffers`` are those of the module that lie in no deeper place.
    ``json_path`` says where its node stands in the document.
    """

    path: str
    kind: str
    node: Node | None
    width_in: int
    width_out: int
    depth: int
    json_path: str
    parameters: tuple[Parameter, ...] = ()
    buffers: tuple[str, ...] = ()


def join(*parts: str) -> str:
    """``a.b`` from its parts, empty ones left out."""
    return ".".join(part for part in parts if part)


def width_after(node: Node, width: int, at: str = "$.model") -> int:
    """The width that ``node`` puts out for ``width`` in; :class:`CaseError` if it cannot."""
    if isinstance(node, Embedding | Transformer):
        if width != TOKENS:
            raise CaseError("takes tokens, but stands behind a layer", path=at)
        return node.out if isinstance(node, Embedding) else node.rows
    if isinstance(node, Sequential):
        for i, child in enumerate(node.children):
            width = width_after(child, width, f"{at}.children[{i}]")
        return width
    if width == TOKENS and not isinstance(node, Matrix | Switch | Branches):
        raise CaseError(f"{_kind(node)} cannot take tokens; put an embedding first", path=at)
    if isinstance(node, Linear | Lora):
        return node.out
    if isinstance(node, Matrix):
        return width_after(node.body, width, f"{at}.body")
    if isinstance(node, Residual | Repeat):
        return _width_after_loop(node, width, at)
    if isinstance(node, Branches | Switch):
        widths = [
            width_after(child, width, f"{at}.children[{i}]")
            for i, child in enumerate(node.children)
        ]
        if isinstance(node, Branches) and node.merge == "concat":
            return sum(widths)
        if len(set(widths)) > 1:
            raise CaseError(f"children put out different widths {widths}", path=at)
        if isinstance(node, Branches) and node.side and width != widths[0]:
            raise CaseError(
                f"side joins the input of width {width} to outputs of {widths[0]}", path=at
            )
        return widths[0]
    if isinstance(node, EncoderLayer) and width % node.heads:
        raise CaseError(f"width {width} is not divisible by heads={node.heads}", path=at)
    return width


def _width_after_loop(node: Residual | Repeat, width: int, at: str) -> int:
    out = width_after(node.body, width, f"{at}.body")
    if out != width:
        raise CaseError(f"the body must keep the width {width}, but puts out {out}", path=at)
    if isinstance(node, Repeat) and node.no_grad == "first_child":
        if not isinstance(node.body, Sequential) or not node.body.children:
            raise CaseError("no_grad='first_child' needs a sequential body with children", path=at)
        first = width_after(node.body.children[0], width, f"{at}.body.children[0]")
        if first != width:
            raise CaseError(
                f"no_grad='first_child' needs a first child that keeps the width {width}, "
                f"but it puts out {first}",
                path=at,
            )
    return width


@lru_cache(maxsize=64)
def places(model: Node, width: int) -> tuple[Place, ...]:
    """All places of the model, parents before children, as ``named_modules`` orders them."""
    out = tuple(_walk(model, width, path="", at="$.model", depth=0))
    elements = sum(parameter.numel for place in out for parameter in place.parameters)
    if elements > MAX_PARAMETER_ELEMENTS:
        raise CaseError(
            f"{elements} parameter elements; at most {MAX_PARAMETER_ELEMENTS} are accepted",
            path="$.model",
        )
    return out


def parameters(model: Node, width: int) -> tuple[Parameter, ...]:
    """All parameters in the order of ``named_parameters``, ties not yet applied."""
    return tuple(p for place in places(model, width) for p in place.parameters)


def rows_after(node: Node, at: str = "$.model") -> int:
    """How many times larger the batch comes out; :class:`CaseError` where that cannot be.

    Only a ``stack`` enlarges it. What adds or joins several results needs them equally large.
    """
    children: tuple[Node, ...] = getattr(node, "children", ())
    factors = [rows_after(child, f"{at}.children[{i}]") for i, child in enumerate(children)]
    if isinstance(node, Matrix | Residual | Repeat):
        factors = [rows_after(node.body, f"{at}.body")]
    if isinstance(node, Branches) and node.merge == "stack":
        return sum(factors) + node.side
    if isinstance(node, Residual | Repeat) and factors != [1]:
        raise CaseError("the body must keep the batch, but a stack in it enlarges it", path=at)
    if isinstance(node, Branches | Switch):
        if len(set(factors)) > 1:
            raise CaseError(f"children enlarge the batch differently: {factors}", path=at)
        return factors[0]
    return prod(factors)


def _walk(node: Node, width: int, *, path: str, at: str, depth: int) -> Iterator[Place]:
    if depth > MAX_DEPTH:
        raise CaseError(f"nested deeper than {MAX_DEPTH} levels", path=at)
    yield Place(
        path=path,
        kind=_kind(node),
        node=node,
        width_in=width,
        width_out=width_after(node, width, at),
        depth=depth,
        json_path=at,
        parameters=tuple(_own_parameters(node, width, path)),
        buffers=tuple(join(path, name) for name in _own_buffers(node)),
    )
    yield from _inner_places(node, width, path=path, at=at, depth=depth + 1)


def _inner_places(node: Node, width: int, *, path: str, at: str, depth: int) -> Iterator[Place]:
    if isinstance(node, Sequential):
        for i, child in enumerate(node.children):
            here = f"{at}.children[{i}]"
            yield from _walk(child, width, path=join(path, str(i)), at=here, depth=depth)
            width = width_after(child, width, here)
    elif isinstance(node, Matrix | Residual | Repeat):
        yield from _walk(node.body, width, path=join(path, "body"), at=f"{at}.body", depth=depth)
    elif isinstance(node, Branches | Switch):
        for i, child in enumerate(node.children):
            here, inner = f"{at}.children[{i}]", join(path, "branches", str(i))
            if isinstance(node, Branches) and node.side:
                out = width_after(child, width, here)
                yield Place(inner, "sided", None, width, out, depth, here)
                inner = join(inner, "inner")
            yield from _walk(child, width, path=inner, at=here, depth=depth)
    elif isinstance(node, Idle):
        yield _linear_place(
            join(path, "idle"), width, width, bias=True, depth=depth, at=at, used=False
        )
    elif isinstance(node, Lora):
        shapes = (("base", width, node.out, node.bias), ("down", width, node.rank, False))
        for name, ins, outs, bias in (*shapes, ("up", node.rank, node.out, False)):
            yield _linear_place(join(path, name), ins, outs, bias=bias, depth=depth, at=at)
    elif isinstance(node, Transformer):
        yield from _stack_places(node, path, at, depth)


def _linear_place(
    path: str, ins: int, outs: int, *, bias: bool, depth: int, at: str, used: bool = True
) -> Place:
    params = [Parameter(join(path, "weight"), (outs, ins), used)]
    if bias:
        params.append(Parameter(join(path, "bias"), (outs,), used))
    return Place(path, "linear", None, ins, outs, depth, at, tuple(params))


def _stack_places(node: Transformer, path: str, at: str, depth: int) -> Iterator[Place]:
    width = node.width
    for stack, layers in (("encoder", node.encoders), ("decoder", node.decoders)):
        prefix = join(path, "transformer", stack)
        for i in range(layers):
            here = join(prefix, "layers", str(i))
            params = tuple(_encoder_parameters(here, width, node.hidden, stack == "decoder"))
            yield Place(here, f"{stack}_stack_layer", None, width, width, depth, at, params)
        norm = tuple(Parameter(join(prefix, "norm", n), (width,)) for n in ("weight", "bias"))
        yield Place(join(prefix, "norm"), "norm", None, width, width, depth, at, norm)
    bias = (Parameter(join(path, "head", "bias"), (node.rows,)),)
    yield Place(join(path, "head"), "linear", None, width, node.rows, depth, at, bias)


def _own_parameters(node: Node, width: int, path: str) -> Iterator[Parameter]:
    match node:
        case Linear():
            yield Parameter(join(path, "weight"), (node.out, width))
            if node.bias:
                yield Parameter(join(path, "bias"), (node.out,))
        case Norm(affine=True):
            yield Parameter(join(path, "weight"), (width,))
            if node.variant == "layer":
                yield Parameter(join(path, "bias"), (width,))
        case Embedding():
            yield Parameter(join(path, "weight"), (node.rows, node.out))
        case Gain():
            yield Parameter(join(path, "gain"), () if node.scalar else (1,))
        case Matrix():
            width = width_after(node.body, width)
            yield Parameter(join(path, "matrix"), (width, width))
        case Positions():
            yield Parameter(join(path, "table.weight"), (node.rows, width))
        case EncoderLayer():
            yield from _encoder_parameters(join(path, "layer"), width, node.hidden, False)
        case Transformer():
            yield Parameter(join(path, "embed.weight"), (node.rows, node.width))
        case _:
            return


def _own_buffers(node: Node) -> tuple[str, ...]:
    match node:
        case Buffered():
            return ("scale", "calls") if node.updates else ("scale",)
        case Matrix(buffered=True):
            return ("offset",)
        case Transformer():
            return ("vocab_bias", "long_offset")
        case _:
            return ()


def _encoder_parameters(
    path: str, width: int, hidden: int, cross_attention: bool
) -> Iterator[Parameter]:
    for name in ("self_attn", "multihead_attn")[: 2 if cross_attention else 1]:
        yield Parameter(join(path, name, "in_proj_weight"), (3 * width, width))
        yield Parameter(join(path, name, "in_proj_bias"), (3 * width,))
        yield Parameter(join(path, name, "out_proj.weight"), (width, width))
        yield Parameter(join(path, name, "out_proj.bias"), (width,))
    for name, out, ins in (("linear1", hidden, width), ("linear2", width, hidden)):
        yield Parameter(join(path, name, "weight"), (out, ins))
        yield Parameter(join(path, name, "bias"), (out,))
    for i in range(3 if cross_attention else 2):
        yield Parameter(join(path, f"norm{i + 1}", "weight"), (width,))
        yield Parameter(join(path, f"norm{i + 1}", "bias"), (width,))


def _kind(node: Node) -> str:
    tag = node.__struct_config__.tag
    if not isinstance(tag, str):
        raise CaseError(f"{type(node).__name__} has no kind", path="$.model")
    return tag


def width_in(case: CaseSpec) -> int:
    """Width of the case's inputs; `TOKENS` when they are tokens."""
    return case.inputs.width if isinstance(case.inputs, Dense) else TOKENS


def case_places(case: CaseSpec) -> tuple[Place, ...]:
    """The places of the case's model."""
    return places(case.model, width_in(case))
