"""Units that get no gradient, or only by some of their modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Feature
from fsdpfuzz.case.flow import read_by
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.hazards.passed_over import (
    handed_again,
    quiet_and_used_later,
    quiet_with_gradient,
)
from fsdpfuzz.case.hazards.unit_calls import gives_grad
from fsdpfuzz.case.lacking import ever_frozen, may_lack_backward
from fsdpfuzz.case.operations import Forward, RequiresGrad
from fsdpfuzz.case.operations.forward import reduced_again
from fsdpfuzz.case.operations.interrupt import root_calls
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.sides import reentrant_around
from fsdpfuzz.case.units.replicas import belongs_to
from fsdpfuzz.case.units.sharding import KEPT_WHOLE
from fsdpfuzz.case.units.use_orig_params import is_flat
from fsdpfuzz.case.wrap import Fsdp1Unit

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.flow import Situation


def unfrozen(a: Anatomy) -> frozenset[str]:
    """Parameters that the program begins to train."""
    told = (op for op in a.case.program if isinstance(op, RequiresGrad) and op.value)
    return frozenset(name for op in told for name in op.parameters)


# fsdp1 reshards such a unit by another hook than the rest, on its inputs
# (``_register_post_backward_reshard_only_hook`` in fsdp/_runtime_utils.py). fsdp2 settles the
# dtypes of a unit at its first forward, by what requires grad then (``_init_mp_dtypes`` in
# fsdp/_fully_shard/_fsdp_param_group.py, pytorch issue 186998): hence "for a part".
@lru_cache(maxsize=64)
def units_without_gradient(a: Anatomy) -> tuple[str, ...]:
    """Units that manage parameters, none of which gets a gradient: all frozen or unused.

    Also those that are so for a part of the program only.
    """
    frozen = ever_frozen(a)
    return tuple(
        path
        for path, owned in a.owned.items()
        if owned and all(p.fqn in frozen or not p.used for p in owned)
    )


# With inputs that require grad a hook on them reshards the unit
# (``_register_post_backward_reshard_only_hook`` again), which is done before the others.
_QUIET = ("frozen", "on", "through")
"""How a unit can be called without a gradient."""


@lru_cache(maxsize=64)
def units_called_without_gradient(a: Anatomy) -> Mapping[str, str]:
    """Units that some forward calls, and gives no gradient to any parameter that they manage.

    ``frozen`` where a forward finds all of them frozen, ``on`` where they are frozen, unused or on
    another path of a switch, ``through`` where all are frozen and gradients go through the unit to
    its inputs; ``frozen``, too, where forwards find it in several of these ways.
    """
    found: dict[str, str] = {}
    for rank in a.telling_ranks:
        for i, op, now in a.situations(rank):
            # Under the plan of that operation: a program may have wrapped its model anew.
            b = a.at(i)
            if isinstance(op, Forward) and op.grad:
                calls = list(b.calls(op, now))
                called = {call.path for call in calls}
                cut = {c.path for c in calls if not (op.waits and c.grad and c.input_grad)}
            elif op.interrupts:
                # The hook on the inputs is taken there as well, and no backward comes to it.
                called = cut = {call.path for call in root_calls(b, now)}
            else:
                continue
            read = read_by(b, called)
            for path, owned in b.owned.items():
                trained = {p.fqn for p in owned if now.trained[p.fqn]}
                if owned and path in called and not read & trained:
                    how = "on" if trained else "frozen" if path in cut else "through"
                    found[path] = how if found.get(path, how) == how else "frozen"
    return found


# ``_finalize_params`` in fsdp/_runtime_utils.py leaves all as it is where a backward does not
# synchronise, and only the post-backward hook of a unit reduces what waits.
@lru_cache(maxsize=64)
def left_unreduced(a: Anatomy) -> frozenset[str]:
    """Units with gradients that wait, none of which the backward that synchronises gives one."""
    return frozenset[str]().union(
        *(_of(now, waiting) - _of(now, given) for now, waiting, given in _reductions(a))
    )


# ``to_accumulated_grad_if_needed`` in fsdp/_fully_shard/_fsdp_param.py gives a gradient that waits
# the dtype of the reduction, and one that did not wait has that of the backward.
@lru_cache(maxsize=64)
def joined_unreduced(a: Anatomy) -> frozenset[str]:
    """Units with gradients that wait, where a backward that synchronises gives others a first."""
    return frozenset[str]().union(
        *(_of(now, given - waiting) & _of(now, waiting) for now, waiting, given in _reductions(a))
    )


def _reductions(a: Anatomy) -> Iterator[tuple[Situation, frozenset[str], frozenset[str]]]:
    """Each backward that synchronises: whose gradients wait by then, and who gets one."""
    waiting: frozenset[str] = frozenset()
    synchronised = True
    used = {p.fqn for p in a.distinct if p.used}
    for _, op, now in a.situations(0):
        if op.waits:
            synchronised = op.reduces
        elif op.renews:
            waiting = frozenset()
        elif op.gives_gradients:
            given = now.given & used
            if synchronised:
                yield now, waiting, given
            waiting = frozenset() if synchronised else waiting | given


def _of(now: Situation, names: Iterable[str]) -> set[str]:
    """The units that manage them."""
    return {owner for name in names if (owner := now.owners[name]) is not None}


def kept_whole(a: Anatomy) -> tuple[str, ...]:
    """Units that fsdp1 leaves unsharded between forward and backward."""
    return tuple(
        path
        for path, unit in a.options.items()
        if isinstance(unit, Fsdp1Unit) and unit.sharding in KEPT_WHOLE
    )


# No post-backward hook frees such a unit, and ``_catch_all_reshard`` in fsdp/_runtime_utils.py,
# which is there for that, compares data pointers: it takes a unit that shows its shard while the
# whole is still allocated for one that is resharded (pytorch issue 83956).
def kept_without_gradient(a: Anatomy) -> tuple[str, ...]:
    """Units without gradient that fsdp1 leaves unsharded between forward and backward."""
    kept = kept_whole(a)
    return tuple(path for path in units_without_gradient(a) if path in kept)


# ``_register_group_forward_hooks`` in fsdp/_fully_shard/_fsdp_state.py runs the post-forward of a
# group when its last module returns, and ``_register_pre_backward_hook`` skips what needs no grad.
def may_end_without_gradient(a: Anatomy, path: str) -> bool:
    """Whether backward can come to a unit by another than the last of its modules.

    What FSDP2 does before a unit's backward hangs on the output of that one. A reentrant
    checkpoint around it calls it without grad, so FSDP2 finds an output that requires none. What
    the modules of an imported model are given nobody knows: it may require grad.
    """
    modules, unknown = a.modules_of(path), a.imported is not None
    apart = reentrant_around(a)
    for rank in a.telling_ranks:
        for _, op, now in a.situations(rank):
            if not isinstance(op, Forward) or not op.waits:
                continue
            gives = gives_grad(a, now)
            # By the last call of each module, in the order of their first ones. Once all were
            # called the unit's forward has ended, and the next call begins another.
            rounds: list[dict[str, bool]] = [{}]
            for call in a.calls(op, now):
                if call.path in modules and call.grad:
                    if len(rounds[-1]) == len(modules):
                        rounds.append({})
                    rounds[-1][call.path] = call.path not in apart and gives(call)
            for seen in rounds:
                given = any(seen.values()) or (unknown and len(seen) > 1)
                if given and not list(seen.values())[-1]:
                    return True
    return False


def shows_sharded_views(a: Anatomy, path: str) -> bool:
    """Whether fsdp1 may show the local shard of a unit that a forward has left unsharded.

    With ``use_orig_params`` it does not after a call with grad, and knows at the end of backward
    that it has not: ``_skipped_use_sharded_views`` in torch/distributed/fsdp/_flat_param.py. The
    last call before the backward counts, of whichever forward.
    """
    if is_flat(a, path):
        return True
    for rank in a.telling_ranks:
        grad = True
        for _, op, now in a.situations(rank):
            if isinstance(op, Forward):
                calls = [call.grad for call in a.calls(op, now) if call.path == path]
                grad = calls[-1] if calls else grad
            elif op.gives_gradients and not grad:
                return True
    return False


def saved_while_whole(a: Anatomy, path: str) -> bool:
    """Whether the optimizer's state is taken while a unit may be unsharded.

    Under ``SHARD_GRAD_OP`` that is from a forward with grad to a backward that comes to its root,
    if there is one.
    """
    if path not in kept_whole(a):
        return False
    root = belongs_to(a, path)
    for rank in a.telling_ranks:
        whole = reached = False
        for _, op, now in a.situations(rank):
            if isinstance(op, Forward):
                called = any(call.path == path for call in a.calls(op, now))
                whole = op.grad if called else whole
                reached |= op.waits and _goes_back_to(a, root, op, now)
            elif op.gives_gradients:
                whole = whole and (not reached or may_lack_backward(a))
                reached = False
            elif op.saves_optimizer and whole:
                return True
    return False


# ``_register_pre_backward_hooks`` in fsdp/_runtime_utils.py hangs on outputs that require grad, and
# the first of these hooks queues what frees all units of the root when backward ends.
def _goes_back_to(a: Anatomy, root: str, op: Forward, now: Situation) -> bool:
    """Whether any module within a root puts out what requires grad."""
    gives = gives_grad(a, now)
    return any(within(call.path, root) and call.grad and gives(call) for call in a.calls(op, now))


class NoGradientDimension(Hazard):
    """Which gradients of a unit a backward gives, and which it meets."""

    name = "no_gradient"
    features: ClassVar[Mapping[str, Feature]] = {
        "unit_without_gradient": Feature(
            about="on when no parameter of a unit gets a gradient: all frozen or unused",
            group="Wrapping",
            values=ON,
            excludes={"off": {"frozen_unit": ("on",), "kept_without_gradient": ("on",)}},
        ),
        "kept_without_gradient": Feature(
            about="on when such a unit is not resharded after forward (fsdp1 only)",
            group="Wrapping",
            values=ON,
            apis=("fsdp1",),
        ),
    }
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "gradient": Feature(
            about="off when no parameter of the unit gets a gradient, for a part of the program "
            "at least",
            group="Wrapping",
            values=ON,
        ),
        "quiet": Feature(
            about="off, on (a forward that calls the unit gives none of its parameters a gradient: "
            "they are frozen, unused or on another path of a switch), frozen (all are, by then), "
            "through (and in all calls, of which a backward follows, the inputs require grad); "
            "frozen for several of them as well",
            group="Wrapping",
            values=("off", *_QUIET),
        ),
        "quiet_graded": Feature(
            about="on when a forward calls the unit and leaves out all of its parameters that are "
            "trained, which have gradients of before; of a unit that is not sharded also when a "
            "backward passes over it",
            group="Training",
            values=ON,
        ),
        "quiet_at_first": Feature(
            about="on when forwards with grad call the unit, the next backward passes over it, and "
            "a later forward reads parameters of it that are trained",
            group="Training",
            values=ON,
        ),
        "left_unreduced": Feature(
            about="on when gradients of the unit wait for their reduction, and the backward that "
            "reduces gives it none",
            group="Training",
            values=ON,
        ),
        "joined_unreduced": Feature(
            about="on when gradients of the unit wait for their reduction, and the backward that "
            "reduces gives another of its parameters the first (fsdp2 only)",
            group="Training",
            values=ON,
            apis=("fsdp2",),
        ),
        "reduced_again": Feature(
            about="on when a backward meets gradients of the unit that were reduced before",
            group="Training",
            values=ON,
        ),
        "sharded_views": Feature(
            about="on when fsdp1 shows the local shard of a unit that a forward leaves unsharded: "
            "with use_orig_params=False, or called without grad (fsdp1 only)",
            group="Wrapping",
            values=ON,
            apis=("fsdp1",),
        ),
        "handed_again": Feature(
            about="on when an offloaded unit that is trained has no gradient behind a backward, "
            "and fsdp1 hands the optimizer what lies on the CPU (fsdp1 only)",
            group="Training",
            # On a GPU, in few programs: no pair is waited for.
            values=("off",),
            open=True,
            apis=("fsdp1",),
        ),
        "quiet_end": Feature(
            about="on when in some forward the output of the last of the unit's modules requires "
            "no grad, while that of another does (fsdp2 only)",
            group="Wrapping",
            values=ON,
            apis=("fsdp2",),
        ),
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Whether any unit is so."""
        yield "unit_without_gradient", on(bool(units_without_gradient(a)))
        if a.fsdp1:
            yield "kept_without_gradient", on(bool(kept_without_gradient(a)))

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """The same of one unit, and by which of its modules backward comes to it."""
        yield "gradient", on(bool(a.owned[path]) and path not in units_without_gradient(a))
        yield "quiet", units_called_without_gradient(a).get(path, "off")
        yield "quiet_graded", on(path in quiet_with_gradient(a))
        yield "quiet_at_first", on(path in quiet_and_used_later(a))
        yield "left_unreduced", on(path in left_unreduced(a))
        yield "reduced_again", on(path in reduced_again(a))
        if a.fsdp1:
            yield "handed_again", on(path in handed_again(a))
            yield "sharded_views", on(path in kept_whole(a) and shows_sharded_views(a, path))
        else:
            yield "joined_unreduced", on(path in joined_unreduced(a))
            yield "quiet_end", on(len(a.modules_of(path)) > 1 and may_end_without_gradient(a, path))
