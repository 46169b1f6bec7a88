"""How deep a check of somebody's own model goes, and what is wrong before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import msgspec

from fsdpfuzz.case import (
    APIS,
    Api,
    CaseSpec,
    Fsdp1Plan,
    Given,
    Imported,
    Plan,
    Tie,
    anatomy,
    foreseen_rejections,
    innermost,
    is_sound,
    join,
)
from fsdpfuzz.case.units.grouped import together
from fsdpfuzz.errors import UsageError
from fsdpfuzz.own._accelerate import Sections, configured, read_configuration
from fsdpfuzz.own._room import room_for
from fsdpfuzz.pool import Interpreter, Seen, look_at
from fsdpfuzz.wire import Target

Depth = Literal["as_is", "around", "anyhow"]
DEPTHS: tuple[Depth, ...] = get_args(Depth)
OWN_PROPERTIES: dict[Depth, tuple[str, ...]] = {
    "as_is": ("parity", "state_dict", "memory"),
    "around": ("parity", "state_dict", "fine_tune"),
    "anyhow": ("parity", "state_dict", "checkpoint", "fine_tune", "memory"),
}
"""All but the order of execution, of which nothing is known in a model of somebody's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A check of a target: what is drawn, and what its owner is told beforehand."""

    model: Imported
    plan: Plan | None
    depth: Depth
    apis: tuple[Api, ...]
    words: tuple[str, ...]
    """Its own program."""
    notes: tuple[str, ...]
    mistakes: tuple[str, ...]
    """What its code does wrong, each named."""
    stuck: bool
    """Whether a mistake keeps ranks from training at all."""

    @property
    def properties(self) -> tuple[str, ...]:
        """The names of those that are looked at."""
        return OWN_PROPERTIES[self.depth]

    @property
    def around(self) -> bool:
        """Whether what its own code wraps is changed a little."""
        return self.depth == "around"


def task_of(
    target: Target,
    world_size: int,
    python: Interpreter | None = None,
    *,
    depth: Depth | None = None,
    config: Path | None = None,
    on_gpus: bool = False,
    apis: Sequence[Api] = APIS,
    origin: str = "--{}",
) -> Task:
    """Looks at a target in processes of its own; without a depth the deepest that it allows.

    Raises :class:`UsageError` in words about its code where that cannot be checked. ``origin`` is
    how a depth was asked for, with ``{}`` for it. With a ``config`` of accelerate's, that says how
    the model is wrapped, in place of ``shard``. :class:`MachineError` where it will not fit into
    memory, unless ranks are ``on_gpus``.
    """
    if config is not None and depth == "anyhow":
        raise UsageError(
            f"--config: {str(config)!r} says how to wrap, --anyhow draws that: give one"
        )
    wraps = depth != "anyhow" and config is None
    # First of all: a file that cannot be read costs no look.
    read = None if config is None else read_configuration(config)
    section = None if read is None else read.own
    seen = look_at(target, world_size, python, wrapped=wraps, configuration=section)
    # Before any rank is started: the kernel would end one that takes too much, and say nothing.
    if not on_gpus and (room := room_for(seen.model, world_size)):
        seen = replace(seen, notes=(*seen.notes, room))
    asked = origin.format(depth.replace("_", "-")) if depth is not None else ""
    if read is not None:
        return _configured(target, seen, read, depth or "around", apis, world_size)
    if depth not in (None, "anyhow") and "shard" not in seen.functions:
        raise UsageError(
            f"{asked}: there is no function shard() in {target.title}: shard(model, mesh) wraps "
            "the model by fully_shard or FullyShardedDataParallel; anyhow does without"
        )
    if seen.refused:
        raise UsageError(
            f"{target.title}: FSDP refuses to train the model as shard(model, mesh) wraps it: "
            f"{seen.refused}"
        )
    allowed = tuple(apis)
    if seen.plan is None and (scalar := _scalar(seen.model)):
        raise UsageError(
            f"{target.title}: parameter {scalar!r} is a scalar, which FSDP refuses: make it one of "
            "one element, as torch.ones(1)"
        )
    if seen.plan is not None:
        own: Api = "fsdp1" if isinstance(seen.plan, Fsdp1Plan) else "fsdp2"
        if own not in allowed:
            raise UsageError(f"api {allowed[0]!r}: but shard(model, mesh) uses {own}")
        allowed = (own,)
    return Task(
        model=seen.model,
        plan=seen.plan,
        depth=depth or ("anyhow" if seen.plan is None else "around"),
        apis=allowed,
        words=seen.program,
        notes=seen.notes,
        mistakes=(*seen.mistakes, *advice(seen)),
        stuck=seen.stuck,
    )


def _configured(
    target: Target, seen: Seen, read: Sections, depth: Depth, apis: Sequence[Api], world_size: int
) -> Task:
    made = configured(read, seen.model, world_size, seen.accelerated)
    api: Api = "fsdp1" if isinstance(made.plan, Fsdp1Plan) else "fsdp2"
    if api not in apis:
        raise UsageError(f"api {apis[0]!r}: but {read.path} asks for {api}")
    mesh = made.mesh
    sizes = None if mesh is None else (mesh.replicate, mesh.shard)
    model = msgspec.structs.replace(seen.model, mesh=sizes)
    seen = replace(seen, plan=made.plan, model=model)
    case = CaseSpec(
        world_size=world_size,
        model=model,
        mesh=mesh,
        inputs=Given(),
        plan=made.plan,
        program=(),
        ties=tuple(Tie(source=source, target=other) for source, other in model.ties),
        frozen=model.own_frozen,
        loss="projection" if model.loss == "all" else "own",
    )
    refused = [r.why for r in foreseen_rejections(anatomy(case))] if is_sound(case) else []
    if refused:
        raise UsageError(f"{target.title}: FSDP refuses what {read.path} asks for: {refused[0]}")
    return Task(
        model=model,
        plan=made.plan,
        depth=depth,
        apis=(api,),
        words=seen.program,
        notes=(*seen.notes, *made.notes),
        mistakes=(*seen.mistakes, *advice(seen)),
        stuck=seen.stuck,
    )


def advice(seen: Seen) -> Iterator[str]:
    """What FSDP's documentation says against the plan of a target."""
    units = _units(seen)
    for source, target in seen.model.ties if units else ():
        first, second = (_unit_of(n, units) for n in (source, target))
        if first != second:
            lie_in = " and ".join(_unit(path) for path in (first, second))
            yield (
                f"{source} and {target} are one parameter, but lie in {lie_in}: FSDP needs both in "
                "one unit. Make no unit of the modules that hold them, so that the unit around "
                "both has it"
            )
    for fqn in _unmanaged(seen, units) if units else ():
        yield (
            f"{fqn} lies in no unit: FSDP does not average its gradient over ranks. Make the whole "
            "model a unit last"
        )
    ignored = list(_ignored(seen))
    if ignored:
        more = f" and {len(ignored) - 1} more" if len(ignored) > 1 else ""
        yield (
            f"{ignored[0]}{more} is trained, but the unit around it was told to ignore it: FSDP "
            "does not average its gradient over ranks. Freeze it, or average it before each step"
        )


def _scalar(model: Imported) -> str:
    """The first parameter without a dimension; empty for none."""
    found = (join(m.path, p.name) for m in model.modules for p in m.parameters if not p.shape)
    return next(found, "")


def _units(seen: Seen) -> dict[str, str]:
    """For each module that is one, or one of several that are, the FQN of the unit."""
    units = () if seen.plan is None else seen.plan.units
    return {path: unit.path for unit in units for path in together(unit)}


def _unit_of(fqn: str, units: Mapping[str, str]) -> str | None:
    path = innermost(fqn.rpartition(".")[0], units)
    return None if path is None else units[path]


def _ignored(seen: Seen) -> Iterator[str]:
    """Parameters that their units leave alone, and a backward gives a gradient."""
    used = {fqn for module in seen.model.modules for fqn in module.fqns(used=True)}
    trained = used.difference(seen.model.own_frozen)
    for unit in () if seen.plan is None else seen.plan.units:
        yield from (fqn for fqn in unit.ignored_parameters if fqn in trained)


def _unmanaged(seen: Seen, units: Mapping[str, str]) -> Iterator[str]:
    for module in seen.model.modules:
        if module.parameters and innermost(module.path, units) is None:
            yield join(module.path, module.parameters[0].name)
            return


def _unit(path: str | None) -> str:
    if path is None:
        return "no unit"
    return f"unit {path!r}" if path else "the root's unit"
