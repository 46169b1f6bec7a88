"""Units that forwards call, and the next backward passes over."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from fsdpfuzz.case.flow import read_by
from fsdpfuzz.case.hazards.unit_calls import calls_for_backward
from fsdpfuzz.case.units.cpu_offload import lies_on_cpu
from fsdpfuzz.case.units.sharding import is_whole
from fsdpfuzz.case.units.use_orig_params import is_flat

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.flow import Situation


# ``prepare_gradient_for_backward`` in fsdp/_flat_param.py puts the gradient of a sharded unit
# aside, and ``prepare_gradient_for_optim`` puts it back only where a new one was added.
@lru_cache(maxsize=64)
def quiet_with_gradient(a: Anatomy) -> frozenset[str]:
    """Units that have gradients as a forward reads no parameter of them that is trained.

    And those that are not sharded, where forwards called them and the next backward passes over
    them.
    """
    left = {unit.path for unit in _passed_over(a) if unit.graded and unit.whole}
    for i, op, now in a.situations(0) if a.numbered else ():
        b = a.at(i)
        called = {call.path for call in calls_for_backward(b, op, now)}
        quiet = called.intersection(b.units).difference(_reading(b, called, now))
        left |= {path for path in quiet if _trained(b, path, now) & now.graded}
    return frozenset(left)


# ``_post_backward_hook`` in fsdp/_runtime_utils.py, which puts the original parameters back.
@lru_cache(maxsize=64)
def quiet_and_used_later(a: Anatomy) -> frozenset[str]:
    """Units that a backward passes over, and of which a later forward reads what is trained."""
    return frozenset(unit.path for unit in _passed_over(a) if unit.later)


# ``prepare_gradient_for_optim`` in fsdp/_flat_param.py asks of a unit on the GPU whether this
# backward gave it a gradient, and of one on the CPU only whether it has memory for one. Original
# parameters are shown that memory when their unit is sharded again.
@lru_cache(maxsize=64)
def handed_again(a: Anatomy) -> frozenset[str]:
    """Offloaded units of fsdp1 that are trained, and get no gradient of a backward that reduces.

    With ``use_orig_params`` those alone that a forward called before it.
    """
    found: set[str] = set()
    for rank in a.telling_ranks if any(map(lies_on_cpu, a.options.values())) else ():
        called: set[str] = set()
        read: set[str] = set()
        graded: set[str] = set()
        synchronised = True
        for i, op, now in a.situations(rank):
            b = a.at(i)
            calls = {call.path for call in calls_for_backward(b, op, now)}
            called |= calls
            if op.waits:
                synchronised = op.reduces
                read |= read_by(b, calls, op.called)
            elif op.gives_gradients:
                graded |= read
                if synchronised and b.fsdp1:
                    found.update(_offloaded_without(b, graded, called, now))
                called, read = set(), set()
            graded &= now.graded
    return frozenset(found)


def _offloaded_without(
    a: Anatomy, graded: set[str], called: set[str], now: Situation
) -> Iterator[str]:
    """Offloaded units that are trained and have no gradient."""
    for path, owned in a.owned.items():
        trained = {p.fqn for p in owned if now.trained[p.fqn]}
        handed = lies_on_cpu(a.options[path]) and (path in called or is_flat(a, path))
        if handed and trained and graded.isdisjoint(trained):
            yield path


class _PassedOver(NamedTuple):
    """A unit that forwards with grad called, to which no backward came by the end of the next."""

    path: str
    graded: bool
    """Whether it had gradients by then."""
    whole: bool
    """Whether it is not sharded (fsdp1)."""
    later: bool = False
    """Whether a forward then reads what is trained."""


# A forward that is given up leaves the views of its own as one that reads nothing does.
@lru_cache(maxsize=64)
def _passed_over(a: Anatomy) -> frozenset[_PassedOver]:
    found: set[_PassedOver] = set()
    called: set[str] = set()
    waiting: set[str] = set()
    passed: dict[str, _PassedOver] = {}
    for i, op, now in a.situations(0) if a.numbered else ():
        b = a.at(i)
        if op.renews:
            called, waiting, passed = set(), set(), {}
        elif op.gives_gradients:
            for path in called - waiting:
                graded = bool(_trained(b, path, now) & now.graded)
                # Under the plan of that backward: a program may wrap its model anew.
                passed[path] = _PassedOver(path, graded, is_whole(b, path))
                found.add(passed[path])
            called, waiting = set(), set()
        modules = {call.path for call in calls_for_backward(b, op, now)}
        reading = set(_reading(b, modules, now))
        found |= {passed[path]._replace(later=True) for path in reading & passed.keys()}
        called |= modules & set(b.units)
        waiting |= reading if op.waits else set()
    return frozenset(found)


def _reading(a: Anatomy, called: set[str], now: Situation) -> Iterator[str]:
    """The units, of those ``called``, of which the forward reads a parameter that is trained."""
    read = read_by(a, called)
    for path in called.intersection(a.units):
        if read & _trained(a, path, now):
            yield path


def _trained(a: Anatomy, path: str, now: Situation) -> set[str]:
    """The parameters of a unit that are trained, and read by some forward."""
    return {p.fqn for p in a.owned[path] if p.used and now.trained[p.fqn]}
