"""Original parameters behind ``no_sync``: frozen there, or the first gradient among others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.flow import read_by
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.hazards.unit_calls import calls_for_backward

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.flow import Situation


class FrozenInNoSyncDimension(Hazard):
    """Gradients of original parameters, which a flat gradient keeps or loses."""

    name = "frozen_in_no_sync"
    parameter_features: ClassVar[Mapping[str, Feature]] = {
        "frozen_in_no_sync": Feature(
            about="on when a forward and backward behind no_sync find a parameter frozen beside a "
            "trained one of its unit, and the backward that reduces them finds it unfrozen (fsdp1 "
            "with use_orig_params only)",
            group="Training",
            # Of few cases, which are known to fail: no pair is waited for.
            values=("off",),
            open=True,
            apis=("fsdp1",),
        ),
        "lacked_in_no_sync": Feature(
            about="on when a backward behind no_sync, which one that reduces follows, gives a "
            "parameter its first gradient while another of its unit has one (fsdp1 with "
            "use_orig_params only)",
            group="Training",
            values=("off",),
            open=True,
            apis=("fsdp1",),
        ),
    }

    def parameter_values(self, a: Anatomy, fqn: str) -> Iterator[tuple[str, str]]:
        """Of one parameter."""
        if a.fsdp1:
            yield "frozen_in_no_sync", on(a.canonical(fqn) in _frozen_in_no_sync(a))
            yield "lacked_in_no_sync", on(a.canonical(fqn) in _lacked_in_no_sync(a))


# The unsharded gradient of a flat parameter has one for each of its parts, frozen ones included
# (``_use_unsharded_views`` in fsdp/_flat_param.py splits it with grad), and behind ``no_sync`` it
# stays as it is until it is reduced. A sharded one is set to zero where a part has none
# (``_writeback_orig_params``).
@lru_cache(maxsize=64)
def _frozen_in_no_sync(a: Anatomy) -> frozenset[str]:
    found: set[str] = set()
    for rank in a.telling_ranks if a.fsdp1 else ():
        read: set[str] = set()
        kept: set[str] = set()
        sync = True
        for i, op, now in a.situations(rank):
            b = a.at(i)
            if op.renews or op.clears_gradients:
                kept.clear()
            elif op.waits:
                sync = op.reduces
                called = {call.path for call in calls_for_backward(b, op, now)}
                read |= _frozen_parts(b, now) & read_by(b, called, op.called)
            elif op.gives_gradients:
                kept |= read
                read.clear()
                if sync:
                    found.update(name for name in kept if now.trained[name])
                    kept.clear()
    return frozenset(found)


# Before each forward ``_writeback_orig_params`` makes the flat gradient zero where one shows none.
@lru_cache(maxsize=64)
def _lacked_in_no_sync(a: Anatomy) -> frozenset[str]:
    found: set[str] = set()
    for rank in a.telling_ranks if a.fsdp1 else ():
        lost: set[str] = set()
        for i, op, now in a.situations(rank):
            if op.renews or op.clears_gradients:
                lost.clear()
            elif op.waits and op.reduces:
                found |= lost
            elif op.waits:
                b = a.at(i)
                read = read_by(b, {call.path for call in calls_for_backward(b, op, now)}, op.called)
                lost |= {name for name in _beside(b, now) & read if now.trained[name]}
    return frozenset(found)


def _beside(a: Anatomy, now: Situation) -> set[str]:
    """Original parameters without a gradient, beside one with a gradient in a flat parameter."""
    found: set[str] = set()
    for owner, parameters in a.managed.items():
        names = {p.fqn for p in parameters}
        if owner is not None and not a.options[owner].flat and names & now.graded:
            found |= names - now.graded
    return found


def _frozen_parts(a: Anatomy, now: Situation) -> set[str]:
    """Frozen original parameters that lie beside a trained one in a flat parameter."""
    parts: set[str] = set()
    for owner, parameters in a.managed.items():
        if owner is not None and not a.options[owner].flat:
            frozen = {a.canonical(p.fqn) for p in parameters if not now.trained[p.fqn]}
            parts |= frozen if len(frozen) < len(parameters) else set()
    return parts
