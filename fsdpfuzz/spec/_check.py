"""What a case must not contradict, beyond types and ranges. The first fault found is raised."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fsdpfuzz.errors import CaseError
from fsdpfuzz.spec._case import CaseSpec
from fsdpfuzz.spec._model import Repeat, Switch
from fsdpfuzz.spec._plan import Checkpoint, Fsdp1Plan, Fsdp1Unit, Fsdp2Plan, Fsdp2Unit, Plan
from fsdpfuzz.spec._program import (
    Backward,
    Flip,
    Forward,
    RequiresGrad,
    StateDict,
    Step,
    ZeroGrad,
)
from fsdpfuzz.spec._tree import MAX_NODES, Place, case_places, join, rows_after
from fsdpfuzz.spec._units import owners_among


def check(case: CaseSpec) -> None:
    """Raises :class:`CaseError` with the JSON path of the first contradiction."""
    found = case_places(case)
    rows_after(case.model)
    if len(found) > MAX_NODES:
        raise CaseError(f"{len(found)} modules; at most {MAX_NODES} are accepted", path="$.model")
    shapes = {p.fqn: p.shape for place in found for p in place.parameters}
    _check_names(case.frozen, shapes, "$.frozen", "parameter")
    _check_names(case.held_out, shapes, "$.held_out", "parameter")
    _check_ties(case, shapes)
    modules = {place.path for place in found}
    _check_plan(case.plan, modules, case.world_size, "$.plan")
    _check_second_calls(found, case.plan, "$.plan")
    _check_checkpoints(case.checkpoints, modules, "$.checkpoints")
    _check_program(case, found, shapes)
    _check_probes(case)
    for i, twin in enumerate(case.twins):
        at = f"$.twins[{i}]"
        _check_names(twin.held_out, shapes, f"{at}.held_out", "parameter")
        _check_names(twin.frozen or (), shapes, f"{at}.frozen", "parameter")
        _check_checkpoints(twin.checkpoints or (), modules, f"{at}.checkpoints")
        if twin.plan is not None:
            _check_plan(twin.plan, modules, case.world_size, f"{at}.plan")
            _check_second_calls(found, twin.plan, f"{at}.plan")


def _check_names(names: Sequence[str], known: Iterable[str], at: str, what: str) -> None:
    known = set(known)
    for i, name in enumerate(names):
        if name not in known:
            raise CaseError(f"the model has no {what} {name!r}", path=f"{at}[{i}]")
        if name in names[:i]:
            raise CaseError(f"{name!r} stands here twice", path=f"{at}[{i}]")


def _check_ties(case: CaseSpec, shapes: dict[str, tuple[int, ...]]) -> None:
    targets = [tie.target for tie in case.ties]
    for i, tie in enumerate(case.ties):
        at = f"$.ties[{i}]"
        _check_names((tie.source, tie.target), shapes, at, "parameter")
        if tie.source in targets or targets.count(tie.target) > 1:
            raise CaseError(f"{tie.source!r} -> {tie.target!r} chains two ties", path=at)
        if shapes[tie.source] != shapes[tie.target]:
            raise CaseError(
                f"shapes differ: {tie.source!r} is {list(shapes[tie.source])}, "
                f"{tie.target!r} is {list(shapes[tie.target])}",
                path=at,
            )
        if tie.target in case.frozen and tie.source not in case.frozen:
            raise CaseError(f"freeze the source of a tie, {tie.source!r}, not its target", path=at)


def _check_plan(plan: Plan, modules: set[str], world_size: int, at: str) -> None:
    units: tuple[Fsdp1Unit | Fsdp2Unit, ...] = plan.units
    paths = [unit.path for unit in units]
    _check_names(paths, modules, f"{at}.units", "module")
    for i, unit in enumerate(units):
        _check_names(unit.ignored, modules, f"{at}.units[{i}].ignored", "module")
    if isinstance(plan, Fsdp1Plan):
        if plan.wrap != "nested" and "" not in paths:
            raise CaseError(f"wrap={plan.wrap!r} starts from the root: add a unit ''", path=at)
        if plan.wrap == "module_classes" and len(paths) != 1:
            raise CaseError("wrap='module_classes' finds the units; list the root alone", path=at)
        if bool(plan.classes) != (plan.wrap == "module_classes"):
            raise CaseError("classes go with wrap='module_classes', and only there", path=at)
        return
    for i, unit in enumerate(plan.units):
        size = unit.reshard_after_forward
        if not isinstance(size, bool) and size is not None and world_size % size:
            raise CaseError(
                f"reshard_after_forward={size} does not divide world_size={world_size}",
                path=f"{at}.units[{i}].reshard_after_forward",
            )


def _check_second_calls(found: Sequence[Place], plan: Plan, at: str) -> None:
    """A unit's parameters are whole only while the unit's own forward runs.

    ``no_grad='first_child'`` calls the first child of the body outside the body's forward, so
    the body, as a unit, must not own what lies in that child.
    """
    owners = owners_among(found, plan)
    for place in found:
        if isinstance(place.node, Repeat) and place.node.no_grad == "first_child":
            body = join(place.path, "body")
            first = join(body, "0.")
            if any(owner == body for fqn, owner in owners.items() if fqn.startswith(first)):
                raise CaseError(
                    f"{body!r} is a unit and owns parameters of its first child, which is also "
                    "called on its own: make that child a unit",
                    path=at,
                )


def _check_checkpoints(checkpoints: Sequence[Checkpoint], modules: set[str], at: str) -> None:
    _check_names([checkpoint.path for checkpoint in checkpoints], modules, at, "module")
    for i, checkpoint in enumerate(checkpoints):
        if checkpoint.reentrant and checkpoint.kind in ("offload", "composable"):
            raise CaseError(f"kind={checkpoint.kind!r} has no reentrant form", path=f"{at}[{i}]")


def _check_program(
    case: CaseSpec, found: Sequence[Place], shapes: dict[str, tuple[int, ...]]
) -> None:
    switches = {place.path for place in found if isinstance(place.node, Switch)}
    widths = {place.path: place.width_in for place in found}
    pending: list[bool] = []
    for i, op in enumerate(case.program):
        at = f"$.program[{i}]"
        if isinstance(op, Forward) and op.target:
            _check_names((op.target,), widths, f"{at}.target", "module")
            if widths[op.target] != widths[""]:
                raise CaseError(
                    f"{op.target!r} takes width {widths[op.target]}, the inputs have {widths['']}",
                    path=f"{at}.target",
                )
        match op:
            case StateDict():
                _check_state_dict(case, op, at)
            case Forward(grad=True, drop=False):
                pending.append(op.sync)
                if len(set(pending)) > 1:
                    raise CaseError("forwards before one backward must agree on sync", path=at)
            case Backward():
                if not pending:
                    raise CaseError("backward without a pending forward", path=at)
                pending.clear()
            case Step() if case.optimizer is None:
                raise CaseError("step without an optimizer", path=at)
            case RequiresGrad():
                _check_names(op.parameters, shapes, f"{at}.parameters", "parameter")
            case Flip():
                _check_names((op.path,), switches, at, "switch")
                if any(rank >= case.world_size for rank in op.ranks):
                    raise CaseError(
                        f"ranks {list(op.ranks)} exceed world_size={case.world_size}", path=at
                    )
            case _:
                pass


def _check_state_dict(case: CaseSpec, op: StateDict, at: str) -> None:
    plans = (case.plan, *(twin.plan for twin in case.twins))
    if op.form == "local" and any(isinstance(plan, Fsdp2Plan) for plan in plans):
        raise CaseError("fsdp2 has no form='local'; use 'sharded'", path=f"{at}.form")
    if op.rank0_only and op.form != "full":
        raise CaseError(f"form={op.form!r} is on every rank", path=f"{at}.rank0_only")


def _check_probes(case: CaseSpec) -> None:
    if "mem_tracker" not in case.probes:
        return
    if not isinstance(case.plan, Fsdp2Plan) or all(unit.path for unit in case.plan.units):
        raise CaseError("mem_tracker needs an fsdp2 plan with the root as a unit", path="$.probes")
    if any(not c.path and c.side == "around" for c in case.checkpoints):
        raise CaseError("mem_tracker needs the root bare: no checkpoint around it", path="$.probes")
    if case.twins:
        raise CaseError("mem_tracker measures one plan; leave out the twins", path="$.probes")
    for i, op in enumerate(case.program):
        if not isinstance(op, Forward | Backward | Step | ZeroGrad) or not getattr(op, "grad", 1):
            raise CaseError(
                "mem_tracker runs forward, backward, step and zero_grad only",
                path=f"$.program[{i}]",
            )
