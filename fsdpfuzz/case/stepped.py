"""What steps find and leave: gradients of parameters, and an optimizer's states of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from fsdpfuzz.case.paths import within
from fsdpfuzz.case.units.use_orig_params import held_on, is_flat

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.flow import Situation
    from fsdpfuzz.case.operations import Op
    from fsdpfuzz.case.operations.base import OperationBase


# Weight decay tells a parameter without a gradient from one whose gradient is zero, and FSDP may
# give either for what is not used: a flat parameter has one gradient for all its parts.
@lru_cache(maxsize=64)
def lacks_gradients(a: Anatomy) -> tuple[str, ...]:
    """Parameters that a step may find trained and without a gradient of their own."""
    found: set[str] = set()
    sometimes = {
        p.fqn for p in a.distinct if not p.used or any(within(p.fqn, path) for path in a.optional)
    }
    for _, op, now, graded in surely_graded(a):
        if op.steps_optimizer:
            trained = {p.fqn for p in a.distinct if now.requires_grad(p.fqn)}
            found |= trained - (graded - sometimes)
    return tuple(sorted(found.difference(a.case.held_out)))


def has_state_after(a: Anatomy) -> int:
    """The operation after which the optimizer has state; past the last one if it never has any."""
    trained = False
    for i, op, now in a.situations(0):
        trained |= op.waits and any(p.used and now.trained[p.fqn] for p in a.parameters)
        if _keeps_state(a) and trained and op.steps_optimizer:
            return i
    return len(a.case.program)


def has_scalar_state(a: Anatomy, op: int) -> bool:
    """Whether the optimizer has state before ``op``, none of it of more than 0-dim parameters."""
    state_from, stepped = has_state_after(a), set[str]()
    for i, each, now in a.situations(0):
        if state_from <= i < op and each.steps_optimizer:
            stepped |= {n for n in now.graded.difference(a.case.held_out) if a.by_fqn[n].used}
    return bool(stepped) and not any(a.by_fqn[name].shape for name in stepped)


def _keeps_state(a: Anatomy) -> bool:
    optimizer = a.case.optimizer
    return optimizer is not None and optimizer.keeps_state


@lru_cache(maxsize=64)
def unstepped(a: Anatomy) -> Mapping[str, Literal["on", "elsewhere"]]:
    """Parameters without state as the optimizer's is taken.

    Those of fsdp1's units with ``use_orig_params``. ``on``: it has a state of another one of their
    unit. ``elsewhere``: another rank makes theirs, and one that has elements of them does not.
    """
    stepped: set[str] = set()
    found: dict[str, Literal["on", "elsewhere"]] = {}
    state_from = has_state_after(a)
    for i, op, now in a.situations(0):
        # Momentum is made at the first step with a gradient, not with the optimizer. No rank gives
        # a parameter one of which it has no element.
        before = a.at(i - 1)
        graded = now.graded - _of_unread_units(before, now)
        if op.steps_optimizer and i >= state_from:
            stepped |= {n for n in graded.difference(a.case.held_out) if a.by_fqn[n].numel}
        if not stepped or not (op.saves_optimizer or op.names_state()):
            continue
        settled = _settled(before, stepped | graded)
        made = op.names_state() and len(settled) < a.case.world_size
        for owner, parameters in before.managed.items():
            names = {p.fqn for p in parameters if now.trained[p.fqn]}.difference(a.case.held_out)
            if owner is None or is_flat(before, owner):
                continue
            for name in names - stepped:
                if made and any(held.get(name) for held in settled):
                    found.setdefault(name, "elsewhere")
                elif not made and names & stepped:
                    found.setdefault(name, "on")
        if made:
            stepped.update(now.trained)
    return found


def _of_unread_units(a: Anatomy, now: Situation) -> frozenset[str]:
    """Parameters that require grad in units of which no forward reads one that does."""
    found: set[str] = set()
    for owner, parameters in a.managed.items():
        trained = {p.fqn: p.used for p in parameters if now.trained[p.fqn]}
        if owner is not None and not any(trained.values()):
            found.update(trained)
    return frozenset(found)


@lru_cache(maxsize=64)
def stateless(a: Anatomy) -> frozenset[str]:
    """Parameters that may have no state though they require grad, while it is taken flattened."""
    taken = [left for op, _, left in _without_state(a) if op.flattens_state]
    return frozenset[str]().union(*taken)


@lru_cache(maxsize=64)
def lacking_state(a: Anatomy) -> frozenset[str]:
    """Parameters that may have no state though they require grad, however it is taken."""
    return frozenset[str]().union(*(left for _, _, left in _without_state(a)))


# ``_flatten_optim_state_dict`` in fsdp/_optim_utils.py leaves out the empty state of a unit's.
@lru_cache(maxsize=64)
def emptied(a: Anatomy) -> frozenset[str]:
    """Parameters that may be the only ones with a state, an empty one, as states are taken again.

    No unit of fsdp1 manages them, and a flattened state dict without their state was loaded.
    """
    found: set[str] = set()
    given: set[str] = set()
    for op, _, left in _without_state(a) if a.fsdp1 else ():
        if op.flattens_state:
            given |= left.intersection(a.unmanaged)
        else:
            found |= given
    return frozenset(found)


@lru_cache(maxsize=64)
def made_states(a: Anatomy) -> frozenset[str]:
    """Parameters of which ``torch.distributed.checkpoint`` may make the state: no step was taken.

    Where an optimizer has none as it is saved; and in a new one, where fsdp2 puts a full state
    into what that has, so that what was not saved stays.
    """
    found: set[str] = set()
    for op, made, left in _without_state(a):
        found |= made
        if not a.fsdp1 and op.fills_new:
            found |= left
    return frozenset(found)


def _without_state(a: Anatomy) -> Iterator[tuple[OperationBase, frozenset[str], frozenset[str]]]:
    """Operations by which ``torch.distributed.checkpoint`` saves an optimizer's state.

    With the parameters that require grad and had none, of which it makes one on some rank, and
    those that may have none on some rank as it is saved.
    """
    stepped: set[str] = set()
    left: set[str] = set()
    for i, op, now, graded in surely_graded(a):
        if op.steps_optimizer and _keeps_state(a):
            stepped |= graded
        if op.names_state():
            asked = {p.fqn for p in a.distinct if now.requires_grad(p.fqn)}
            asked = asked.difference(a.case.held_out)
            lacking = asked - stepped
            before = a.at(i - 1)
            settled = len(_settled(before, stepped | left))
            if not _keeps_state(a) or settled == a.case.world_size:
                yield op, frozenset(), frozenset(lacking)
            else:
                # Nobody hands on the state of what no unit manages.
                own = lacking.intersection(p.fqn for p in before.managed.get(None, ()))
                yield op, frozenset(lacking), frozenset(own if settled else ())
                stepped |= asked
        left = now.graded.difference(a.case.held_out)


def surely_graded(a: Anatomy) -> Iterator[tuple[int, Op, Situation, set[str]]]:
    """Each operation, and the parameters that have a gradient by then on every rank."""
    graded: set[str] = set()
    targets: list[str] = []
    for i, op, now in a.situations(0):
        if op.waits:
            targets.append(op.called)
        elif op.gives_gradients:
            graded |= _given(a.at(i), now, targets)
            targets.clear()
        graded &= now.graded
        yield i, op, now, graded


# Surely: what a switch calls depends on the rank, and a reentrant checkpoint may cut it off.
def _given(a: Anatomy, now: Situation, targets: Sequence[str]) -> set[str]:
    """The parameters that a backward of forwards of some modules surely gives a gradient.

    Of a unit of fsdp1 all or none: its flat parameter has one.
    """
    given = {
        p.fqn
        for p in a.distinct
        if p.used and now.trained[p.fqn] and not any(within(p.fqn, path) for path in a.cut_off)
        if any(within(p.fqn, path) for path in targets)
        if not any(within(p.fqn, path) for path in a.switches)
        if not a.numbered or p.fqn in now.given
    }
    for owner, parameters in a.managed.items():
        if a.fsdp1 and owner is not None and any(p.fqn in given for p in parameters):
            given.update(p.fqn for p in parameters if now.trained[p.fqn])
    return given


# ``_init_optim_state`` in checkpoint/state_dict.py asks each rank's own optimizer, so with
# use_orig_params a rank without elements of these may do it though no other does.
def _settled(a: Anatomy, of: Collection[str]) -> list[dict[str, int]]:
    """What the ranks hold on which ``torch.distributed.checkpoint`` makes no states.

    Their elements of each parameter. It makes states of all parameters where the optimizer has
    none yet, and where there are no gradients, which are left of the parameters ``of``.
    """
    ranks = [held_on(a, rank) for rank in range(a.case.world_size)]
    return [held for held in ranks if any(held.get(name) for name in of)]
