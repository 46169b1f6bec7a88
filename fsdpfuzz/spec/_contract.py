"""What FSDP documents that it refuses, recognised on the case before it runs.

Each message was provoked on torch 2.13.0 with gloo and two ranks; the patterns leave out
what varies (names, sizes).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from fsdpfuzz.spec._case import CaseSpec
from fsdpfuzz.spec._plan import Fsdp1Plan, Fsdp1Unit
from fsdpfuzz.spec._tree import case_places
from fsdpfuzz.spec._units import (
    frozen_names,
    innermost,
    owners_among,
    unit_of,
    units_among,
    within,
)


@dataclass(frozen=True, slots=True)
class Rejection:
    """One documented refusal. ``pattern`` is searched for in the message of the exception."""

    name: str
    why: str
    pattern: str
    source: str
    """Where PyTorch documents it: a docstring, or the check that raises."""

    def matches(self, message: str) -> bool:
        """Whether ``message`` is the documented one."""
        return re.search(self.pattern, message, re.DOTALL) is not None


_FSDP1_DOC = "docstring of FullyShardedDataParallel"

REJECTIONS: dict[str, Rejection] = {
    rejection.name: rejection
    for rejection in (
        Rejection(
            name="fsdp1_mixed_requires_grad",
            why="use_orig_params=False needs all parameters of a unit frozen or none",
            pattern=r"has both parameters with requires_grad=True and False"
            r"|Must flatten tensors with uniform `requires_grad`",
            source=f"{_FSDP1_DOC}: constraints when freezing parameters",
        ),
        Rejection(
            name="fsdp1_mixed_options",
            why="use_orig_params and limit_all_gathers must be the same in all units",
            pattern=r"Expects one homogeneous value for _?(use_orig_params|limit_all_gathers)",
            source="torch/distributed/fsdp/_runtime_utils.py: HOMOGENEOUS_ATTR_NAMES",
        ),
        Rejection(
            name="fsdp1_scalar_parameter",
            why="a 0-dim parameter cannot be sharded",
            pattern=r"FSDP doesn't support scalar parameters",
            source="torch/distributed/fsdp/_init_utils.py: _verify_managed_params",
        ),
        Rejection(
            name="fsdp2_scalar_parameter",
            why="a 0-dim parameter cannot be sharded",
            pattern=r"fully_shard doesn't support scalar parameters",
            source="torch/distributed/fsdp/_fully_shard/_fsdp_init.py: _verify_managed_param",
        ),
        Rejection(
            name="fsdp2_tie_across_units",
            why="a parameter shared by two groups would be sharded twice (refused since 2.12)",
            pattern=r"is shared with a parameter already managed by another FSDP group",
            source="torch/distributed/fsdp/_fully_shard/_fsdp_state.py: "
            "_validate_no_duplicate_params",
        ),
    )
}
"""All documented refusals by name; names begin with the API."""


def foreseen_rejections(case: CaseSpec) -> tuple[Rejection, ...]:
    """The documented refusals that ``case`` asks for; empty for a case that must run."""
    if isinstance(case.plan, Fsdp1Plan):
        names = tuple(_fsdp1(case, case.plan))
    else:
        names = tuple(_fsdp2(case))
    return tuple(REJECTIONS[name] for name in names)


def mixed_units(case: CaseSpec) -> tuple[str, ...]:
    """Paths of the units that manage both frozen and trainable parameters."""
    frozen = frozen_names(case)
    seen: dict[str, set[bool]] = {}
    for fqn, owner in owners_among(case_places(case), case.plan).items():
        if owner is not None:
            seen.setdefault(owner, set()).add(fqn in frozen)
    return tuple(path for path, states in seen.items() if len(states) > 1)


def split_ties(case: CaseSpec) -> tuple[tuple[str, str], ...]:
    """The pairs of units (source's, target's) of the ties that join two different units."""
    owners = owners_among(case_places(case), case.plan)
    pairs = ((owners[tie.source], owners[tie.target]) for tie in case.ties)
    return tuple((a, b) for a, b in pairs if a is not None and b is not None and a != b)


def common_root(units: tuple[str, ...], first: str, second: str) -> bool:
    """Whether two units lie under one outermost unit, which is what FSDP calls the root."""
    return any(within(first, path) and within(second, path) for path in units)


def _fsdp1(case: CaseSpec, plan: Fsdp1Plan) -> Iterator[str]:
    options: dict[str, Fsdp1Unit] = {}
    found = case_places(case)
    units = units_among(found, plan)
    for path in units:
        unit = unit_of(plan, path)
        if isinstance(unit, Fsdp1Unit):
            options[path] = unit
    if any(not options[path].use_orig_params for path in mixed_units(case)):
        yield "fsdp1_mixed_requires_grad"
    outermost = [path for path in units if not any(within(path, u) for u in units if u != path)]
    for top in outermost:
        below = [unit for path, unit in options.items() if innermost(path, {top}) == top]
        if len({(unit.use_orig_params, unit.limit_all_gathers) for unit in below}) > 1:
            yield "fsdp1_mixed_options"
            break
    if _manages_scalar(case):
        yield "fsdp1_scalar_parameter"


def _fsdp2(case: CaseSpec) -> Iterator[str]:
    units = units_among(case_places(case), case.plan)
    if _manages_scalar(case):
        yield "fsdp2_scalar_parameter"
    if any(common_root(units, first, second) for first, second in split_ties(case)):
        yield "fsdp2_tie_across_units"


def _manages_scalar(case: CaseSpec) -> bool:
    found = case_places(case)
    scalars = [p.fqn for place in found for p in place.parameters if not p.shape]
    return bool(scalars) and any(owners_among(found, case.plan)[fqn] is not None for fqn in scalars)
