"""Where a rank stands in the program: modes, switches, what is trained."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdpfuzz.case.paths import within

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.operations import Op

MAX_CALLS = 20_000
"""Calls of a forward that are followed; nested repetition can ask for any number."""


@dataclass(slots=True)
class Situation:
    """Where one rank stands in the program. It changes as the program goes on."""

    training: bool = True
    forwards: int = -1
    """The number of the latest forward."""
    active: dict[str, int] = field(default_factory=dict)
    """The active child of each switch that was flipped."""
    trained: dict[str, bool] = field(default_factory=dict)
    """``requires_grad`` of each parameter by FQN."""
    flat: dict[str, bool] = field(default_factory=dict)
    """``requires_grad`` of each flat parameter (fsdp1 without ``use_orig_params``) by unit."""
    owners: dict[str, str | None] = field(default_factory=dict)
    tied: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The targets of the ties of each source."""
    graded: set[str] = field(default_factory=set)
    """The parameters, by their source's name, that a backward may have given a gradient."""
    read: set[str] = field(default_factory=set)
    """Those that the forwards read which wait for a backward, where they may leave some out."""
    given: frozenset[str] = frozenset()
    """Those that the latest backward may have given a gradient."""
    zeros: frozenset[str] = frozenset()
    """Beside them those to which it gave zeros, because a frozen part of their unit was read."""

    def wrapped(self, a: Anatomy) -> None:
        """Who manages what, now that the model is wrapped as the case says."""
        self.owners = a.owners
        self.flat = {}
        for fqn, owner in a.owners.items():
            unit = None if owner is None else a.options[owner]
            if owner is not None and unit is not None and unit.flat:
                self.flat[owner] = self.flat.get(owner, False) or self.trained[fqn]

    # A part of a flat parameter has no ``requires_grad`` of its own: what is asked of it is set on
    # the flat parameter (`Lowering.held_in`).
    def require(self, names: Iterable[str], value: bool) -> None:
        """Freezes or unfreezes parameters; a flat parameter follows any of its parts."""
        sources = list(names)
        for name in (*sources, *(target for s in sources for target in self.tied.get(s, ()))):
            self.trained[name] = value
            owner = self.owners[name]
            if owner in self.flat:
                self.flat[owner] = value

    def changed(self, frozen: Collection[str]) -> Iterator[tuple[bool, list[str]]]:
        """What the program has unfrozen so far, then what it has frozen, of ``frozen`` at first."""
        for value in (True, False):
            names = [n for n, on in self.trained.items() if on is value]
            yield value, [n for n in names if (n in frozen) is value]

    def requires_grad(self, fqn: str) -> bool:
        """Whether the optimizer's parameter does that ``fqn`` is or, if it is flat, is part of."""
        owner = self.owners[fqn]
        return self.trained[fqn] if owner is None else self.flat.get(owner, self.trained[fqn])


def start(a: Anatomy) -> Situation:
    """The situation of all ranks before the program."""
    now = Situation()
    for tie in a.case.ties:
        now.tied[tie.source] = (*now.tied.get(tie.source, ()), tie.target)
    now.trained = {fqn: fqn not in a.frozen for fqn in a.owners}
    # Once it is known what is trained: a flat parameter is made with its parts' ``requires_grad``.
    now.wrapped(a)
    return now


def situations(a: Anatomy, rank: int) -> Iterator[tuple[int, Op, Situation]]:
    """Each operation with its index and the situation in which ``rank`` runs it."""
    now = start(a)
    for i, op in enumerate(a.case.program):
        op.moves(now, a, rank)
        yield i, op, now


# ``FlatParamHandle._use_unsharded_views`` in fsdp/_flat_param.py splits the flat parameter, with
# grad if any part of it is trained; under use_orig_params as well.
def requires(a: Anatomy, now: Situation) -> Callable[[str], bool]:
    """Whether what a module computes with a parameter requires grad.

    The parameters that a unit of fsdp1 shows are views of its flat parameter, so a frozen
    one beside a trained one gives outputs that require grad.
    """
    if not a.fsdp1:
        return now.trained.__getitem__
    together = dict(now.flat)
    for fqn, owner in now.owners.items():
        if owner is not None and owner not in now.flat:
            together[owner] = together.get(owner, False) or now.trained[fqn]

    def requires_grad(fqn: str) -> bool:
        owner = now.owners[fqn]
        return now.trained[fqn] if owner is None else together[owner]

    return requires_grad


def read_by(a: Anatomy, called: Collection[str], inside: str = "") -> set[str]:
    """The parameters, a tied one by its source, that a forward which calls these modules reads.

    By names of them that lie ``inside`` a module: a tied one may be read under one name alone.
    """
    return {
        a.canonical(p.fqn)
        for p in a.parameters
        if p.used and within(p.fqn, inside) and a.on_path(p.fqn, called)
    }
