"""Freezing and unfreezing on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import ParameterName
from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.modules.side_output import beside
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.operations.base import OperationBase, Progress
from fsdpfuzz.case.operations.clear_grad import check_flat_together, in_part
from fsdpfuzz.case.operations.forward import Forward
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.recipe import Statement

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.flow import Situation
    from fsdpfuzz.case.lowering import Lowering
    from fsdpfuzz.case.operations import Op

MAX_NAMES = 6


class RequiresGrad(OperationBase, tag="requires_grad", frozen=True, kw_only=True):
    """Freezes or unfreezes the named parameters between iterations."""

    features: ClassVar[Mapping[str, Feature]] = {
        "refrozen": Feature(
            about="no, yes (requires_grad changes during the program), after lone forward (and at "
            "that time a forward lies back that no backward followed)",
            group="Training",
            values=("no", "yes", "after lone forward"),
        )
    }
    changes_trained: ClassVar[bool] = True

    parameters: tuple[ParameterName, ...]
    value: bool

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """Names of parameters; FSDP cannot freeze a part of a flat one."""
        check_names(self.parameters, a.by_fqn, f"{at}.parameters", "parameter")
        check_flat_together(a, self.parameters, f"{at}.parameters")

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """On the tensors that the model showed when it was wrapped."""
        yield from lowering.require_grad(self.parameters, self.value)

    def words(self) -> str:
        """``freeze 0.weight``."""
        more = len(self.parameters) - MAX_NAMES
        shown = ", ".join(self.parameters[:MAX_NAMES])
        names = f"{shown} and {more} more" if more > 0 else shown
        return f"{'unfreeze' if self.value else 'freeze'} {names}"

    def moves(self, now: Situation, a: Anatomy, rank: int) -> None:
        """What is trained from here on."""
        now.require(self.parameters, self.value)

    @classmethod
    def values(cls, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Whether and when it changes."""
        changes = any(op.changes_trained for op in a.case.program)
        lone = changes and changes_after_lone_forward(a)
        yield "refrozen", ("after lone forward" if lone else "yes") if changes else "no"


def changes_training(program: Iterable[object]) -> bool:
    """Whether some operation freezes or unfreezes parameters by name."""
    return any(isinstance(op, RequiresGrad) for op in program)


def freezes_in_part(a: Anatomy) -> bool:
    """Whether some operation names a part of what is a flat parameter by then."""
    ops = enumerate(a.case.program)
    return any(isinstance(op, RequiresGrad) and in_part(a.at(i), op.parameters) for i, op in ops)


# fsdp1 registers hooks by what ``requires_grad`` says, and only the end of a backward takes them
# off (``_finalize_params`` in fsdp/_runtime_utils.py asserts that they fit). fsdp2's root stays
# whole, and the parameters that it shows then know nothing of a change to the sharded ones.
def changes_after_lone_forward(a: Anatomy) -> bool:
    """Whether ``requires_grad`` changes while an outermost unit has had no backward.

    What its latest forward left behind, whole parameters or hooks, belongs to the time
    before.
    """
    return bool(alone_at(a, lambda _, op: op.changes_trained))


def alone_at(a: Anatomy, kind: Callable[[int, Op], bool]) -> frozenset[str]:
    """The outermost units that had no backward since their latest forward when ``kind`` comes.

    It is asked of each operation of the program, with its index.
    """
    return frozenset().union(*(lone for i, op, _, lone in alone(a, 0) if kind(i, op)))


def alone(a: Anatomy, rank: int) -> Iterator[tuple[int, Op, Situation, frozenset[str]]]:
    """Each operation, and behind it the outermost units without a backward since a forward.

    No backward reaches a unit whose output does not require grad. What goes into the loss beside
    the output tells fsdp1's root nothing, and fsdp2's if it is a unit itself.
    """
    beside_it = [layer for layer in beside(a) if a.fsdp1 or layer not in a.unit_at]
    lone: set[str] = set()
    reached: set[str] = set()
    for i, op, now in a.situations(rank):
        if isinstance(op, Forward):
            calls = list(a.calls(op, now))
            called = {call.path for call in calls}
            with_grad = {call.path for call in calls if call.input_grad}
            trained = [
                p.fqn
                for p in a.parameters
                if p.used and now.trained[p.fqn] and a.on_path(p.fqn, called)
            ]
            lone.update(a.roots)
            if op.waits:
                reached.update(
                    root
                    for root in a.roots
                    if root in with_grad
                    or any(
                        within(name, root)
                        and not any(within(name, p) and p != root for p in beside_it)
                        for name in trained
                    )
                )
        elif op.renews:
            lone.clear()
        elif op.gives_gradients:
            lone -= reached
            reached.clear()
        yield i, op, now, frozenset(lone)


# fsdp1 drops such a gradient when it next reshards the unit (``_use_sharded_grad_views`` in
# fsdp/_flat_param.py), or puts it aside for good in backward if the parameter is flat
# (``prepare_gradient_for_backward``, which ``_finalize_params`` undoes for trained ones alone).
@lru_cache(maxsize=64)
def frozen_with_gradient(a: Anatomy) -> Mapping[str, str]:
    """The parameters that a forward finds frozen by the program, with a gradient from before.

    By the name of a tie's source: ``unfrozen`` if a later forward finds it so, else ``on``.
    """
    names = [p.fqn for p in a.distinct]
    found: dict[str, str] = {}
    for rank in a.telling_ranks:
        frozen: dict[str, str] = {}
        for _, op, now in a.situations(rank):
            if op.renews:
                frozen.clear()
            elif isinstance(op, Forward):
                for name in names:
                    if not now.trained[name] and name in now.graded:
                        frozen[name] = "on"
                    elif now.trained[name] and name in frozen:
                        frozen[name] = found[name] = "unfrozen"
                found = frozen | found
    return found


@lru_cache(maxsize=64)
def unfrozen_behind_inference(a: Anatomy) -> frozenset[str]:
    """Parameters of fsdp1's units that are told to require grad behind ``torch.inference_mode``.

    A forward under it was the last to shard their unit.
    """
    found: set[str] = set()
    mode = any(isinstance(op, Forward) and op.inference for op in a.case.program)
    for rank in a.telling_ranks if a.fsdp1 and mode else ():
        sharded: set[str] = set()
        for i, op, now in a.situations(rank):
            b = a.at(i)
            if isinstance(op, RequiresGrad) and op.value:
                names = a.canonical_names(op.parameters)
                found.update(n for n in names if b.owners[n] in sharded)
            elif op.gives_gradients:
                sharded = {u for u in sharded if not any(now.trained[p.fqn] for p in b.owned[u])}
            elif isinstance(op, Forward):
                called = {call.path for call in b.calls(op, now)} & set(b.units)
                sharded = sharded | called if op.inference else sharded - called
            elif op.renews or op.looks_whole:
                sharded.clear()
    return frozenset(found)
