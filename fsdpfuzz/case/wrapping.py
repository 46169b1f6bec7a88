"""How a plan's units and a case's checkpoints are put into the model, as statements of a recipe."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from fsdpfuzz.case import meta_init
from fsdpfuzz.case.anatomy import Anatomy
from fsdpfuzz.case.checkpoints import reference_recomputes
from fsdpfuzz.case.dimensions import DIMENSIONS
from fsdpfuzz.case.divide_factor import told
from fsdpfuzz.case.modules import CLASSES
from fsdpfuzz.case.paths import depth, join
from fsdpfuzz.case.recipe import (
    MODEL,
    Do,
    Global,
    Inside,
    Items,
    Procedure,
    Statement,
    Value,
    Variable,
    call,
)
from fsdpfuzz.case.units import OPTIONS
from fsdpfuzz.case.units.sharding import arguments
from fsdpfuzz.case.wrap import Fsdp1Plan, Unit

FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"
FSDP2 = "torch.distributed.fsdp.fully_shard"
_DEVICE = Variable("device")


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
        body: list[Statement] = [*meta_init.emptied(self.a)]
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
        body += meta_init.filled(self.a)
        return Procedure(name="shard", parameters=("model",), body=tuple(body), result="model")

    def before(self) -> Iterator[Do]:
        """The checkpoints, where the target of an imported model wraps what they lie in."""
        for path in sorted({c.path for c in self.a.case.checkpoints}, key=depth, reverse=True):
            yield from self._placed(path, "inside")

    @property
    def _has_policy(self) -> bool:
        return isinstance(self.a.plan, Fsdp1Plan) and self.a.plan.wrap != "nested"

    def _by_hand(self, early: dict[tuple[str, str], Variable]) -> Iterator[Statement]:
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
        # Last of all: the setters of ``FSDPModule`` go through ``modules()``, and reach what is
        # there.
        yield from self._told()

    def _told(self) -> Iterator[Statement]:
        """What units are told once all of them are made."""
        for path in () if self.a.fsdp1 else self.a.roots:
            for dimension in DIMENSIONS:
                yield from dimension.told(self.a, Inside("model", path) if path else MODEL)

    def _placed(self, path: str, side: str) -> Iterator[Do]:
        """The checkpoints at a module, on one side of its unit; without one ``inside``."""
        who = "both" if reference_recomputes(self.a) else "fsdp"
        listed = self.a.unit_at.get(path) in {unit.path for unit in self.a.plan.units}
        for checkpoint in self.a.case.checkpoints:
            own = checkpoint.side if listed else "inside"
            if checkpoint.path == path and own == side:
                do = checkpoint.placed(self.a)
                offload = not checkpoint.recomputes
                yield Do(call=do.call, into=do.into, who="fsdp" if offload else who)  # type: ignore[arg-type]

    def _wrapped(self, unit: Unit, early: dict[tuple[str, str], Variable]) -> Do:
        target = Inside("model", unit.path) if unit.path else MODEL
        options = self._options(unit, early)
        if self.a.fsdp1:
            made = call(FSDP1, target, **options, device_id=_DEVICE)
            return Do(call=made, into=(target,), who="fsdp")
        modules = tuple(Inside("model", path) for path in self.a.modules_of(unit.path))
        given = Items("list", modules) if len(modules) > 1 else target
        return Do(call=call(FSDP2, given, **options), who="fsdp")

    def _options(self, unit: Unit, early: dict[tuple[str, str], Variable]) -> dict[str, Value]:
        """The arguments that differ from PyTorch's defaults."""
        found = arguments(self.a, unit, self._mesh) | meta_init.arguments(self.a)
        for option in OPTIONS:
            if not option.has(unit) or getattr(unit, option.name) == option.default(unit):
                continue
            for argument, value in option.argument(unit, getattr(unit, option.name)):
                found[argument] = early.get((unit.path, option.name), value)
        return found

    def _policy(self, early: dict[tuple[str, str], Variable]) -> Iterator[Statement]:
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
        if isinstance(plan, Fsdp1Plan) and plan.wrap == "module_classes":
            names = [
                Global(name)
                for kind in plan.classes
                for name in CLASSES[kind]
                if name in self._classes or name.startswith("torch.")
            ]
            return call("torch.distributed.fsdp.wrap.ModuleWrapPolicy", Items("set", tuple(names)))
        chosen: list[Value] = []
        for unit in plan.units:
            if not unit.path:
                continue
            path = unit.path
            if any(
                c.path == path and c.side == "around" and c.wraps for c in self.a.case.checkpoints
            ):
                # ``CustomPolicy`` goes by the module object, which lies in the wrapper by now.
                path = join(path, "_checkpoint_wrapped_module")
            own = self._overrides(unit, root)
            chosen += [Inside("model", path), Items("dict", own) if own else True]
        return call("steps.fsdp1.policy.chosen", Items("dict", tuple(chosen)))

    def _overrides(self, unit: Unit, root: Unit) -> tuple[Value, ...]:
        """What a policy says of a unit: the options that differ from the root's."""
        found: list[Value] = []
        for option in OPTIONS:
            if (
                option.by_policy
                and option.has(unit)
                and getattr(unit, option.name) != getattr(root, option.name)
            ):
                for argument, value in option.argument(unit, getattr(unit, option.name)):
                    found += [argument, value]
        # A kwargs dict overrides the root's one by one, so what the unit lacks has to be None in
        # it.
        own, all_have = (arguments(self.a, u, self._mesh) for u in (unit, root))
        for argument in (own | all_have) if own != all_have else ():
            found += [argument, own.get(argument)]
        return tuple(found)
