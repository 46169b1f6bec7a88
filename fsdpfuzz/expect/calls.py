"""How forwards call units: how often, in which order, and which of them a backward reaches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fsdpfuzz.case import Anatomy, Called, Forward, Situation, recomputed_around, within
from fsdpfuzz.case.flow import MAX_CALLS, requires
from fsdpfuzz.case.modules.side_output import beside
from fsdpfuzz.expect.reshards import trained_units


@dataclass(slots=True)
class UnitCalls:
    """The calls of one unit from one backward to the next."""

    times: int = 0
    recorded: int = 0
    """Those that record gradients."""
    reached: int = 0
    """Those whose output requires grad, so that backward comes by."""


@dataclass(slots=True)
class Pass:
    """What one forward calls, or several that wait for one backward."""

    units: dict[str, UnitCalls] = field(default_factory=dict)
    """Only units that manage parameters."""
    begun: list[str] = field(default_factory=list)
    """The units as their forwards begin."""
    ended: list[str] = field(default_factory=list)
    """The units as their forwards end."""
    trained: dict[str, set[str]] = field(default_factory=dict)
    """For each unit the parameters, by their source's name, that get a gradient."""
    entered: set[str] = field(default_factory=set)
    """The units that were given an input that requires grad."""
    bare: set[str] = field(default_factory=set)
    """Roots of fsdp2 that manage nothing and whose output requires grad: backward ends there."""
    apart: set[str] = field(default_factory=set)
    """Units of which one forward gives others a gradient than the next one."""

    def add(self, other: Pass) -> None:
        """Takes a later forward in."""
        for path, calls in other.units.items():
            mine = self.units.setdefault(path, UnitCalls())
            mine.times += calls.times
            mine.recorded += calls.recorded
            mine.reached += calls.reached
        self.bare |= other.bare
        self.entered |= other.entered
        self.begun += other.begun
        self.ended += other.ended
        for path, names in other.trained.items():
            if self.trained.get(path, names) != names:
                self.apart.add(path)
            self.trained.setdefault(path, set()).update(names)


def calls_of(a: Anatomy, op: Forward, now: Situation) -> Pass | None:
    """What a forward calls under the plan of ``a``; None where that is too much to follow."""
    calls = list(a.calls(op, now))
    if len(calls) == MAX_CALLS:
        return None
    made = Pass()
    outputs = _outputs(a, now, calls)
    open_: list[str] = []
    left: dict[str, int] = {}
    """Of each unit whose forward has begun how many of its modules are still to be called."""
    for call, (inside, grad) in zip(calls, outputs, strict=True):
        # A call that lies in none of those that are open tells that they have ended.
        while open_ and not (within(call.path, open_[-1]) and call.path != open_[-1]):
            _end(a, open_.pop(), left, made)
        path = a.unit_at.get(call.path)
        if path is None or not a.managed.get(path):
            if path in a.roots and not a.fsdp1 and call.grad and (grad or inside):
                made.bare.add(path)
            continue
        open_.append(call.path)
        unit = made.units.setdefault(path, UnitCalls())
        # Of several modules in one unit FSDP2 acts before the first and after the last.
        if not left.get(path):
            left[path] = len(a.modules_of(path))
            made.begun.append(path)
            if call.grad and call.input_grad:
                made.entered.add(path)
            unit.times += 1
            unit.recorded += call.grad
        if left[path] == 1:
            # Backward comes by the output of the last module.
            unit.reached += call.grad and (grad or inside)
    while open_:
        _end(a, open_.pop(), left, made)
    for path, name in _with_gradient(a, now, calls):
        made.trained.setdefault(path, set()).add(name)
    return made


def called_again(a: Anatomy, path: str, calls: UnitCalls) -> int:
    """How often recomputation calls a unit, at most, beside what is in its own backward."""
    around = recomputed_around(a, path)
    if not around:
        return 0
    alone = len(around) == 1 and around[0].path == path and not around[0].reentrant
    # A recomputation that lies in another one is run by that one again.
    return 0 if alone and calls.times == 1 else calls.times * (2 ** len(around) - 1)


def _end(a: Anatomy, module: str, left: dict[str, int], made: Pass) -> None:
    """The end of a module's forward, and maybe of its unit's."""
    path = a.unit_at[module]
    left[path] -= 1
    if not left[path]:
        made.ended.append(path)


def _outputs(a: Anatomy, now: Situation, calls: Sequence[Called]) -> Iterator[tuple[bool, bool]]:
    """For each call whether anything computed in it, and whether its input, requires grad."""
    requires_grad = requires(a, now)
    own = {
        place.path: any(p.used and requires_grad(p.fqn) for p in place.parameters)
        for place in a.places
    }
    past = beside(a)
    for i, call in enumerate(calls):
        inside = call.grad and own[call.path]
        for later in calls[i + 1 :]:
            if inside or later.path == call.path or not within(later.path, call.path):
                break
            inside = later.grad and own[later.path] and later.path not in past
        yield inside, call.input_grad


def _with_gradient(
    a: Anatomy, now: Situation, calls: Sequence[Called]
) -> Iterator[tuple[str, str]]:
    """The parameters that backward gives gradients, with their units.

    Of a unit of fsdp1, which has one flat parameter, all or none.
    """
    units = trained_units(a, now) if a.fsdp1 else {}
    for path in {call.path for call in calls if call.grad}:
        for parameter in a.by_path[path].parameters:
            owner = a.owners[parameter.fqn]
            if owner is None or not parameter.used:
                continue
            if units[owner] if a.fsdp1 else now.trained[parameter.fqn]:
                yield owner, a.canonical(parameter.fqn)
