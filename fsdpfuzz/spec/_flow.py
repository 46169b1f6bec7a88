"""What a training program calls, and with what: a walk over the case without importing torch."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field

from fsdpfuzz.spec._case import CaseSpec
from fsdpfuzz.spec._model import (
    Branches,
    Idle,
    Lora,
    Matrix,
    Node,
    Repeat,
    Residual,
    Sequential,
    Switch,
    Transformer,
)
from fsdpfuzz.spec._plan import Fsdp1Unit
from fsdpfuzz.spec._program import Dense, Flip, Forward, Mode, Op, RequiresGrad
from fsdpfuzz.spec._tree import Place, case_places, join
from fsdpfuzz.spec._units import frozen_names, owners_among, unit_of

MAX_CALLS = 20_000
"""Calls of a forward that are followed; nested repetition can ask for any number."""


@dataclass(frozen=True, slots=True)
class Call:
    """One module called once during a forward."""

    path: str
    grad: bool
    """Whether gradients are recorded."""
    input_grad: bool
    """Whether its input requires grad."""
    asked: bool
    """Whether the caller looks for a checkpoint of kind ``function`` on it."""


@dataclass(slots=True)
class Situation:
    """Where one rank stands in the program. It changes as the program goes on."""

    training: bool = True
    active: dict[str, int] = field(default_factory=dict)
    """The active child of each switch that was flipped."""
    trained: dict[str, bool] = field(default_factory=dict)
    """``requires_grad`` of each parameter by FQN."""
    flat: dict[str, bool] = field(default_factory=dict)
    """``requires_grad`` of each flat parameter (fsdp1 without ``use_orig_params``) by unit."""
    owners: dict[str, str | None] = field(default_factory=dict)
    tied: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The targets of the ties of each source."""

    def require(self, names: Iterable[str], value: bool) -> None:
        """Freezes or unfreezes parameters; a flat parameter follows any of its parts."""
        sources = list(names)
        for name in (*sources, *(target for s in sources for target in self.tied.get(s, ()))):
            self.trained[name] = value
            owner = self.owners[name]
            if owner in self.flat:
                self.flat[owner] = value


def situations(case: CaseSpec, rank: int) -> Iterator[tuple[int, Op, Situation]]:
    """Each operation with its index and the situation in which ``rank`` runs it."""
    found = case_places(case)
    now = Situation(owners=owners_among(found, case.plan))
    for tie in case.ties:
        now.tied[tie.source] = (*now.tied.get(tie.source, ()), tie.target)
    children = {p.path: len(p.node.children) for p in found if isinstance(p.node, Switch)}
    frozen = frozen_names(case)
    now.trained = {fqn: fqn not in frozen for fqn in now.owners}
    for fqn, owner in now.owners.items():
        if owner is None:
            continue
        unit = unit_of(case.plan, owner)
        if isinstance(unit, Fsdp1Unit) and not unit.use_orig_params:
            now.flat[owner] = now.flat.get(owner, False) or now.trained[fqn]
    for i, op in enumerate(case.program):
        if isinstance(op, Mode):
            now.training = op.train
        elif isinstance(op, RequiresGrad):
            now.require(op.parameters, op.value)
        elif isinstance(op, Flip) and rank in op.ranks:
            old = now.active.get(op.path, 0)
            new = (old + 1) % children[op.path]
            now.active[op.path] = new
            for child, value in ((old, False), (new, True)):
                prefix = join(op.path, "branches", str(child)) + "."
                now.require([n for n in now.trained if n.startswith(prefix)], value)
        yield i, op, now


def calls(case: CaseSpec, op: Forward, now: Situation) -> Iterator[Call]:
    """The modules that ``op`` calls, in order, parents before children; at most `MAX_CALLS`."""
    found = {place.path: place for place in case_places(case)}
    place = found[op.target]
    if place.node is None:
        return
    walk = _Walk(found, now.active, _requires(case, now))
    x = isinstance(case.inputs, Dense) and case.inputs.requires_grad
    steps = walk.visit(place.node, op.target, x, grad=op.grad)
    for _ in range(MAX_CALLS):
        step = next(steps, None)
        if step is None:
            return
        yield step


def _requires(case: CaseSpec, now: Situation) -> Callable[[str], bool]:
    """Whether what a module computes with this parameter requires grad.

    The parameters that a unit of fsdp1 shows are views of its flat parameter, so a frozen
    one beside a trained one gives outputs that require grad.
    """
    if case.api != "fsdp1":
        return lambda fqn: now.trained[fqn]
    together = dict(now.flat)
    for fqn, owner in now.owners.items():
        if owner is not None and owner not in now.flat:
            together[owner] = together.get(owner, False) or now.trained[fqn]

    def requires(fqn: str) -> bool:
        owner = now.owners[fqn]
        return now.trained[fqn] if owner is None else together[owner]

    return requires


Visit = Generator[Call, None, bool]
"""Yields calls and returns whether the output requires grad."""


@dataclass(frozen=True, slots=True)
class _Walk:
    found: dict[str, Place]
    active: dict[str, int]
    requires: Callable[[str], bool]

    def visit(self, node: Node, path: str, x: bool, *, grad: bool, asked: bool = True) -> Visit:
        yield Call(path, grad, x, asked)
        own = grad and self._own(path)
        match node:
            case Sequential():
                for i, child in enumerate(node.children):
                    x = yield from self.visit(child, join(path, str(i)), x, grad=grad)
                return x
            case Residual():
                return x | (yield from self.visit(node.body, join(path, "body"), x, grad=grad))
            case Matrix():
                return own | (yield from self.visit(node.body, join(path, "body"), x, grad=grad))
            case Repeat():
                return (yield from self._repeat(node, path, x, grad=grad))
            case Branches():
                return (yield from self._branches(node, path, x, grad=grad))
            case Switch():
                chosen = self.active.get(path, 0)
                inner = join(path, "branches", str(chosen))
                return (yield from self.visit(node.children[chosen], inner, x, grad=grad))
            case Lora():
                base = yield from self._plain(path, ("base",), x, grad=grad)
                return base | (yield from self._plain(path, ("down", "up"), x, grad=grad))
            case Transformer():
                names = self._names_below(path)
                return own | (yield from self._plain(path, names, own, grad=grad, ours=False))
            case Idle():
                return x
            case _:
                return x or own

    def _names_below(self, path: str) -> list[str]:
        start = f"{path}." if path else ""
        return [p.removeprefix(start) for p in self.found if p != path and p.startswith(start)]

    def _own(self, path: str) -> bool:
        place = self.found[path]
        return any(p.used and self.requires(p.fqn) for p in place.parameters)

    def _repeat(self, node: Repeat, path: str, x: bool, *, grad: bool) -> Visit:
        body = join(path, "body")
        for _ in range(node.times):
            x = yield from self.visit(node.body, body, x, grad=grad)
            if node.no_grad == "body":
                yield from self.visit(node.body, body, x, grad=False, asked=False)
            elif node.no_grad == "first_child" and isinstance(node.body, Sequential):
                first = node.body.children[0]
                yield from self.visit(first, join(body, "0"), x, grad=False, asked=False)
        return x

    def _branches(self, node: Branches, path: str, x: bool, *, grad: bool) -> Visit:
        out = node.side and node.merge == "stack" and x
        for i, child in enumerate(node.children):
            inner = join(path, "branches", str(i))
            if node.side:
                yield Call(inner, grad, x, asked=True)
                inner = join(inner, "inner")
            out |= yield from self.visit(child, inner, x, grad=grad)
        return out

    def _plain(
        self, path: str, names: Iterable[str], x: bool, *, grad: bool, ours: bool = True
    ) -> Visit:
        """Modules without a node of their own, one after the other."""
        for name in names:
            inner = join(path, name)
            yield Call(inner, grad, x, asked=ours)
            x = x or (grad and self._own(inner))
        return x
