"""Units that are called never, or again before FSDP is done with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Feature
from fsdpfuzz.case.flow import requires
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.modules import Branches, Repeat
from fsdpfuzz.case.operations import Forward
from fsdpfuzz.case.paths import innermost, within
from fsdpfuzz.case.sides import side_of

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.flow import Situation
    from fsdpfuzz.case.modules.walk import Called
    from fsdpfuzz.case.operations import Op


# What FSDP does before a unit's backward hangs on its outputs, what it does afterwards on its
# inputs. Where both are one tensor, the hook on the inputs was registered first, and runs first.
@lru_cache(maxsize=64)
def identity_units(a: Anatomy) -> tuple[str, ...]:
    """Units whose module returns its very input, or a unit that does so within them."""
    return tuple(unit for path, unit in a.unit_at.items() if a.by_path[path].returns_its_input)


def _saves_nothing(a: Anatomy, path: str) -> bool:
    places = [a.by_path[module] for module in a.modules_of(path)]
    return not any(place.node is None or place.node.saves() for place in places)


def ends_with_a_shared_input(a: Anatomy, path: str) -> bool:
    """Whether the last of a unit's modules returns what others of them were given, too.

    Modules of one unit are siblings, and those in `Branches` are given the same.
    """
    modules = a.modules_of(path)
    return len(modules) > 1 and returns_a_shared_input(a, modules[-1])


def returns_a_shared_input(a: Anatomy, module: str) -> bool:
    """Whether a module returns what its siblings are given, too."""
    around = innermost(module.rpartition(".")[0], a.by_path)
    shared = around is not None and isinstance(a.by_path[around].node, Branches)
    return shared and a.by_path[module].returns_its_input


@lru_cache(maxsize=64)
def repeated_places(a: Anatomy) -> tuple[str, ...]:
    """FQNs of the modules whose content is called several times in one forward."""
    if a.imported is not None:
        # Whose content: what is called again is taken for its own holder, too.
        counted = Counter(a.imported.calls)
        return tuple(path for path, times in counted.items() if times > 1)
    return tuple(
        place.path for place in a.places if isinstance(place.node, Repeat) and place.node.times > 1
    )


@lru_cache(maxsize=64)
def called_units(a: Anatomy) -> frozenset[str]:
    """Units that some forward calls, on some rank, whenever FSDP has made them anew."""
    called: dict[int, set[str]] = {}
    for rank in a.telling_ranks:
        made = called.setdefault(-1, set())
        for i, op, now in a.situations(rank):
            if op.renews:
                made = called.setdefault(i, set())
            elif isinstance(op, Forward):
                made.update(call.path for call in a.calls(op, now))
    units = ({u for m, u in a.unit_at.items() if m in made} for made in called.values())
    return frozenset(a.units).intersection(*units)


@lru_cache(maxsize=64)
def late_units(a: Anatomy) -> frozenset[str]:
    """Units that no forward has called, on some rank, when a backward without reduction ends."""
    late: set[str] = set()
    for rank in a.telling_ranks:
        called: set[str] = set()
        sync = True
        for i, op, now in a.situations(rank):
            if op.renews:
                called.clear()
            elif isinstance(op, Forward):
                called.update(call.path for call in a.calls(op, now))
                sync = op.sync if op.waits else sync
            elif op.gives_gradients and not sync:
                modules = a.at(i).unit_at
                late |= set(modules.values()).difference(modules[m] for m in called & set(modules))
    return frozenset(late)


def called_repeatedly(a: Anatomy, path: str) -> bool:
    """Whether a module of a unit is called several times before a backward."""
    modules = a.modules_of(path)
    called = Counter[str]()
    for _, op, now in a.situations(0):
        if op.gives_gradients or op.renews:
            called.clear()
        elif isinstance(op, Forward):
            called.update(call.path for call in a.calls(op, now))
        if any(called[module] > 1 for module in modules):
            return True
    return False


# An iteration ends for fsdp1's check of the order with the post-backward callback, which calls
# ``_ExecOrderData.next_iter`` in fsdp/_exec_order_utils.py.
@lru_cache(maxsize=64)
def units_called_again(a: Anatomy) -> Mapping[str, bool]:
    """Units called several times from the end of a backward to that of the next.

    True for those of which that is so after the first backward, too. A checkpoint calls the units
    in it again during the backward. Calls of an evaluation, in eval mode and under ``no_grad``, do
    not count: fsdp1's check of their order leaves them out.
    """
    again = [c for c in a.case.checkpoints if c.recomputes]
    backwards = [op for op in a.case.program if op.gives_gradients]
    several = len(backwards) > 1 or any(op.goes_back_again for op in backwards)
    found = {
        unit: several
        for module, unit in a.unit_at.items()
        if any(
            within(module, c.path) and (module != c.path or side_of(a, c) == "around")
            for c in again
        )
    }
    for rank in a.telling_ranks:
        called: set[str] = set()
        first = True
        for _, op, now in a.situations(rank):
            if op.gives_gradients or op.renews:
                # A backward ends the iteration, as a new wrapping does.
                called.clear()
                first = op.renews
            # ``_check_order`` returns at once in eval mode: no post-backward callback ends the
            # iteration.
            elif isinstance(op, Forward) and (now.training or op.grad):
                for call in a.calls(op, now):
                    unit = a.unit_at.get(call.path)
                    if unit is not None and call.path in called:
                        found[unit] = found.get(unit, False) or not first
                    called.add(call.path)
    return found


@lru_cache(maxsize=64)
def units_left_out(a: Anatomy) -> frozenset[str]:
    """Units that some forward calls, and of two that a backward each follows not both."""
    found: set[str] = set()
    for rank in a.telling_ranks if a.optional else ():
        called: set[str] = set()
        before: frozenset[str] | None = None
        for i, op, now in a.situations(rank):
            b = a.at(i)
            if isinstance(op, Forward) and op.waits:
                called |= {b.unit_at[c.path] for c in b.calls(op, now) if c.path in b.unit_at}
            elif op.gives_gradients:
                found |= set() if before is None else called ^ before
                before = frozenset(called)
                called.clear()
            elif op.renews:
                before = None
    return frozenset(found)


@lru_cache(maxsize=64)
def units_left_behind(a: Anatomy) -> frozenset[str]:
    """Units that a forward calls which no backward follows, and no forward of the next backward."""
    found: set[str] = set()
    # Else each forward calls the same units.
    varies = a.optional or any(op.called for op in a.case.program if op.runs_model)
    for rank in a.telling_ranks if varies else ():
        alone: set[str] = set()
        called: set[str] = set()
        for i, op, now in a.situations(rank):
            b = a.at(i)
            if isinstance(op, Forward):
                units = {b.unit_at[c.path] for c in b.calls(op, now) if c.path in b.unit_at}
                if op.waits:
                    called |= units
                else:
                    alone |= units
            elif op.gives_gradients:
                alone -= called
                found |= alone
                called.clear()
            elif op.renews:
                alone.clear()
                called.clear()
    return frozenset(found)


class UnitsOfAForward(NamedTuple):
    """Units that a forward calls, and those of them that a backward comes to."""

    called: frozenset[str]
    reached: frozenset[str]


def calls_of_units(a: Anatomy, op: Op, now: Situation) -> Iterator[tuple[str, Called]]:
    """The calls of units by one operation, in order, each with its unit; none if it is no forward.

    A unit of several modules is there with each of them.
    """
    for call in a.calls(op, now) if isinstance(op, Forward) else ():
        if call.path in a.unit_at:
            yield a.unit_at[call.path], call


def calls_for_backward(a: Anatomy, op: Op, now: Situation) -> list[Called]:
    """The calls by one operation, in order; none if it is no forward, or one without grad."""
    return list(a.calls(op, now)) if isinstance(op, Forward) and op.grad else []


def gives_grad(a: Anatomy, now: Situation) -> Callable[[Called], bool]:
    """Whether what a call puts out may require grad, where gradients are recorded in it.

    Only what a module is given, and what of its parameters is trained, is asked.
    """
    requires_grad = requires(a, now)
    trained = [p.fqn for p in a.parameters if p.used and requires_grad(p.fqn)]

    def gives(call: Called) -> bool:
        return call.input_grad or any(within(fqn, call.path) for fqn in trained)

    return gives


def units_of_a_forward(a: Anatomy, op: Op, now: Situation) -> UnitsOfAForward:
    """The units of one operation; none if it is no forward."""
    called: set[str] = set()
    reached: set[str] = set()
    gives = gives_grad(a, now)
    for unit, call in calls_of_units(a, op, now):
        called.add(unit)
        if gives(call):
            reached.add(unit)
    return UnitsOfAForward(frozenset(called), frozenset(reached))


# ``_register_pre_backward_hooks`` in fsdp/_runtime_utils.py takes back for each call with grad that
# the unit is to be gathered in backward, and asks for it again where the output requires grad.
@lru_cache(maxsize=64)
def units_forgotten(a: Anatomy) -> frozenset[str]:
    """Units of fsdp1 of which the last output before a backward requires no grad, others do."""
    found: set[str] = set()
    for rank in a.telling_ranks if a.fsdp1 else ():
        required: dict[str, list[bool]] = {}
        for i, op, now in a.situations(rank):
            b = a.at(i)
            if isinstance(op, Forward) and op.grad:
                gives = gives_grad(b, now)
                for call in b.calls(op, now):
                    if call.grad and call.path in b.unit_at:
                        required.setdefault(b.unit_at[call.path], []).append(gives(call))
            elif op.gives_gradients or op.renews:
                found |= {unit for unit, seen in required.items() if any(seen) and not seen[-1]}
                required.clear()
    return frozenset(found)


class UnitCallsDimension(Hazard):
    """How often a unit is called, and whether FSDP can tell the end of a call."""

    name = "unit_calls"
    features: ClassVar[Mapping[str, Feature]] = {
        "identity_unit": Feature(
            about="on when a unit's module returns its very input", group="Wrapping", values=ON
        ),
        "uncalled_unit": Feature(
            about="on when no forward calls a unit between the times that FSDP makes it",
            group="Wrapping",
            values=ON,
        ),
        "late_unit": Feature(
            about="on when a backward without reduction ends before some unit has been called",
            group="Wrapping",
            values=ON,
            excludes={"on": {"accumulation": ("off", "sync")}},
        ),
        "unit_called_again": Feature(
            about="on when a unit is called several times before a backward ends: in one forward, "
            "by several forwards but for evaluations and what an exception ends, or by "
            "recomputation",
            group="Wrapping",
            values=ON,
        ),
    }
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "identity": Feature(
            about="on when the unit's module returns its very input", group="Wrapping", values=ON
        ),
        "early_end": Feature(
            about="on when backward may be done with the unit before a recomputation asks for "
            "it: it saves nothing, or is called several times in a forward (fsdp2 only)",
            group="Wrapping",
            values=ON,
            apis=("fsdp2",),
        ),
        "shared_end": Feature(
            about="on when the last of the unit's modules returns its very input, which others "
            "of them were given, too (fsdp2 only)",
            group="Wrapping",
            values=ON,
            apis=("fsdp2",),
        ),
        "repeated": Feature(
            about="on when the unit, or what it manages, is called several times in a forward",
            group="Wrapping",
            values=ON,
        ),
        "called": Feature(
            about="off when no forward calls the unit between the times that FSDP makes it",
            group="Wrapping",
            values=ON,
        ),
        "left_out": Feature(
            about="on when the forwards before one backward call the unit, and those before the "
            "next one do not, or the reverse",
            group="Wrapping",
            values=ON,
        ),
        "left_behind": Feature(
            about="on when a forward calls the unit that no backward follows, without grad or "
            "dropped, and those of the next backward do not",
            group="Wrapping",
            values=ON,
        ),
        "called_again_later": Feature(
            about="on when the unit is called several times before a backward ends that is not the "
            "first one, as unit_called_again counts them",
            group="Wrapping",
            values=ON,
        ),
        "forgotten": Feature(
            about="on when outputs of the unit before a backward require grad, and the last one "
            "does not (fsdp1 only)",
            group="Wrapping",
            values=ON,
            apis=("fsdp1",),
        ),
        "late": Feature(
            about="on when a backward without reduction ends before the unit has been called",
            group="Wrapping",
            values=ON,
        ),
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Whether any unit is so."""
        yield "identity_unit", on(bool(identity_units(a)))
        yield "uncalled_unit", on(not called_units(a).issuperset(a.units))
        yield "late_unit", on(bool(late_units(a)))
        yield "unit_called_again", on(bool(units_called_again(a)))

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """The same of one unit."""
        identity = path in identity_units(a)
        yield "identity", on(identity)
        repeats = repeated_places(a)
        names = (path, *a.names_in(path))
        again = any(within(n, r) and n != r for n in names for r in repeats)
        yield "repeated", on(again)
        yield "called", on(path in called_units(a))
        yield "called_again_later", on(units_called_again(a).get(path, False))
        yield "left_out", on(path in units_left_out(a))
        yield "left_behind", on(path in units_left_behind(a))
        yield "late", on(path in late_units(a))
        if a.fsdp1:
            yield "forgotten", on(path in units_forgotten(a))
        else:
            # Post-backward hangs on the unit's inputs (``_register_post_backward_hook`` in
            # fsdp/_fully_shard/_fsdp_param_group.py), so it may run before any saved tensor is
            # asked for.
            yield "early_end", on(identity or again or _saves_nothing(a, path))
            yield "shared_end", on(ends_with_a_shared_input(a, path))
