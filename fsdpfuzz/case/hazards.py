"""Structures of a case where FSDP's rules for units are easily broken.

Each is a fact about the case alone. Predicates of known defects name them, and so do what FSDP
is held to where they change what it can promise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.checkpoints import side_of
from fsdpfuzz.case.dimension import ON, Dimension, Feature, Simpler
from fsdpfuzz.case.flow import requires
from fsdpfuzz.case.modules import SEVERAL, Repeat
from fsdpfuzz.case.operations import Forward, RequiresGrad
from fsdpfuzz.case.operations.forward import reduced_again
from fsdpfuzz.case.operations.rebuild import loaded_frozen
from fsdpfuzz.case.operations.state_dict import takes_local
from fsdpfuzz.case.optimizer import stateless, unstepped
from fsdpfuzz.case.paths import join, within
from fsdpfuzz.case.units.sharding import KEPT_WHOLE
from fsdpfuzz.case.units.use_orig_params import held_on, is_flat
from fsdpfuzz.case.wrap import Fsdp1Unit

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec


def single_element_units(a: Anatomy) -> tuple[str, ...]:
    """Units that manage one element in all, so that a shard is as large as the whole."""
    return tuple(path for path, owned in a.owned.items() if sum(p.numel for p in owned) == 1)


def ever_frozen(a: Anatomy) -> frozenset[str]:
    """Parameters that are frozen all along or for a part of the program."""
    return a.frozen.union(
        *(op.parameters for op in a.case.program if isinstance(op, RequiresGrad) and not op.value)
    )


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


@lru_cache(maxsize=64)
def quiet_units(a: Anatomy) -> Mapping[str, str]:
    """Units that some forward calls, and gives no gradient to any parameter that they manage.

    ``frozen`` where a forward finds all of them frozen, ``on`` where they are frozen, unused or on
    another path of a switch.
    """
    found: dict[str, str] = {}
    for rank in range(a.case.world_size) if a.switches else range(1):
        for i, op, now in a.situations(rank):
            if not isinstance(op, Forward) or not op.grad:
                continue
            b = a.at(i)
            called = {call.path for call in b.calls(op, now)}
            for path, owned in b.owned.items():
                trained = [p.fqn for p in owned if now.trained[p.fqn]]
                used = [p.fqn for p in owned if p.used and p.fqn in trained]
                if owned and path in called and not any(_on_path(a, n, called) for n in used):
                    found[path] = found.get(path, "on") if trained else "frozen"
    return found


def _on_path(a: Anatomy, fqn: str, called: Collection[str]) -> bool:
    """Whether what holds a parameter is called by the switches that it lies in."""
    return all(
        any(within(fqn, path) and within(path, switch) for path in called if path != switch)
        for switch in a.switches
        if within(fqn, switch)
    )


def kept_whole(a: Anatomy) -> tuple[str, ...]:
    """Units that fsdp1 leaves unsharded between forward and backward."""
    return tuple(
        path
        for path, unit in a.options.items()
        if isinstance(unit, Fsdp1Unit) and unit.sharding in KEPT_WHOLE
    )


def kept_without_gradient(a: Anatomy) -> tuple[str, ...]:
    """Units without gradient that fsdp1 leaves unsharded between forward and backward."""
    kept = kept_whole(a)
    return tuple(path for path in units_without_gradient(a) if path in kept)


def identity_units(a: Anatomy) -> tuple[str, ...]:
    """Units whose module returns its very input, or a unit that does so within them."""
    found = []
    for path, unit in a.unit_at.items():
        place = a.by_path[path]
        node = place.node
        if place.kind == "sided":  # it gives its only module's output back
            node = a.by_path[join(path, "inner")].node
        elif place.kind == SEVERAL:  # and that one puts out of it what came in
            node = a.by_path[path.rpartition(".")[0]].node
        if node is not None and node.returns_its_input():
            found.append(unit)
    return tuple(found)


def repeated_places(a: Anatomy) -> tuple[str, ...]:
    """FQNs of the modules whose content is called several times in one forward."""
    if a.imported is not None:
        # Whose content: what is called again is taken for its own holder, too.
        counted = Counter(a.imported.calls)
        return tuple(path for path, times in counted.items() if times > 1)
    return tuple(
        place.path for place in a.places if isinstance(place.node, Repeat) and place.node.times > 1
    )


def called_units(a: Anatomy) -> frozenset[str]:
    """Units that some forward of the program calls, on some rank."""
    called: set[str] = set()
    ranks = range(a.case.world_size) if a.switches else range(1)
    for rank in ranks:
        for _, op, now in a.situations(rank):
            if isinstance(op, Forward):
                called.update(call.path for call in a.calls(op, now))
    return frozenset(unit for module, unit in a.unit_at.items() if module in called)


def calls_a_unit_again(a: Anatomy) -> bool:
    """Whether a unit is called several times from the end of a backward to that of the next.

    A checkpoint calls the units in it again during the backward. Calls of an evaluation, in eval
    mode and under ``no_grad``, do not count: fsdp1's check of their order leaves them out.
    """
    again = [c for c in a.case.checkpoints if c.recomputes]
    if any(
        within(module, c.path) and (module != c.path or side_of(a, c) == "around")
        for c in again
        for module in a.unit_at
    ):
        return True
    units = frozenset(a.unit_at)
    for rank in range(a.case.world_size) if a.switches else range(1):
        called: set[str] = set()
        for _, op, now in a.situations(rank):
            if op.gives_gradients or op.renews:
                called.clear()
            elif isinstance(op, Forward) and (now.training or op.grad):
                for call in a.calls(op, now):
                    if call.path in called:
                        return True
                    called.update({call.path} & units)
    return False


def misnamed_units(a: Anatomy) -> tuple[str, ...]:
    """Units to whose state ``torch.distributed.checkpoint`` gives names with a wrapper in them.

    A wrapper around the unit leaves the unit's own prefix in the name; of a flat parameter, the
    prefix of a wrapper inside of the unit stays.
    """
    if a.case.optimizer is None or not any(op.names_state() for op in a.case.program):
        return ()
    wrappers = [c for c in a.case.checkpoints if c.kind in ("wrapper", "offload")]
    found = []
    for path in a.units:
        around = [c for c in wrappers if c.path == path and side_of(a, c) == "around"]
        inside = [c for c in wrappers if c not in around and within(c.path, path)]
        held = any(within(fqn, c.path) for fqn in a.names_in(path) for c in inside)
        if a.fsdp1 and (around or (is_flat(a, path) and held)):
            found.append(path)
    return tuple(found)


@lru_cache(maxsize=64)
def lacking_somewhere(a: Anatomy) -> frozenset[str]:
    """Parameters of which a rank has no element, though it has elements of others.

    Those of fsdp1's units with ``use_orig_params``, which cut what they manage as one. Only
    parameters that the optimizer steps count.
    """
    found: set[str] = set()
    for rank in range(a.case.world_size):
        held = held_on(a, rank)
        left_out = a.frozen.union(a.case.held_out)
        stepped = {fqn: numel for fqn, numel in held.items() if fqn not in left_out}
        if any(stepped.values()):
            found.update(fqn for fqn, numel in stepped.items() if not numel)
    return frozenset(found)


def quiet_end(a: Anatomy, path: str) -> bool:
    """Whether backward can come to a unit by another than the last of its modules.

    What FSDP2 does before a unit's backward hangs on the output of that one.
    """
    modules = a.modules_of(path)
    for rank in range(a.case.world_size) if a.switches else range(1):
        for _, op, now in a.situations(rank):
            if not isinstance(op, Forward) or not op.waits:
                continue
            requires_grad = requires(a, now)
            trained = [p.fqn for p in a.parameters if p.used and requires_grad(p.fqn)]
            seen: dict[str, bool] = {}
            for call in a.calls(op, now):
                if call.path in modules and call.grad:
                    own = any(within(fqn, call.path) for fqn in trained)
                    seen[call.path] = own or call.input_grad
            if any(seen.values()) and not list(seen.values())[-1]:
                return True
    return False


class HazardsDimension(Dimension):
    """Units of one element, units without gradient, units that return their input."""

    name = "hazards"
    drawn: ClassVar[bool] = False
    features: ClassVar[Mapping[str, Feature]] = {
        "single_element_unit": Feature(
            about="on when a unit manages one element in all", group="Wrapping", values=ON
        ),
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
        "identity_unit": Feature(
            about="on when a unit's module returns its very input", group="Wrapping", values=ON
        ),
        "uncalled_unit": Feature(
            about="on when no forward ever calls a unit", group="Wrapping", values=ON
        ),
        "unit_called_again": Feature(
            about="on when a unit is called several times before a backward ends: in one forward, "
            "by several forwards but for evaluations, or by recomputation",
            group="Wrapping",
            values=ON,
        ),
    }
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "elements": Feature(
            about="0, 1, few (fewer than shards), many: elements that the unit manages",
            group="Wrapping",
            values=("0", "1", "few", "many"),
        ),
        "gradient": Feature(
            about="off when no parameter of the unit gets a gradient, for a part of the program "
            "at least",
            group="Wrapping",
            values=ON,
        ),
        "quiet": Feature(
            about="off, on (a forward that calls the unit gives none of its parameters a gradient: "
            "they are frozen, unused or on another path of a switch), frozen (all are, by then)",
            group="Wrapping",
            values=("off", "on", "frozen"),
        ),
        "reduced_again": Feature(
            about="on when a backward meets gradients of the unit that were reduced before",
            group="Training",
            values=ON,
        ),
        "identity": Feature(
            about="on when the unit's module returns its very input", group="Wrapping", values=ON
        ),
        "early_end": Feature(
            about="on when backward may be done with the unit before a recomputation asks for "
            "it: it returns its input, or is called several times in a forward (fsdp2 only)",
            group="Wrapping",
            values=ON,
            apis=("fsdp2",),
        ),
        "repeated": Feature(
            about="on when the unit, or what it manages, is called several times in a forward",
            group="Wrapping",
            values=ON,
        ),
        "quiet_end": Feature(
            about="on when in some forward the output of the last of the unit's modules requires "
            "no grad, while that of another does (fsdp2 only)",
            group="Wrapping",
            values=ON,
            apis=("fsdp2",),
        ),
        "called": Feature(
            about="off when no forward ever calls the unit", group="Wrapping", values=ON
        ),
        "local_state": Feature(
            about="on when a local state dict is taken (fsdp1 only)",
            group="State",
            values=ON,
            apis=("fsdp1",),
        ),
        "misnamed": Feature(
            about="on when torch.distributed.checkpoint takes the optimizer's state, and a "
            "checkpoint or offload wrapper lies around the unit, or inside it without "
            "use_orig_params (fsdp1 only)",
            group="State",
            values=ON,
            apis=("fsdp1",),
        ),
    }
    parameter_features: ClassVar[Mapping[str, Feature]] = {
        "lacking": Feature(
            about="on when a rank has no element of the parameter, but of others: with "
            "use_orig_params (fsdp1 only)",
            group="Parameters",
            values=ON,
            apis=("fsdp1",),
        ),
        "unstepped": Feature(
            about="on when the optimizer's state is taken, and it has none of the parameter but of "
            "another one of its unit: with use_orig_params (fsdp1 only)",
            group="State",
            values=ON,
            apis=("fsdp1",),
        ),
        "stateless": Feature(
            about="on when the optimizer's state is taken flattened and may have none of the "
            "parameter, which requires grad",
            group="State",
            values=ON,
        ),
        "loaded_frozen": Feature(
            about="on when the parameter was stepped, and is frozen while "
            "torch.distributed.checkpoint loads the optimizer's state",
            group="State",
            values=ON,
        ),
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Whether any unit is so."""
        yield "single_element_unit", on(bool(single_element_units(a)))
        yield "unit_without_gradient", on(bool(units_without_gradient(a)))
        if a.fsdp1:
            yield "kept_without_gradient", on(bool(kept_without_gradient(a)))
        yield "identity_unit", on(bool(identity_units(a)))
        yield "uncalled_unit", on(not called_units(a).issuperset(a.units))
        yield "unit_called_again", on(calls_a_unit_again(a))

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """The same of one unit."""
        numel = sum(p.numel for p in a.owned[path])
        few = "few" if numel < a.shards(path) else "many"
        yield "elements", str(numel) if numel < 2 else few
        yield "gradient", on(bool(a.owned[path]) and path not in units_without_gradient(a))
        yield "quiet", quiet_units(a).get(path, "off")
        yield "reduced_again", on(path in reduced_again(a))
        identity = path in identity_units(a)
        yield "identity", on(identity)
        repeats = repeated_places(a)
        names = (path, *a.names_in(path))
        again = any(within(n, r) and n != r for n in names for r in repeats)
        yield "repeated", on(again)
        yield "called", on(path in called_units(a))
        if a.fsdp1:
            yield "local_state", on(takes_local(a.case.program))
            yield "misnamed", on(path in misnamed_units(a))
        else:
            yield "early_end", on(identity or again)
            yield "quiet_end", on(len(a.modules_of(path)) > 1 and quiet_end(a, path))

    def parameter_values(self, a: Anatomy, fqn: str) -> Iterator[tuple[str, str]]:
        """What of its state goes wrong."""
        if a.fsdp1:
            yield "lacking", on(a.canonical(fqn) in lacking_somewhere(a))
            yield "unstepped", on(a.canonical(fqn) in unstepped(a))
        yield "stateless", on(a.canonical(fqn) in stateless(a))
        yield "loaded_frozen", on(fqn in loaded_frozen(a))

    def check(self, a: Anatomy) -> None:
        """They are sound cases."""

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """What makes them is simplified where it is."""
        return iter(())
