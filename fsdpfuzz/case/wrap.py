"""Which modules become units, and how FSDP is told of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

import msgspec
from msgspec import Meta

from fsdpfuzz.case.base import ModulePath, Name, ParameterName, Part, Ranks, on
from fsdpfuzz.case.dimension import ON, Api, Dimension, Feature, Rejection, Simpler
from fsdpfuzz.case.modules import Place
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.paths import join, within
from fsdpfuzz.case.policies import (
    BY_HAND,
    NAMES,
    Wrap,
    check_policy,
    has_leaves,
    made,
    root_of,
    simpler_policies,
    words_of,
)
from fsdpfuzz.case.tree import places_of
from fsdpfuzz.case.units import HYBRID, Placement, Precision, Sharding
from fsdpfuzz.case.units.precision import in_full, kept_out
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec
    from fsdpfuzz.case.ties import Tie


class Fsdp1Unit(Part, frozen=True, kw_only=True):
    """Arguments of one ``FullyShardedDataParallel`` call; the defaults are PyTorch's own."""

    api: ClassVar[Api] = "fsdp1"
    path: ModulePath
    """FQN of the module that becomes a unit; empty for the root."""
    sharding: Sharding = "FULL_SHARD"
    use_orig_params: bool = False
    backward_prefetch: Literal["BACKWARD_PRE", "BACKWARD_POST"] | None = "BACKWARD_PRE"
    forward_prefetch: bool = False
    limit_all_gathers: bool = True
    cpu_offload: bool = False
    precision: Precision | None = None
    ignored: tuple[ModulePath, ...] = ()
    """FQNs of the modules passed as ``ignored_modules``."""
    ignored_parameters: tuple[ParameterName, ...] = ()
    """FQNs of the parameters passed as ``ignored_states``."""
    reshard_after_forward: ClassVar[None] = None
    """None: the strategy says it."""

    @property
    def left_alone(self) -> tuple[str, ...]:
        """FQNs of the modules and parameters that it ignores."""
        return (*self.ignored, *self.ignored_parameters)

    @property
    def flat(self) -> bool:
        """Whether its parameters are shown as one flat parameter."""
        return not self.use_orig_params

    @property
    def takes_mesh(self) -> bool:
        """Whether it is sharded over one axis of a mesh, if there is one, not over all ranks."""
        return self.sharding in HYBRID

    @property
    def grouped(self) -> tuple[str, ...]:
        """None: a unit is one module."""
        return ()

    @property
    def param_dtype_override(self) -> tuple[str, ...]:
        """None: all parameters of a unit have one dtype."""
        return ()


class Fsdp2Unit(Part, frozen=True, kw_only=True):
    """Arguments of one ``fully_shard`` call; the defaults are PyTorch's own."""

    api: ClassVar[Api] = "fsdp2"
    path: ModulePath
    grouped: tuple[ModulePath, ...] = ()
    """FQNs of further modules of the unit: ``fully_shard([path, *grouped])``."""
    reshard_after_forward: bool | Ranks | None = None
    cpu_offload: bool = False
    precision: Precision | None = None
    ignored: tuple[ModulePath, ...] = ()
    """FQNs of the modules whose parameters are passed as ``ignored_params``."""
    ignored_parameters: tuple[ParameterName, ...] = ()
    """FQNs of further parameters passed as ``ignored_params``."""
    shard_placement: tuple[Placement, ...] = ()
    """What ``shard_placement_fn`` says of the parameters that it names."""
    prefetched_in_forward: tuple[ModulePath, ...] = ()
    """FQNs of the units named by ``set_modules_to_forward_prefetch``."""
    prefetched_in_backward: tuple[ModulePath, ...] = ()
    """FQNs of the units named by ``set_modules_to_backward_prefetch``."""
    param_dtype_override: tuple[ParameterName, ...] = ()
    """FQNs of the parameters for which ``param_dtype_override_fn`` gives their own dtype."""
    replicated: bool = False
    """Whether it is made by ``replicate`` in place of ``fully_shard``."""

    @property
    def left_alone(self) -> tuple[str, ...]:
        """FQNs of the modules and parameters that it ignores."""
        return (*self.ignored, *self.ignored_parameters)

    @property
    def flat(self) -> bool:
        """False: each parameter is a DTensor of its own."""
        return False

    @property
    def takes_mesh(self) -> bool:
        """True: whatever mesh there is."""
        return True


class Fsdp1Plan(Part, tag="fsdp1", tag_field="api", frozen=True, kw_only=True):
    """fsdp1: units and how FSDP is told of them.

    ``nested``: each unit wrapped by hand, innermost first; ``enable_wrap``: the same by ``wrap()``
    under ``enable_wrap()`` with the root's options. All others are one call on the root with an
    ``auto_wrap_policy``. ``custom_policy`` names the other units and their options. Of the others
    ``units`` holds the root alone: ``module_classes`` and ``transformer_policy`` go by the classes
    of the node kinds in ``classes``, ``lambda_policy`` by the modules ``chosen``, ``size_policy``
    by size.
    """

    units: Annotated[tuple[Fsdp1Unit, ...], Meta(min_length=1, max_length=64)]
    wrap: Wrap = "nested"
    classes: tuple[Name, ...] = ()
    chosen: Annotated[tuple[ModulePath, ...], Meta(max_length=64)] = ()
    min_num_params: Annotated[int, Meta(ge=0, le=2**40)] = 0
    leaves: tuple[Name, ...] = ()
    """Node kinds of ``force_leaf_modules``; none for PyTorch's own."""
    excluded: tuple[Name, ...] = ()
    """Node kinds of ``exclude_wrap_modules``, beside lists of modules."""

    @property
    def by_policy(self) -> bool:
        """Whether one call on the root makes all units."""
        return self.wrap not in BY_HAND

    def words(self) -> str:
        """The API, and how the units are told to it."""
        return f"fsdp1, {words_of(self)}"


class Fsdp2Plan(Part, tag="fsdp2", tag_field="api", frozen=True, kw_only=True):
    """fsdp2: modules that get ``fully_shard``, applied innermost first."""

    units: Annotated[tuple[Fsdp2Unit, ...], Meta(min_length=1, max_length=64)]

    def words(self) -> str:
        """The API."""
        return "fsdp2"


Plan = Fsdp1Plan | Fsdp2Plan
Unit = Fsdp1Unit | Fsdp2Unit


def unit_paths(plan: Plan, places: Sequence[Place], ties: Sequence[Tie] = ()) -> tuple[str, ...]:
    """FQNs of the units of a plan, parents first. Ties count in a policy that goes by size."""
    chosen = {unit.path for unit in plan.units}
    if isinstance(plan, Fsdp1Plan) and plan.by_policy:
        chosen.update(made(plan, places, ties))
    return tuple(place.path for place in places if place.path in chosen)


def unit_of(plan: Plan, path: str) -> Unit:
    """The options that hold for the unit at ``path``, but for what `kept_out` says of it.

    Units that a policy finds take all of the root's, those that ``CustomPolicy`` names take its
    ``use_orig_params`` and ``limit_all_gathers``, which must not differ within one call.
    """
    if isinstance(plan, Fsdp2Plan):
        return next(unit for unit in plan.units if unit.path == path)
    # ``ModuleWrapPolicy._run_policy`` in fsdp/wrap.py copies the root's arguments for each unit.
    root = root_of(plan)
    own = next((unit for unit in plan.units if unit.path == path), root)
    if plan.wrap != "custom_policy":
        return own
    return msgspec.structs.replace(
        own, use_orig_params=root.use_orig_params, limit_all_gathers=root.limit_all_gathers
    )


def with_units(case: CaseSpec, units: Sequence[Any]) -> CaseSpec:
    """The case with other units; a policy that names none but the root becomes a plain call."""
    plan = case.plan
    if isinstance(plan, Fsdp1Plan) and plan.wrap == "custom_policy" and len(units) == 1:
        return msgspec.structs.replace(case, plan=Fsdp1Plan(units=tuple(units)))
    return msgspec.structs.replace(case, plan=msgspec.structs.replace(plan, units=tuple(units)))


_LEFT_ALONE = ("ignored", "ignored_parameters")


def by_hand(case: CaseSpec, plan: Fsdp1Plan, paths: Sequence[str]) -> CaseSpec:
    """The case with the units at ``paths`` of its plan wrapped one by one, their options as now."""
    kinds = {p.path: p.kind for p in places_of(case.model, case.inputs.width_out())}
    root = root_of(plan)

    def told(path: str) -> Any:
        unit = unit_of(plan, path)
        if not plan.by_policy:
            return unit
        # The root's call says what all ignore, and what is kept out of mixed precision.
        own = {o: tuple(p for p in getattr(root, o) if within(p, path)) for o in _LEFT_ALONE}
        made = msgspec.structs.replace(unit, path=path, **own)
        return in_full(made) if kinds[path] in kept_out(root) else made

    return msgspec.structs.replace(case, plan=Fsdp1Plan(units=tuple(map(told, paths))))


def under_other_api(case: CaseSpec, paths: Sequence[str]) -> CaseSpec | None:
    """The case with the units at ``paths`` made by the other API, options at its defaults.

    None where something in the case belongs to this API alone.
    """
    # Their plans would have to change as well, and the tracker is fsdp2's alone.
    if case.twins or case.probes:
        return None
    told = {u.path: {o: getattr(u, o) for o in _LEFT_ALONE} for u in case.plan.units}
    if isinstance(case.plan, Fsdp2Plan):
        # With original parameters, which is what fsdp2 has: flat ones forbid some freezing.
        first = tuple(Fsdp1Unit(path=p, use_orig_params=True, **told.get(p, {})) for p in paths)
        return msgspec.structs.replace(case, plan=Fsdp1Plan(units=first))
    second = tuple(Fsdp2Unit(path=p, **told.get(p, {})) for p in paths)
    return msgspec.structs.replace(case, plan=Fsdp2Plan(units=second))


def _manages_scalar(a: Anatomy) -> bool:
    return any(not p.shape and a.owners[p.fqn] is not None for p in a.parameters)


_WITHOUT_SIZES = tuple(way for way in get_args(Wrap) if way != "size_policy")


class WrapDimension(Dimension):
    """The units, how they lie to each other, and which of FSDP's ways names them."""

    name = "wrap"
    features: ClassVar[Mapping[str, Feature]] = {
        "api": Feature(about="fsdp1, fsdp2", group="Wrapping", values=("fsdp1", "fsdp2")),
        "world_size": Feature(about="number of ranks", group="Wrapping", open=True),
        "wrap": Feature(
            about="nested, enable_wrap (and wrap), or by policy: custom_policy, module_classes, "
            "transformer_policy, lambda_policy, size_policy (fsdp1 only)",
            group="Wrapping",
            values=get_args(Wrap),
            apis=("fsdp1",),
        ),
        "size_leaves": Feature(
            about="on when there are modules into which size_based_auto_wrap_policy does not look "
            "(fsdp1 only)",
            group="Wrapping",
            values=ON,
            apis=("fsdp1",),
            excludes={"on": {"wrap": _WITHOUT_SIZES}},
        ),
        "size_excluded": Feature(
            about="on when size_based_auto_wrap_policy passes over some classes (fsdp1 only)",
            group="Wrapping",
            values=ON,
            apis=("fsdp1",),
            excludes={"on": {"wrap": _WITHOUT_SIZES}},
        ),
        "units": Feature(
            about="number of units: 1, 2, 3+",
            group="Wrapping",
            values=("1", "2", "3+"),
            excludes={"1": {"nesting": ("root", "deep"), "tied": ("across units", "nested")}},
        ),
        "root": Feature(
            about="wrapped; open when the root is no unit",
            group="Wrapping",
            values=("wrapped", "open"),
            excludes={
                "open": {
                    "nesting": ("root",),
                    "wrap": tuple(way for way in get_args(Wrap) if way not in BY_HAND),
                },
            },
        ),
        "nesting": Feature(
            about="flat: no unit inside another; root: only inside the root's; deep: further",
            group="Wrapping",
            values=("flat", "root", "deep"),
        ),
        "bare_unit": Feature(
            about="on when a unit manages no parameter", group="Wrapping", values=ON
        ),
    }
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "root": Feature(
            about="whether the unit is the model's root, the outermost one, or inner",
            group="Wrapping",
            values=("model", "outermost", "inner"),
        ),
    }
    rejections: ClassVar[tuple[Rejection, ...]] = (
        Rejection(
            name="fsdp1_scalar_parameter",
            why="a 0-dim parameter cannot be sharded",
            pattern=r"FSDP doesn't support scalar parameters",
            source="torch/distributed/fsdp/_init_utils.py: _verify_managed_params",
            asked=lambda a: (
                a.fsdp1 and any(not p.shape and a.owners[p.fqn] is not None for p in a.parameters)
            ),
        ),
        Rejection(
            name="fsdp2_scalar_parameter",
            why="a 0-dim parameter cannot be sharded",
            pattern=r"fully_shard doesn't support scalar parameters",
            source="torch/distributed/fsdp/_fully_shard/_fsdp_init.py: _verify_managed_param",
            asked=lambda a: not a.fsdp1 and _manages_scalar(a),
        ),
    )

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Number, nesting and kind of the units."""
        paths = a.units
        owned = set(a.owners.values())
        yield "api", a.api
        yield "world_size", str(a.case.world_size)
        yield "units", "3+" if len(paths) > 2 else str(len(paths))
        yield "root", "wrapped" if "" in paths else "open"
        inner = [p for p in paths if any(within(p, u) for u in paths if u not in ("", p))]
        nested = "root" if "" in paths and len(paths) > 1 else "flat"
        yield "nesting", "deep" if inner else nested
        yield "bare_unit", on(any(path not in owned for path in paths))
        if isinstance(a.plan, Fsdp1Plan):
            yield "wrap", a.plan.wrap
            yield "size_leaves", on(has_leaves(a, a.plan))
            yield "size_excluded", on(bool(a.plan.excluded))

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """Where the unit lies."""
        outermost = "outermost" if path in a.roots else "inner"
        yield "root", outermost if path else "model"

    def check(self, a: Anatomy) -> None:
        """Units are modules of the model, and what a repeat calls apart is whole by then."""
        plan = a.plan
        paths = [unit.path for unit in plan.units]
        check_names(paths, a.by_path, "$.plan.units", "module")
        if isinstance(plan, Fsdp1Plan):
            check_policy(a, plan)
        units: tuple[Unit, ...] = plan.units
        for i, unit in enumerate(units):
            if unit.left_alone and unit.precision is not None:
                text = "the unit casts its inputs, but not the parameters that it ignores"
                raise CaseError(text, path=f"$.plan.units[{i}].ignored")
        self._check_second_calls(a)

    def _check_second_calls(self, a: Anatomy) -> None:
        """A unit's parameters are whole only while the unit's own forward runs.

        ``no_grad='first_child'`` calls the first child of the body outside the body's forward,
        so no unit that is the body, or that lies between the two, may own what lies in that
        child.
        """
        for place in a.places:
            if place.node is None or not (inner := place.node.called_inside()):
                continue
            first = join(place.path, inner)
            body = first.rpartition(".")[0]
            for fqn, owner in a.owners.items():
                if owner == body and within(fqn, first):
                    raise CaseError(
                        f"{body!r} is a unit and owns parameters of its first child, which is "
                        "also called on its own: make that child a unit",
                        path="$.plan",
                    )

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """The root alone, one unit less, units wrapped by hand; fewer ranks."""
        plan = case.plan
        paths = unit_paths(plan, places_of(case.model, case.inputs.width_out()), case.ties)
        listed = [unit.path for unit in plan.units]
        if isinstance(plan, Fsdp1Plan) and plan.wrap != "nested":
            yield Simpler(by_hand(case, plan, paths), NAMES[plan.wrap])
            yield from simpler_policies(case, plan)
        if len(paths) > 1 and "" in listed and isinstance(plan, Fsdp1Plan):
            yield Simpler(by_hand(case, plan, [""]), "nested units")
        elif len(paths) > 1 and "" in listed:
            yield Simpler(with_units(case, [unit_of(plan, "")]), "nested units")
        for path in reversed(listed) if len(listed) > 1 else ():
            left = [unit for unit in plan.units if unit.path != path]
            if any(not unit.path for unit in left) or path:
                yield Simpler(with_units(case, left))
