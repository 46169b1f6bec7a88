"""Smaller and plainer models, with everything in the case that names their modules."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from fsdpfuzz.case import (
    TOKENS,
    CaseSpec,
    Dense,
    Embedding,
    Imported,
    Linear,
    Node,
    NodeBase,
    Sequential,
    Tokens,
    anatomy,
    decode,
    encode,
    innermost,
    join,
    own_places,
    tree_of,
    within,
)
from fsdpfuzz.case.inputs import rows_of
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce.names import renamed, size_fields

replace = msgspec.structs.replace
NOTHING: Mapping[str, str] = {}


@dataclass(slots=True)
class _Model:
    """A model whose nodes are told apart by identity, so that they can be followed."""

    case: CaseSpec
    path_of: dict[int, str] = field(default_factory=dict)
    """Identity of each node to its FQN."""
    above: dict[int, Node] = field(default_factory=dict)
    """Identity of each node but the root to the node that holds it."""
    nodes: list[Node] = field(default_factory=list)
    """All nodes, parents before children."""
    owner_of: dict[str, str] = field(default_factory=dict)
    """FQN of each parameter to that of its module; `nn.MultiheadAttention` reaches into another."""


def smaller_models(case: CaseSpec) -> Iterator[CaseSpec]:
    """Cases with less of a model, the largest step first; sound ones and others."""
    if isinstance(case.model, Imported):
        return  # nobody but its owner can make it smaller
    model = _taken_apart(case)
    # The largest steps first: each one that still fails saves all the small ones.
    yield from _one_part(model)
    yield from _without_children(model)
    yield from _by_child(model)
    yield from _in_a_row(model)
    yield from _as_linear(model)
    yield from _as_two_layers(model)
    yield from _two_in_one(model)
    yield from _plainer(model)
    yield from _dense_inputs(model)
    yield from _narrower(case)


def _taken_apart(case: CaseSpec) -> _Model:
    # Decoding makes an object of its own of every node, even where a strategy reused one.
    case = decode(encode(case))
    model = _Model(case)
    for place in own_places(case.model, case.inputs.width_out()):
        model.owner_of.update({p.fqn: place.path for p in place.parameters})
        if place.node is not None:
            model.path_of[id(place.node)] = place.path
            model.nodes.append(tree_of(place.node))
    for node in model.nodes:
        for inner in _children(node):
            model.above[id(inner)] = node
    return model


def _children(node: Node) -> list[Node]:
    found: list[Node] = []
    for name in node.__struct_fields__:
        value = getattr(node, name)
        inside = value if isinstance(value, tuple) else (value,)
        found += [inner for inner in inside if isinstance(inner, NodeBase)]  # type: ignore[misc]
    return found


def _one_part(model: _Model) -> Iterator[CaseSpec]:
    """A module inside becomes the whole model."""
    root = model.case.model
    for node in model.nodes[1:]:
        yield from _changed(model, {id(root): node})


def _without_children(model: _Model) -> Iterator[CaseSpec]:
    """Fewer children: one half or the other, then one at a time, the last ones first."""
    for node in model.nodes:
        for name in node.__struct_fields__:
            held = getattr(node, name)
            if not isinstance(held, tuple) or len(held) < 2 or not isinstance(held[0], NodeBase):
                continue
            size = len(held) // 2
            while size:
                # From the end: what comes first is fed by the inputs, and changes all that follows.
                for start in range(len(held) - size, -1, -size):
                    left = held[:start] + held[start + size :]
                    made = replace(node, **{name: left})
                    yield from _changed(model, {id(node): made})
                size //= 2


def _by_child(model: _Model) -> Iterator[CaseSpec]:
    """A module gives way to one that it holds."""
    for node in model.nodes:
        for inner in _children(node):
            yield from _changed(model, {id(node): inner})


def _in_a_row(model: _Model) -> Iterator[CaseSpec]:
    """A module that holds others gives way to a row of them, so that each is called.

    Of one, too: a unit around another stays one, and takes what was put on modules in between, or
    a row in its place does. A linear layer at the end stands for parameters that the module has
    itself, or in a module beside those.
    """
    places = own_places(model.case.model, model.case.inputs.width_out())
    for place in places:
        node = place.node
        if node is None or isinstance(node, Sequential):
            continue
        row = tuple(_children(tree_of(node)))
        beside = (p for p in places if p.node is None and p.path.rpartition(".")[0] == place.path)
        if row and (place.parameters or any(p.parameters for p in beside)):
            row += (Linear(out=place.width_out, bias=False),)
        between = [p.path for p in places if p.node is None and within(p.path, place.path)]
        inside = dict.fromkeys(between, "0") if len(row) == 1 else NOTHING
        if row:
            yield from _changed(model, {id(node): Sequential(children=row)}, inside)
        if row and inside:
            nested = Sequential(children=(Sequential(children=row),))
            yield from _changed(model, {id(node): nested}, inside)


def _as_linear(model: _Model) -> Iterator[CaseSpec]:
    """A module gives way to a linear layer."""
    width = model.case.inputs.width_out()
    places = {id(place.node): place for place in own_places(model.case.model, width)}
    for node in model.nodes:
        place = places[id(node)]
        plain = Linear(out=place.width_out, bias=False)
        if place.width_in and node != plain and not isinstance(node, Linear):
            yield from _changed(model, {id(node): plain})


def _as_two_layers(model: _Model) -> Iterator[CaseSpec]:
    """A module that makes several of its own gives way to two linear layers.

    One of them takes what was put on one of its modules, a unit say, the other what was put on
    the rest: so a finding that needs one unit in another does not keep an adapter for it, and
    with biases neither does one that needs several parameters in a unit. What takes tokens has an
    embedding before the two.
    """
    width = model.case.inputs.width_out()
    places = own_places(model.case.model, width)
    for place in places:
        node = place.node
        if node is None or place.width_in is None or _children(tree_of(node)):
            continue
        rows = rows_of(anatomy(model.case)) if place.width_in == TOKENS else 0
        inner = [p.path for p in places if p.path != place.path and within(p.path, place.path)]
        layer = Linear(out=place.width_out, bias=False)
        first: tuple[Node, ...] = (Embedding(rows=rows, out=place.width_out),) if rows else ()
        one, two = str(len(first)), str(len(first) + 1)
        for path in inner if len(inner) > 1 else ():
            apart = [p for p in inner if not within(path, p)]
            for own, other in ((one, two), (two, one)):
                inside = {p: own if within(p, path) else other for p in apart}
                chain = Sequential(children=(*first, layer, layer))
                yield from _changed(model, {id(node): chain}, inside)
        if len(inner) > 1:
            biased = replace(layer, bias=True)
            yield from _changed(model, {id(node): Sequential(children=(*first, biased, biased))})


def _two_in_one(model: _Model) -> Iterator[CaseSpec]:
    """Two linear layers in a row give way to one with a bias, which has as many parameters."""
    for node in model.nodes:
        if not isinstance(node, Sequential):
            continue
        for i, (first, second) in enumerate(pairwise(node.children)):
            if isinstance(first, Linear) and isinstance(second, Linear) and not second.bias:
                left = (*node.children[:i], replace(second, bias=True), *node.children[i + 2 :])
                yield from _changed(model, {id(node): Sequential(children=left)})


def _plainer(model: _Model) -> Iterator[CaseSpec]:
    """A module without one of its options, or with fewer of what it has several of."""
    for node in model.nodes:
        for plain in node.simpler():
            yield from _changed(model, {id(node): plain})
        for name in size_fields(type(node), "count"):
            count = getattr(node, name)
            for fewer in dict.fromkeys((1, count // 2, count - 1)):
                if 0 < fewer < count:
                    yield from _changed(model, {id(node): replace(node, **{name: fewer})})


def _dense_inputs(model: _Model) -> Iterator[CaseSpec]:
    """Inputs that are no tokens, and so no embedding at the start."""
    inputs = model.case.inputs
    if not isinstance(inputs, Tokens):
        return
    first = next((node for node in model.nodes if isinstance(node, Embedding)), None)
    if first is None:
        return
    dense = Dense(width=first.out, batch=inputs.batch)
    without = replace(model.case, inputs=dense)
    holder = model.above.get(id(first))
    model = dataclasses.replace(model, case=without)
    changes: list[dict[int, Node]] = [{id(first): Linear(out=first.out, bias=False)}]
    if holder is not None:
        for name in holder.__struct_fields__:
            held = getattr(holder, name)
            if isinstance(held, tuple) and first in held and len(held) > 1:
                left = tuple(inner for inner in held if inner is not first)
                changes.insert(0, {id(holder): replace(holder, **{name: left})})
    for change in changes:
        yield from _changed(model, change)


def _narrower(case: CaseSpec) -> Iterator[CaseSpec]:
    """The same width smaller wherever it occurs, so that what must be equal stays equal."""
    found = {w for w in _widths(tree_of(case.model)) if w > 1}
    widths = sorted(found | _input_widths(case), reverse=True)
    if len(widths) > 1:
        for size in (1, 2, 3):
            yield _with_widths(case, dict.fromkeys(widths, size))
    for width in widths:
        for smaller in dict.fromkeys((1, 2, 3, width // 2, width - 1)):
            if 0 < smaller < width:
                yield _with_widths(case, {width: smaller})


def _input_widths(case: CaseSpec) -> set[int]:
    return (
        {case.inputs.width} if isinstance(case.inputs, Dense) and case.inputs.width > 1 else set()
    )


def _widths(node: Node) -> Iterator[int]:
    for name in size_fields(type(node), "width"):
        yield getattr(node, name)
    for inner in _children(node):
        yield from _widths(inner)


def _with_widths(case: CaseSpec, sizes: dict[int, int]) -> CaseSpec:
    inputs = case.inputs
    if isinstance(inputs, Dense) and inputs.width in sizes:
        inputs = replace(inputs, width=sizes[inputs.width])
    return replace(case, model=_resized(tree_of(case.model), sizes), inputs=inputs)


def _resized(node: Node, sizes: dict[int, int]) -> Node:
    changed: dict[str, Any] = {}
    for name in node.__struct_fields__:
        value = getattr(node, name)
        if name in size_fields(type(node), "width"):
            changed[name] = sizes.get(value, value)
        elif isinstance(value, NodeBase):
            changed[name] = _resized(value, sizes)  # type: ignore[arg-type]
        elif isinstance(value, tuple) and value and isinstance(value[0], NodeBase):
            changed[name] = tuple(_resized(inner, sizes) for inner in value)
    made: Node = replace(node, **changed)
    return made


def _changed(
    model: _Model, by: dict[int, Node], inside: Mapping[str, str] = NOTHING
) -> Iterator[CaseSpec]:
    """The case with nodes replaced; nothing where the widths then clash.

    ``inside`` names, for modules that a node made itself, their path in the one that replaces it.

    A node that gives way leaves its name, and what was put there (a unit, a checkpoint), to
    the one in its place, unless that one brings such a thing along itself. A single layer in its
    place also takes what was put inside.
    """
    origin: dict[int, int] = {}
    """Identity of each new node to that of the one whose place it takes."""

    def rebuilt(node: Node) -> Node:
        if id(node) in by:
            made = by[id(node)]
            if id(made) not in model.path_of:
                origin[id(made)] = id(node)
            return made
        changed: dict[str, Any] = {}
        for name in node.__struct_fields__:
            value = getattr(node, name)
            if isinstance(value, NodeBase):
                new: Any = rebuilt(value)  # type: ignore[arg-type]
                if new is not value:
                    changed[name] = new
            elif isinstance(value, tuple) and value and isinstance(value[0], NodeBase):
                news = tuple(rebuilt(inner) for inner in value)
                if any(new is not inner for new, inner in zip(news, value, strict=True)):
                    changed[name] = news
        if not changed:
            return node
        made = replace(node, **changed)
        origin[id(made)] = id(node)
        return made

    root = rebuilt(tree_of(model.case.model))
    case = replace(model.case, model=root)
    try:
        places = own_places(root, case.inputs.width_out())
    except CaseError:
        return
    moved: dict[str, str] = {}
    for place in places:
        if place.node is not None:
            old = model.path_of.get(origin.get(id(place.node), id(place.node)))
            if old is not None:
                moved[old] = place.path
    for given_way, made in by.items():
        own, taken = model.path_of[given_way], model.path_of.get(id(made))
        if taken is not None and taken in moved:
            moved.setdefault(own, moved[taken])
    known = {place.path for place in places}
    fqns = {p.fqn for place in places for p in place.parameters}

    def module(path: str) -> str | None:
        holder = path
        while holder not in model_paths:
            holder = holder.rpartition(".")[0]
        if holder in moved:
            new = join(moved[holder], inside.get(path, path[len(holder) :].lstrip(".")))
            if new in known:
                return new
        layer = innermost(path, layers)
        return None if layer is None else moved[layer]

    def parameter(fqn: str) -> str | None:
        path = model.owner_of.get(fqn)
        owner = None if path is None else module(path)
        if path is None or owner is None:
            return None
        name = fqn[len(path) :].lstrip(".")
        # `out_proj.weight` of an attention is the weight of the linear layer in its place.
        last = name.rpartition(".")[2]
        names = [join(owner, name), join(owner, last)]
        if last != "bias" and innermost(path, layers) is not None:
            names.append(join(owner, "weight"))  # as a matrix of the module's own becomes
        return next((new for new in names if new in fqns), None)

    model_paths = set(model.path_of.values())
    fresh = {gone for gone, made in by.items() if id(made) not in model.path_of}
    layers = tuple(
        path for gone in fresh if not _children(by[gone]) and (path := model.path_of[gone]) in moved
    )
    made_case = renamed(case, module, parameter)
    if made_case is not None:
        yield made_case
