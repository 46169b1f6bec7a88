"""How a plan's units and a case's checkpoints are put into the model, as statements of a recipe."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

import msgspec

from fsdpfuzz.case import meta_init
from fsdpfuzz.case.anatomy import Anatomy
from fsdpfuzz.case.checkpoints import reference_recomputes
from fsdpfuzz.case.dimensions import DIMENSIONS
from fsdpfuzz.case.divide_factor import told
from fsdpfuzz.case.extensions import extended
from fsdpfuzz.case.named_axes import spread
from fsdpfuzz.case.parallelised import parallelised
from fsdpfuzz.case.paths import depth, join
from fsdpfuzz.case.policies import auto_wrap, root_of
from fsdpfuzz.case.recipe import (
    MODEL,
    Call,
    Do,
    Global,
    Inside,
    Items,
    Procedure,
    Statement,
    Value,
    Variable,
    With,
    call,
)
from fsdpfuzz.case.sides import side_of
from fsdpfuzz.case.units import OPTIONS
from fsdpfuzz.case.units.replicas import REPLICATE, is_replica
from fsdpfuzz.case.units.sharding import arguments
from fsdpfuzz.case.wrap import Fsdp1Plan, Fsdp1Unit, Unit

FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"
FSDP2 = "torch.distributed.fsdp.fully_shard"
_DEVICE = Variable("device")
_Early: TypeAlias = Mapping[tuple[str, str], Variable]
"""Arguments that are made before anything is wrapped, by unit and option."""


class Wrapping:
    """Makes the procedure that shards a model."""

    def __init__(self, a: Anatomy, mesh: Value, classes: Collection[object]) -> None:
        """``mesh`` is what units are handed; ``classes`` are the functions that make modules."""
        self.a = a
        self._mesh = mesh
        self._classes = classes

    def procedure(self) -> Procedure:
        """Checkpoints and units, the deepest first: then nothing around a module is wrapped yet."""
        own = self.a.imported
        if own is not None and own.wrapped:
            shard = Global(own.function("shard"))
            made = call("steps.modules.imported.sharded", MODEL, shard, _DEVICE)
            only = Do(call=made, into=(MODEL,), who="fsdp")
            whole = (*self.before(), only)
            return Procedure(name="shard", parameters=("model",), body=whole, result="model")
        body: list[Statement] = [*meta_init.emptied(self.a), *parallelised(self.a)]
        body += spread(self.a, self._mesh)
        body += extended(self.a)
        early: dict[tuple[str, str], Variable] = {}
        # Where one unit is all there is, the model is untouched until it is made.
        # Else before anything is wrapped: ``model[0].weight`` is another tensor, or none, once
        # fsdp1 has flattened it.
        alone = len(self.a.plan.units) + len(self.a.case.checkpoints) == 1
        for unit in () if alone else self.a.plan.units:
            for option in OPTIONS:
                value = getattr(unit, option.name, None)
                if option.early and option.has(unit) and value != option.default(unit):
                    variable = Variable(f"{option.name}_{unit.path.replace('.', '_') or 'root'}")
                    (argument,) = option.argument(unit, value)
                    body.append(Do(call=argument[1], into=(variable,)))
                    early[unit.path, option.name] = variable
        body += self._policy(early) if self._has_policy else self._by_hand(early)
        # Last of all: the setters of ``FSDPModule`` go through ``modules()``, and reach what is
        # there.
        body += self._told()
        body += meta_init.filled(self.a)
        return Procedure(name="shard", parameters=("model",), body=tuple(body), result="model")

    def before(self) -> Iterator[Do]:
        """The checkpoints, where the target of an imported model wraps what they lie in."""
        for path in sorted({c.path for c in self.a.case.checkpoints}, key=depth, reverse=True):
            yield from self._placed(path, "inside")

    @property
    def _has_policy(self) -> bool:
        return isinstance(self.a.plan, Fsdp1Plan) and self.a.plan.by_policy

    def _by_hand(self, early: _Early) -> Iterator[Statement]:
        plan = self.a.plan
        if not isinstance(plan, Fsdp1Plan) or plan.wrap != "enable_wrap":
            yield from self._one_by_one(early)
            return
        options = self._options(_common(plan), {})
        wrapper = {"wrapper_cls": Global(FSDP1), **options, "device_id": _DEVICE}
        context = call("torch.distributed.fsdp.wrap.enable_wrap", **wrapper)
        made = tuple(self._one_by_one(early))
        body = tuple(replace(do, who="both") for do in made if do.who != "reference")
        yield With(context=context, body=body, who="fsdp")
        # The plain model has no units, but may have checkpoints.
        yield from (replace(do, who="reference") for do in made if do.who != "fsdp")

    def _one_by_one(self, early: _Early) -> Iterator[Do]:
        units = {unit.path: unit for unit in self.a.plan.units}
        paths = dict.fromkeys((*(c.path for c in self.a.case.checkpoints), *units))
        # Both APIs give a unit what no unit below it manages yet: ``fully_shard`` documents to go
        # bottom-up, and ``FullyShardedDataParallel`` leaves out modules that are FSDP's by then.
        for path in sorted(paths, key=depth, reverse=True):
            if self.a.unit_at.get(path, path) != path:
                continue  # its unit's first module brings it along
            together = self.a.modules_of(path) or (path,)
            for module in together:
                yield from self._placed(module, "inside")
            if path in units:
                yield self._wrapped(units[path], early)
                yield from told(self.a, Inside("model", path) if path else MODEL)
            for module in together:
                yield from self._placed(module, "around")

    def _told(self) -> Iterator[Do]:
        """What units are told once all of them are made."""
        for path in self.a.roots:
            for dimension in DIMENSIONS:
                yield from dimension.told(self.a, Inside("model", path) if path else MODEL)

    def _placed(self, path: str, side: str) -> Iterator[Do]:
        """The checkpoints at a module, on one side of its unit; without one ``inside``."""
        recomputes = reference_recomputes(self.a)
        listed = self.a.unit_at.get(path) in {unit.path for unit in self.a.plan.units}
        for checkpoint in self.a.case.checkpoints:
            own = checkpoint.side if listed else "inside"
            if checkpoint.path == path and own == side:
                both = recomputes and not checkpoint.offloads
                yield replace(checkpoint.placed(self.a), who="both" if both else "fsdp")
                # What save_on_cpu does wrong shall show: the plain model keeps its activations.
                if recomputes and checkpoint.recomputes and checkpoint.offloads:
                    yield replace(checkpoint.placed(self.a, offloads=False), who="reference")

    def _wrapped(self, unit: Unit, early: _Early) -> Do:
        target = Inside("model", unit.path) if unit.path else MODEL
        if isinstance(self.a.plan, Fsdp1Plan) and self.a.plan.wrap == "enable_wrap":
            own = self._overrides(unit, _common(self.a.plan), early, by_policy=False)
            made = Call("torch.distributed.fsdp.wrap.wrap", (target,), tuple(own.items()))
            return Do(call=made, into=(target,), who="fsdp")
        options = self._options(unit, early)
        if self.a.fsdp1:
            made = call(FSDP1, target, **options, device_id=_DEVICE)
            return Do(call=made, into=(target,), who="fsdp")
        modules = tuple(Inside("model", path) for path in self.a.modules_of(unit.path))
        given = Items("list", modules) if len(modules) > 1 else target
        return Do(call=call(REPLICATE if is_replica(unit) else FSDP2, given, **options), who="fsdp")

    def _options(self, unit: Unit, early: _Early) -> dict[str, Value]:
        """The arguments that differ from PyTorch's defaults."""
        found = arguments(self.a, unit, self._mesh) | meta_init.arguments(self.a)
        for option in OPTIONS:
            if not option.has(unit) or getattr(unit, option.name) == option.default(unit):
                continue
            for argument, value in option.argument(unit, getattr(unit, option.name)):
                found[argument] = early.get((unit.path, option.name), value)
        return found

    def _policy(self, early: _Early) -> Iterator[Statement]:
        """One call on the root; checkpoints inside of it come first."""
        plan = self.a.plan
        root = next(unit for unit in plan.units if not unit.path)
        for path in sorted(
            dict.fromkeys(c.path for c in self.a.case.checkpoints), key=depth, reverse=True
        ):
            yield from self._placed(path, "inside")
            if path:
                yield from self._placed(path, "around")
        options = self._options(root, early)
        made = call(
            FSDP1, MODEL, auto_wrap_policy=self._auto_wrap(root), **options, device_id=_DEVICE
        )
        yield Do(call=made, into=(MODEL,), who="fsdp")
        if any(not c.path for c in self.a.case.checkpoints):
            yield from self._placed("", "around")

    def _auto_wrap(self, root: Unit) -> Value:
        plan = self.a.plan
        if isinstance(plan, Fsdp1Plan) and plan.wrap != "custom_policy":
            named = tuple(self._found(path) for path in plan.chosen)
            return auto_wrap(plan, self._classes, named)
        chosen: list[Value] = []
        for unit in plan.units:
            if unit.path:
                own = self._overrides(unit, root, {})
                told = (value for option in own.items() for value in option)
                chosen += [self._found(unit.path), Items("dict", tuple(told)) if own else True]
        return call("steps.fsdp1.policy.chosen", Items("dict", tuple(chosen)))

    def _found(self, path: str) -> Inside:
        """A module that a policy names: the object, which may lie in a wrapper by now."""
        for checkpoint in self.a.case.checkpoints:
            around = side_of(self.a, checkpoint) == "around"
            if checkpoint.path == path and around and checkpoint.wraps:
                path = join(path, "_checkpoint_wrapped_module")
        return Inside("model", path)

    def _overrides(
        self, unit: Unit, root: Unit, early: _Early, *, by_policy: bool = True
    ) -> dict[str, Value]:
        """What is told of a unit beside the root's options: all that differ."""
        found: dict[str, Value] = {}
        for option in OPTIONS:
            told = getattr(unit, option.name, None)
            if not option.has(unit) or told == getattr(root, option.name):
                continue
            if option.by_policy or not by_policy:
                for argument, value in option.argument(unit, told):
                    found[argument] = early.get((unit.path, option.name), value)
        # They override the root's one by one, so what the unit lacks has to be None.
        own, all_have = (arguments(self.a, u, self._mesh) for u in (unit, root))
        for argument in (own | all_have) if own != all_have else ():
            found[argument] = own.get(argument)
        return found


def _common(plan: Fsdp1Plan) -> Fsdp1Unit:
    """What ``enable_wrap`` says of all units: the root's options, but not what it ignores."""
    root = root_of(plan)
    # What names modules or parameters is made early, and is of one unit alone.
    own = {
        option.name: option.default(root) for option in OPTIONS if option.early and option.has(root)
    }
    return msgspec.structs.replace(root, **own)
