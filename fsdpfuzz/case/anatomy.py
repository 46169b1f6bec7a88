"""What follows from a case, computed once and passed on: places, units, owners, flow."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import islice

import msgspec

from fsdpfuzz.case.flow import MAX_CALLS, Situation, requires, situations
from fsdpfuzz.case.modules import TOKENS, Called, Imported, Parameter, Place, Switch, Walk
from fsdpfuzz.case.operations import Forward, Op
from fsdpfuzz.case.paths import innermost, join, within
from fsdpfuzz.case.policies import root_of
from fsdpfuzz.case.spec import CaseSpec
from fsdpfuzz.case.tree import places_of
from fsdpfuzz.case.units.precision import in_full, kept_out
from fsdpfuzz.case.units.replicas import belongs_to, roots_of
from fsdpfuzz.case.units.sharding import shards
from fsdpfuzz.case.wrap import (
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Unit,
    Plan,
    Unit,
    unit_of,
    unit_paths,
)


class Anatomy:
    """A case with all that follows from it. Get it by `anatomy`; nothing in it is changed."""

    def __init__(self, case: CaseSpec) -> None:
        self.case = case
        self.plan: Plan = case.plan
        self.api = case.api
        self._calls: dict[tuple[int, int], tuple[Called, ...]] = {}
        self.told: dict[tuple[str, str], Mapping[str, str]] = {}
        """Features that were asked for before, which is for each known defect (`features`)."""

    @property
    def fsdp1(self) -> bool:
        """Whether the API is ``FullyShardedDataParallel``."""
        return isinstance(self.plan, Fsdp1Plan)

    @property
    def policy(self) -> Fsdp1Plan | None:
        """The plan, if one call on the root makes all units by a policy."""
        plan = self.plan
        return plan if isinstance(plan, Fsdp1Plan) and plan.by_policy else None

    @property
    def imported(self) -> Imported | None:
        """The model, if it is somebody's own: nothing is known of what it computes."""
        model = self.case.model
        return model if isinstance(model, Imported) else None

    @cached_property
    def width_in(self) -> int:
        """Width of the inputs; `TOKENS` when they are tokens."""
        return self.case.inputs.width_out()

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """All modules, parents before children, as ``named_modules`` orders them."""
        return places_of(self.case.model, self.width_in)

    @cached_property
    def by_path(self) -> dict[str, Place]:
        """The places by FQN."""
        return {place.path: place for place in self.places}

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The kinds of module that occur."""
        return frozenset(place.kind for place in self.places)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """All parameters in the order of ``named_parameters``, ties not yet applied."""
        return tuple(p for place in self.places for p in place.parameters)

    @cached_property
    def by_fqn(self) -> dict[str, Parameter]:
        """The parameters by FQN."""
        return {parameter.fqn: parameter for parameter in self.parameters}

    @cached_property
    def source(self) -> dict[str, str]:
        """For each target of a tie the parameter that it is."""
        return {tie.target: tie.source for tie in self.case.ties}

    @cached_property
    def changed_buffers(self) -> frozenset[str]:
        """FQNs of the buffers that a forward changes."""
        return frozenset(
            join(place.path, name)
            for place in self.places
            if place.node is not None
            for name in place.node.changed_buffers()
        )

    @cached_property
    def running_buffers(self) -> frozenset[str]:
        """FQNs of those among them that a forward reads in eval mode."""
        return frozenset(
            join(place.path, name)
            for place in self.places
            if place.node is not None
            for name in place.node.running_buffers()
        )

    @cached_property
    def distinct(self) -> tuple[Parameter, ...]:
        """The parameters, each tied one once, by the name of the tie's source."""
        used = {self.canonical(p.fqn) for p in self.parameters if p.used}
        found = (p for p in self.parameters if p.fqn not in self.source)
        return tuple(replace(p, used=p.fqn in used) for p in found)

    def canonical(self, fqn: str) -> str:
        """The FQN under which the reference knows a parameter."""
        return self.source.get(fqn, fqn)

    def canonical_names(self, names: Sequence[str]) -> tuple[str, ...]:
        """The names, those of tied parameters by their source, each once."""
        return tuple(dict.fromkeys(self.canonical(name) for name in names))

    @cached_property
    def frozen(self) -> frozenset[str]:
        """FQNs of the parameters without ``requires_grad`` at the start, tie targets included."""
        frozen = set(self.case.frozen)
        frozen.update(target for target, source in self.source.items() if source in frozen)
        return frozenset(frozen)

    @cached_property
    def units(self) -> tuple[str, ...]:
        """FQNs of the units that FSDP is to make, parents first."""
        return unit_paths(self.plan, self.places, self.case.ties)

    @cached_property
    def roots(self) -> tuple[str, ...]:
        """The units that belong to no other around them; FSDP calls them root modules."""
        return roots_of(self.options)

    @cached_property
    def options(self) -> Mapping[str, Unit]:
        """The options that hold for each unit."""
        told = {path: unit_of(self.plan, path) for path in self.units}
        return told | {path: in_full(told[path]) for path in self.kept_out}

    @cached_property
    def kept_out(self) -> frozenset[str]:
        """The units that fsdp1 keeps out of the mixed precision that its root asks for."""
        if self.policy is None:
            return frozenset()
        kinds = kept_out(root_of(self.policy))
        return frozenset(path for path in self.units if self.by_path[path].kind in kinds)

    @cached_property
    def fsdp1_options(self) -> Mapping[str, Fsdp1Unit]:
        """The options of each unit of fsdp1, none under the other API."""
        return {path: unit for path, unit in self.options.items() if isinstance(unit, Fsdp1Unit)}

    @cached_property
    def fsdp2_options(self) -> Mapping[str, Fsdp2Unit]:
        """The options of each unit of fsdp2, none under the other API."""
        return {path: unit for path, unit in self.options.items() if isinstance(unit, Fsdp2Unit)}

    @cached_property
    def unit_at(self) -> Mapping[str, str]:
        """For each module that FSDP is handed the unit that it belongs to, which is named after
        the first of its modules."""
        modules = {path: (path, *unit.grouped) for path, unit in self.options.items()}
        return {module: path for path, own in modules.items() for module in own}

    def modules_of(self, unit: str) -> tuple[str, ...]:
        """The modules of a unit."""
        return tuple(module for module, path in self.unit_at.items() if path == unit)

    def shards(self, path: str | None) -> int:
        """The number of ranks that the unit at ``path`` is sharded over; all for no unit.

        Neighbours in rank: with several such groups the first has the ranks from 0 on.
        """
        return shards(self.case, None if path is None else self.options[path])

    @cached_property
    def left_alone(self) -> dict[str, tuple[str, ...]]:
        """FQNs of the modules and parameters that each unit ignores."""
        # With a policy the root's call says what all units ignore.
        # ``_auto_wrap`` in fsdp/_wrap_utils.py hands the root's arguments on to each unit it makes.
        telling = {
            path: unit_of(self.plan, "" if self.policy is not None else path)
            for path in self.units
            if self.plan.units
        }
        return {path: unit.left_alone for path, unit in telling.items()}

    @cached_property
    def owners(self) -> dict[str, str | None]:
        """For each parameter FQN the unit that manages it, or None.

        A unit manages the parameters of its subtree that no deeper unit manages. None stands
        for a parameter outside all units or one that its unit ignores. Both names of a tied
        parameter are listed, each with the unit in which that name stands.
        """
        units, ignored = self.unit_at, self.left_alone
        owners: dict[str, str | None] = {}
        for place in self.places:
            if not place.parameters:
                continue
            module = innermost(place.path, units)
            owner = None if module is None else units[module]
            left = ignored[owner] if owner is not None else ()
            for parameter in place.parameters:
                alone = any(within(parameter.fqn, path) for path in left)
                owners[parameter.fqn] = None if alone else owner
        return owners

    @cached_property
    def owned(self) -> dict[str, list[Parameter]]:
        """For each unit the parameters that it manages, one tied within the unit once."""
        ties = self.source.items()
        within_unit = {name for name, of in ties if self.owners.get(of) == self.owners.get(name)}
        used = {self.source[name] for name in within_unit if self.by_fqn[name].used}
        owned: dict[str, list[Parameter]] = {path: [] for path in self.units}
        for p in self.parameters:
            owner = self.owners[p.fqn]
            if owner is not None and p.fqn not in within_unit:
                owned[owner].append(replace(p, used=p.used or p.fqn in used))
        return owned

    @cached_property
    def unmanaged(self) -> tuple[str, ...]:
        """Parameters that no unit manages: nobody averages their gradients."""
        return tuple(sorted(fqn for fqn, owner in self.owners.items() if owner is None))

    def names_in(self, path: str) -> tuple[str, ...]:
        """FQNs of what the unit at ``path`` manages, by both names where one is tied within it."""
        return tuple(fqn for fqn, owner in self.owners.items() if owner == path)

    @cached_property
    def managed(self) -> dict[str | None, list[Parameter]]:
        """The distinct parameters by the unit that manages their source, in the model's order."""
        groups: dict[str | None, list[Parameter]] = {}
        for parameter in self.distinct:
            groups.setdefault(self.owners[parameter.fqn], []).append(parameter)
        return groups

    @cached_property
    def brought_ties(self) -> dict[str, str]:
        """For each second name that a module gives a parameter of its own the first one."""
        return {
            join(place.path, second): join(place.path, first)
            for place in self.places
            if place.node is not None
            for first, second in place.node.own_ties()
        }

    @cached_property
    def shared(self) -> tuple[tuple[str, str | None, str | None], ...]:
        """Each tie: the parameter by its source, and the units in which its two names stand."""
        units = self.unit_at
        drawn = (
            (tie.source, self.owners[tie.source], self.owners[tie.target]) for tie in self.case.ties
        )
        brought = (
            (source, self.owners[source], units.get(innermost(holder, units) or ""))
            for name, source in self.brought_ties.items()
            for holder in ((source if self.imported else name).rpartition(".")[0],)
        )
        return (*drawn, *brought)

    @cached_property
    def split_ties(self) -> tuple[tuple[str, str], ...]:
        """The pairs of units (source's, target's) of the ties that join two different units."""
        pairs = ((first, second) for _, first, second in self.shared)
        return tuple((a, b) for a, b in pairs if a is not None and b is not None and a != b)

    def common_root(self, first: str, second: str) -> bool:
        """Whether two units lie under one root."""
        return belongs_to(self, first) == belongs_to(self, second)

    @cached_property
    def switches(self) -> tuple[str, ...]:
        """Paths of the switches."""
        return tuple(place.path for place in self.places if isinstance(place.node, Switch))

    @cached_property
    def optional(self) -> tuple[str, ...]:
        """FQNs of the lists of modules of which a forward calls some, and leaves out others."""
        return tuple(
            join(place.path, place.node.chooses_from)
            for place in self.places
            if place.node is not None and place.node.chooses_from
        )

    def on_path(self, fqn: str, called: Collection[str]) -> bool:
        """Whether all lists around a parameter have the module called in which it lies."""
        return all(
            any(within(fqn, path) and within(path, chosen) for path in called if path != chosen)
            for chosen in self.optional
            if within(fqn, chosen)
        )

    @cached_property
    def cut_off(self) -> tuple[str, ...]:
        """FQNs of the reentrant checkpoints whose inputs may need no grad: they give none then."""
        told = () if self.case.inputs.needs_grad() else self.case.checkpoints
        return tuple(c.path for c in told if c.reentrant)

    @cached_property
    def numbered(self) -> bool:
        """Whether what a forward calls hangs on its number."""
        return any(p.node is not None and p.node.numbered for p in self.places)

    @cached_property
    def draws_random(self) -> bool:
        """Whether a forward draws random numbers."""
        return any(p.node is not None and p.node.draws_random() for p in self.places)

    @property
    def telling_ranks(self) -> range:
        """Ranks whose situations tell those of all: without a switch rank 0's are everyone's."""
        return range(self.case.world_size if self.switches else 1)

    def situations(self, rank: int) -> Iterator[tuple[int, Op, Situation]]:
        """Each operation with its index and the situation in which ``rank`` runs it."""
        return situations(self, rank)

    def calls(self, op: Forward, now: Situation, *, plain: bool = False) -> Iterator[Called]:
        """The modules that ``op`` calls, in order, parents before children; at most `MAX_CALLS`.

        Which inputs require grad is as under FSDP, or with ``plain`` as without.
        """
        place = self.by_path[op.target]
        requires_grad = now.trained.__getitem__ if plain else requires(self, now)
        # A parameter that no forward reads makes no output require grad, however it is trained.
        own = {
            place.path: any(p.used and requires_grad(p.fqn) for p in place.parameters)
            for place in self.places
        }
        walk = Walk(tuple(self.by_path), now, own.__getitem__)
        x = self.case.inputs.needs_grad()
        if place.node is not None:
            steps = walk.visit(place.node, op.target, x, grad=op.grad)
        else:
            below = (
                (p.path, p.node) for p in self.places if p.path.rpartition(".")[0] == op.target
            )
            held = [(path, node) for path, node in below if node is not None]
            steps = walk.brought(op.target, held, x, grad=op.grad)
        # Bounded here: repeats inside of repeats multiply, and a file of a few lines can nest them.
        yield from islice(steps, MAX_CALLS)

    def of(self, case: CaseSpec) -> Anatomy:
        """The anatomy of another case, as of this one under another plan."""
        return anatomy(case)

    def at(self, op: int) -> Anatomy:
        """The anatomy under the plan that holds once the operation ``op`` is done.

        Of all that depends on the plan only this may be asked, where the program changes it.
        """
        plan = self.plan
        for earlier in self.case.program[: op + 1]:
            plan = earlier.plan_after(plan)
        if plan == self.plan:
            return self
        return anatomy(msgspec.structs.replace(self.case, plan=plan))

    @cached_property
    def under_each_plan(self) -> tuple[Anatomy, ...]:
        """This one, and that under each plan which the program changes to, each once."""
        others = (self.at(i) for i, op in enumerate(self.case.program) if op.replans)
        return tuple(dict.fromkeys((self, *others)))

    @property
    def last(self) -> Anatomy:
        """The anatomy under the plan that holds in the end."""
        return self.at(len(self.case.program) - 1)

    @cached_property
    def replans(self) -> bool:
        """Whether the program changes the plan."""
        return any(self.at(i) is not self for i in range(len(self.case.program)))

    @cached_property
    def tokens(self) -> bool:
        """Whether the inputs are tokens."""
        return self.width_in == TOKENS


@lru_cache(maxsize=256)
def anatomy(case: CaseSpec) -> Anatomy:
    """The anatomy of a case; the same object for an equal case while it is remembered."""
    return Anatomy(case)
