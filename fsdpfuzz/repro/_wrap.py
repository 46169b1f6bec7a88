"""Checkpointing and FSDP as source, in the order in which the ranks apply them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fsdpfuzz.repro._layout import Call, Expression, call, indented, statement
from fsdpfuzz.repro._model import CLASSES, attribute
from fsdpfuzz.spec import (
    Buffered,
    CaseSpec,
    Checkpoint,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Precision,
    case_places,
)

FSDP = "_fsdp_wrapped_module"
CHECKPOINT = "_checkpoint_wrapped_module"

_FSDP1 = "torch.distributed.fsdp"
_WRAPPER = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
_COMPOSABLE = "torch.distributed._composable.checkpoint_activation"


@dataclass(slots=True)
class Lines:
    """Statements with the names that they import, as ``module:name``."""

    lines: list[str] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)
    depth: int = 0
    """How far in the statements will stand."""

    def add(self, head: str, expression: Expression, tail: str = "") -> None:
        """Appends a statement."""
        self.lines += statement(head, expression, depth=self.depth, tail=tail)

    def need(self, module: str, *names: str) -> None:
        """Notes imports."""
        self.imports.update(f"{module}:{name}" for name in names)


@dataclass(slots=True)
class _Wraps(Lines):
    around: dict[str, list[str]] = field(default_factory=dict)
    """Attributes that lead from what stands at a path to the plain module, outermost first."""

    def replace(self, path: str, expression: Expression, by: str) -> None:
        """Puts a module around what is at ``path``."""
        owner, _, name = path.rpartition(".")
        if not path:
            place = "model"
        else:
            inside = "".join(f".{part}" for part in self.around.get(owner, ()))
            place = attribute(name, root=attribute(owner) + inside)
        self.add(f"{place} = ", expression)
        self.around.setdefault(path, []).insert(0, by)


def in_attribute(case: CaseSpec) -> frozenset[str]:
    """Paths of the modules that say by an attribute that their caller is to recompute them."""
    units = {unit.path for unit in case.plan.units}
    return frozenset(
        c.path
        for c in case.checkpoints
        if c.kind == "function_offload"
        or (c.kind == "function" and not (c.path in units and c.side == "inside"))
    )


def recomputes(case: CaseSpec) -> bool:
    """Whether the reference has to recompute, too, to come to the same result."""
    return any(c.reentrant for c in case.checkpoints) or any(
        isinstance(place.node, Buffered) and place.node.updates for place in case_places(case)
    )


def checkpointed(case: CaseSpec, depth: int) -> Lines:
    """Checkpoints on a replica, which has no units."""
    wraps = _Wraps(depth=depth)
    attributes = in_attribute(case)
    for checkpoint in case.checkpoints:
        if checkpoint.kind != "offload":
            _place(wraps, checkpoint, inside_unit=checkpoint.path not in attributes)
    return wraps


def sharded(case: CaseSpec, depth: int) -> Lines:
    """Checkpoints and units."""
    wraps = _Wraps(depth=depth)
    if isinstance(case.plan, Fsdp2Plan):
        _fsdp2(wraps, case, case.plan)
    elif case.plan.wrap == "nested":
        _nested(wraps, case, case.plan)
    else:
        _policy(wraps, case, case.plan)
    return wraps


def _place(wraps: _Wraps, checkpoint: Checkpoint, *, inside_unit: bool) -> None:
    target = attribute(checkpoint.path)
    match checkpoint.kind:
        case "wrapper":
            wraps.need(_WRAPPER, "checkpoint_wrapper")
            args = [target]
            if checkpoint.reentrant:
                wraps.need(_WRAPPER, "CheckpointImpl")
                args.append("CheckpointImpl.REENTRANT")
            wraps.replace(checkpoint.path, call("checkpoint_wrapper", *args), CHECKPOINT)
        case "offload":
            wraps.need(_WRAPPER, "offload_wrapper")
            wraps.replace(checkpoint.path, call("offload_wrapper", target), CHECKPOINT)
        case "composable":
            wraps.need(_COMPOSABLE, "checkpoint as checkpoint_in_place")
            wraps.add("", call("checkpoint_in_place", target))
        case "function" if inside_unit:
            wraps.need("functools", "partial")
            wraps.need("torch.utils.checkpoint", "checkpoint")
            how = f"use_reentrant={checkpoint.reentrant}"
            wraps.add(
                f"{target}.forward = ", call("partial", "checkpoint", f"{target}.forward", how)
            )
        case _:
            offload = checkpoint.kind == "function_offload"
            options = f'{{"reentrant": {checkpoint.reentrant}, "offload": {offload}}}'
            wraps.add(f"{target}.recompute = ", options)


def _nested(wraps: _Wraps, case: CaseSpec, plan: Fsdp1Plan) -> None:
    paths = {unit.path for unit in plan.units}
    wraps.need(_FSDP1, "FullyShardedDataParallel as FSDP")
    for unit in plan.units:  # looked up before anything is wrapped
        if unit.ignored:
            modules = ", ".join(attribute(path) for path in unit.ignored)
            wraps.add(f"{_ignored_name(unit)} = ", f"[{modules}]")
    for checkpoint in case.checkpoints:
        if checkpoint.path not in paths:
            _place(wraps, checkpoint, inside_unit=False)
    for unit in sorted(plan.units, key=_depth, reverse=True):
        here = [c for c in case.checkpoints if c.path == unit.path]
        for checkpoint in here:
            if checkpoint.side == "inside":
                _place(wraps, checkpoint, inside_unit=True)
        options = [*_options(wraps, unit), "device_id=device"]
        if unit.ignored:
            options.append(f"ignored_modules={_ignored_name(unit)}")
        wraps.replace(unit.path, call("FSDP", attribute(unit.path), *options), FSDP)
        for checkpoint in here:
            if checkpoint.side == "around":
                _place(wraps, checkpoint, inside_unit=False)


def _policy(wraps: _Wraps, case: CaseSpec, plan: Fsdp1Plan) -> None:
    paths = {unit.path for unit in plan.units}
    root = next(unit for unit in plan.units if not unit.path)
    wraps.need(_FSDP1, "FullyShardedDataParallel as FSDP")
    ignored = [attribute(path) for path in root.ignored]
    if ignored:
        wraps.add("ignored = ", f"[{', '.join(ignored)}]")
    for checkpoint in case.checkpoints:
        inside = checkpoint.side == "inside" and checkpoint.path in paths
        if checkpoint.path or inside:
            _place(wraps, checkpoint, inside_unit=inside)
    if plan.wrap == "module_classes":
        wraps.need("torch.distributed.fsdp.wrap", "ModuleWrapPolicy")
        policy = call("ModuleWrapPolicy", _classes(case, plan))
    else:
        wraps.need("torch.distributed.fsdp.wrap", "CustomPolicy")
        _named(wraps, case, plan, root)
        policy = call("CustomPolicy", "lambda module: units.get(module, False)")
    options = [*_options(wraps, root), "device_id=device"]
    if ignored:
        options.append("ignored_modules=ignored")
    by = Call(f"auto_wrap_policy={policy.name}", policy.args)
    wraps.replace("", call("FSDP", "model", by, *options), FSDP)
    for checkpoint in case.checkpoints:
        if not checkpoint.path and checkpoint.side == "around":
            _place(wraps, checkpoint, inside_unit=False)


def _classes(case: CaseSpec, plan: Fsdp1Plan) -> Expression:
    kinds = {place.kind for place in case_places(case)}
    names = [
        name
        for kind in plan.classes
        for name in CLASSES[kind]
        if kind in kinds or name.startswith("nn.")
    ]
    return Call("", tuple(names), "{}") if names else "set()"


def _named(wraps: _Wraps, case: CaseSpec, plan: Fsdp1Plan, root: Fsdp1Unit) -> None:
    items = []
    for unit in plan.units:
        if not unit.path:
            continue
        around = any(
            c.path == unit.path and c.side == "around" and c.kind in ("wrapper", "offload")
            for c in case.checkpoints
        )
        module = attribute(unit.path) + (f".{CHECKPOINT}" if around else "")
        own = dict(_overrides(wraps, unit))
        outer = dict(_overrides(wraps, root))
        text = ", ".join(f'"{key}": {value}' for key, value in own.items() if outer[key] != value)
        if "BackwardPrefetch." in text:
            wraps.need(_FSDP1, "BackwardPrefetch")
        items.append(f"{module}: {{{text}}}" if text else f"{module}: True")
    wraps.add("units = ", Call("", tuple(items), "{}"))


def _options(wraps: Lines, unit: Fsdp1Unit) -> Iterator[str]:
    """Arguments that differ from PyTorch's defaults."""
    defaults = dict(_overrides(Lines(), Fsdp1Unit(path="")))
    for key, value in _overrides(wraps, unit):
        if value != defaults[key]:
            yield f"{key}={value}"
    if unit.use_orig_params:
        yield "use_orig_params=True"
    if not unit.limit_all_gathers:
        yield "limit_all_gathers=False"


def _overrides(wraps: Lines, unit: Fsdp1Unit) -> Iterator[tuple[str, str]]:
    yield "sharding_strategy", f"ShardingStrategy.{unit.sharding}"
    if unit.sharding != "FULL_SHARD":
        wraps.need(_FSDP1, "ShardingStrategy")
    prefetch = unit.backward_prefetch
    yield "backward_prefetch", f"BackwardPrefetch.{prefetch}" if prefetch else "None"
    if prefetch == "BACKWARD_POST":
        wraps.need(_FSDP1, "BackwardPrefetch")
    yield "forward_prefetch", f"{unit.forward_prefetch}"
    yield "cpu_offload", f"CPUOffload(offload_params={unit.cpu_offload})"
    if unit.cpu_offload:
        wraps.need(_FSDP1, "CPUOffload")
    yield "mixed_precision", _precision(wraps, "MixedPrecision", unit.precision)


def _fsdp2(wraps: _Wraps, case: CaseSpec, plan: Fsdp2Plan) -> None:
    paths = {unit.path for unit in plan.units}
    wraps.need(_FSDP1, "fully_shard")
    for unit in plan.units:
        if unit.ignored:
            parts = [f"*{attribute(path)}.parameters()" for path in unit.ignored]
            wraps.add(f"{_ignored_name(unit)} = ", Call("", tuple(parts), "{}"))
    for checkpoint in case.checkpoints:
        if checkpoint.path not in paths:
            _place(wraps, checkpoint, inside_unit=False)
    checkpoints = {c.path for c in case.checkpoints}
    alike: list[Fsdp2Unit] = []
    for unit in sorted(plan.units, key=_depth, reverse=True):
        if alike and (unit.path in checkpoints or not _alike(alike[0], unit)):
            _shard(wraps, alike)
            alike = []
        alike.append(unit)
        if unit.path in checkpoints:
            here = [c for c in case.checkpoints if c.path == unit.path]
            for checkpoint in here:
                if checkpoint.side == "inside":
                    _place(wraps, checkpoint, inside_unit=True)
            _shard(wraps, alike)
            alike = []
            for checkpoint in here:
                if checkpoint.side == "around":
                    _place(wraps, checkpoint, inside_unit=False)
    _shard(wraps, alike)


def _shard(wraps: _Wraps, units: list[Fsdp2Unit]) -> None:
    if not units:
        return
    options = list(_options2(wraps, units[0]))
    if len(units) < 3:
        for unit in units:
            wraps.add("", call("fully_shard", attribute(unit.path), "mesh=mesh", *options))
        return
    modules = call("", *(attribute(unit.path) for unit in units))
    wraps.add("for module in ", modules, ":")
    each = call("fully_shard", "module", "mesh=mesh", *options)
    inner = statement("", each, depth=wraps.depth + 1)
    wraps.lines += indented(inner)


def _options2(wraps: Lines, unit: Fsdp2Unit) -> Iterator[str]:
    if unit.reshard_after_forward is not None:
        yield f"reshard_after_forward={unit.reshard_after_forward}"
    if unit.precision is not None:
        yield f"mp_policy={_precision(wraps, 'MixedPrecisionPolicy', unit.precision)}"
    if unit.cpu_offload:
        wraps.need(_FSDP1, "CPUOffloadPolicy")
        yield "offload_policy=CPUOffloadPolicy(pin_memory=torch.cuda.is_available())"
    if unit.ignored:
        yield f"ignored_params={_ignored_name(unit)}"


def _alike(first: Fsdp2Unit, second: Fsdp2Unit) -> bool:
    return list(_options2(Lines(), first)) == list(_options2(Lines(), second))


def _precision(wraps: Lines, name: str, precision: Precision | None) -> str:
    if precision is None:
        return "None"
    wraps.need(_FSDP1, name)
    kinds = (("param", precision.param), ("reduce", precision.reduce), ("buffer", precision.buffer))
    return (
        f"{name}(" + ", ".join(f"{key}_dtype=torch.{dtype}" for key, dtype in kinds if dtype) + ")"
    )


def _ignored_name(unit: Fsdp1Unit | Fsdp2Unit) -> str:
    return "ignored_" + (unit.path.replace(".", "_") or "root")


def _depth(unit: Fsdp1Unit | Fsdp2Unit) -> int:
    return len(unit.path.split(".")) if unit.path else 0
