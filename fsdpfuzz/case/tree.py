"""A walk over a model tree: modules, parameters and buffers by FQN, without importing torch.

A test holds what `steps` build to exactly these names and shapes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from fsdpfuzz.case.modules import Brought, Child, Model, Parameter, Place
from fsdpfuzz.case.paths import join
from fsdpfuzz.errors import CaseError

MAX_NODES = 512
MAX_DEPTH = 24
MAX_PARAMETER_ELEMENTS = 2**29


@lru_cache(maxsize=256)
def places_of(model: Model, width: int) -> tuple[Place, ...]:
    """All places of a model that takes ``width``, parents before children.

    Raises :class:`CaseError` where widths clash, or for a model beyond the bounds.
    """
    return own_places(model, width)


def own_places(model: Model, width: int) -> tuple[Place, ...]:
    """The same with the very nodes of this model, not those of an equal one."""
    out = tuple(_walk(model, width, path="", at="$.model", depth=0))
    elements = sum(parameter.numel for place in out for parameter in place.parameters)
    if elements > MAX_PARAMETER_ELEMENTS:
        raise CaseError(
            f"{elements} parameter elements; at most {MAX_PARAMETER_ELEMENTS} are accepted",
            path="$.model",
        )
    return out


def _walk(node: Model, width: int, *, path: str, at: str, depth: int) -> Iterator[Place]:
    if depth > MAX_DEPTH:
        raise CaseError(f"nested deeper than {MAX_DEPTH} levels", path=at)
    unused = node.unused_parameters()
    yield Place(
        path=path,
        kind=node.place_kind or node.kind(),
        node=node,
        width_in=width,
        width_out=node.width_after(width, at),
        depth=depth,
        json_path=at,
        parameters=tuple(
            Parameter(join(path, name), shape, name not in unused)
            for name, shape in node.own_parameters(width)
        ),
        buffers=tuple(join(path, name) for name in node.own_buffers()),
        returns_its_input=node.returns_its_input(),
        takes=node.takes(),
    )
    for inner in node.inside(width, at):
        if isinstance(inner, Child):
            yield from _child(inner, path, depth + 1)
        else:
            yield from _brought(inner, path, at, depth + 1)


def _child(child: Child, path: str, depth: int) -> Iterator[Place]:
    yield from _walk(child.node, child.width, path=join(path, child.name), at=child.at, depth=depth)


def _brought(inner: Brought, path: str, at: str, depth: int) -> Iterator[Place]:
    here = join(path, inner.name)
    at = inner.child.at if inner.child is not None else at
    yield Place(
        path=here,
        kind=inner.kind,
        node=None,
        width_in=inner.width_in,
        width_out=inner.width_out,
        depth=depth,
        json_path=at,
        parameters=tuple(
            Parameter(join(here, name), shape, inner.used and name not in inner.unused)
            for name, shape in inner.parameters
        ),
        callable_alone=inner.callable_alone,
        buffers=tuple(join(here, name) for name in inner.buffers),
        alone=inner.alone,
        returns_its_input=inner.returns_its_input,
        by_method=inner.by_method,
        takes=inner.takes,
        base=inner.base,
    )
    if inner.child is not None:
        # The depth of nodes counts, not that of what they bring along.
        yield from _child(inner.child, here, depth)
