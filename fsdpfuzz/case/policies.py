"""What fsdp1 can be told as ``auto_wrap_policy``, and what each of these makes units of.

``ModuleWrapPolicy`` and ``CustomPolicy`` say which modules become units. The functions are asked of
one module after the other, from the inside out (``_recursive_wrap`` in
torch/distributed/fsdp/wrap.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from fsdpfuzz.case.dimension import Simpler
from fsdpfuzz.case.modules import CLASSES, MULTIHEAD, Place
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.paths import join, within
from fsdpfuzz.case.recipe import Global, Items, Value, call
from fsdpfuzz.case.units.precision import kept_out
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec
    from fsdpfuzz.case.ties import Tie
    from fsdpfuzz.case.wrap import Fsdp1Plan, Fsdp1Unit

Wrap = Literal[
    "nested",
    "custom_policy",
    "module_classes",
    "enable_wrap",
    "size_policy",
    "transformer_policy",
    "lambda_policy",
]
BY_HAND: tuple[Wrap, ...] = ("nested", "enable_wrap")
"""Without a policy: FSDP is called for each unit."""
LISTING: tuple[Wrap, ...] = (*BY_HAND, "custom_policy")
"""Those under which units have options of their own; else all have the root's."""
NAMES: Mapping[Wrap, str] = {
    "custom_policy": "CustomPolicy",
    "module_classes": "ModuleWrapPolicy",
    "enable_wrap": "enable_wrap",
    "size_policy": "size_based_auto_wrap_policy",
    "transformer_policy": "transformer_auto_wrap_policy",
    "lambda_policy": "lambda_auto_wrap_policy",
}
"""As PyTorch calls them."""
# ``FORCE_LEAF_MODULES`` and ``EXCLUDE_WRAP_MODULES`` of ``size_based_auto_wrap_policy``. What is no
# place has no kind, and goes by its name behind a dot.
_LEAVES = ("MultiheadAttention", MULTIHEAD, ".self_attn", ".multihead_attn")
"""Modules that are leaves where a plan names none."""
_LISTS = (".branches", ".experts", ".layers")
_HOLDERS = ("ModuleList", "ModuleDict", *_LISTS, ".parametrizations", ".weight")
"""Modules that no forward calls; those of a parametrized weight lie in the last two."""
_GO_WITH: Mapping[str, tuple[Wrap, ...]] = {
    "classes": ("module_classes", "transformer_policy"),
    "chosen": ("lambda_policy",),
    "min_num_params": ("size_policy",),
}
"""Fields of a plan that some ways to wrap need, and no other may have."""
_MODULE = "torch.distributed.fsdp.wrap"


def root_of(plan: Fsdp1Plan) -> Fsdp1Unit:
    """The unit that a policy starts from."""
    return next((unit for unit in plan.units if not unit.path), plan.units[0])


def words_of(plan: Fsdp1Plan) -> str:
    """How FSDP is told of the units."""
    if plan.wrap == "nested":
        return "wrapped one by one"
    told = [*plan.classes, *plan.chosen]
    told += [str(plan.min_num_params)] if plan.min_num_params else []
    told += [f"leaf {kind}" for kind in plan.leaves]
    told += [f"not {kind}" for kind in plan.excluded]
    return NAMES[plan.wrap] + f"({', '.join(told)})" * bool(told)


def made(plan: Fsdp1Plan, places: Sequence[Place], ties: Sequence[Tie]) -> Iterator[str]:
    """The modules that a policy makes units of, beside those that the plan lists.

    Whatever the policy, also what is kept out of the root's mixed precision.
    """
    root = root_of(plan)
    kinds = {*plan.classes, *kept_out(root)}
    found = [place.path for place in places if place.kind in kinds]
    found += plan.chosen
    if plan.wrap == "size_policy":
        found += _Sizes(plan, places, ties).units
    yield from (path for path in found if not any(within(path, p) for p in root.left_alone))


def sizes(
    places: Sequence[Place], ties: Sequence[Tie], ignored: Collection[str] = ()
) -> dict[str, int]:
    """The elements of all parameters in a module, each parameter once, those ignored left out.

    By FQN, of all modules around a parameter: also of those that are no places.
    """
    names = {tie.target: tie.source for tie in ties}
    found = {
        p.fqn: (names.get(p.fqn, p.fqn), p.numel) for place in places for p in place.parameters
    }
    for place in places:
        for first, second in () if place.node is None else place.node.own_ties():
            found[join(place.path, second)] = found[join(place.path, first)]
    left = {fqn for name, (fqn, _) in found.items() if any(within(name, p) for p in ignored)}
    held: dict[str, dict[str, int]] = {}
    for name, (fqn, numel) in found.items():
        module = name
        while module:
            module = module.rpartition(".")[0]
            held.setdefault(module, {})[fqn] = 0 if fqn in left else numel
    return {path: sum(inside.values()) for path, inside in held.items()}


def passed_over(a: Anatomy, path: str) -> bool:
    """Whether a plan of the case, which goes by size, makes no unit of a module for its class."""
    return any(
        b.policy is not None
        and b.policy.wrap == "size_policy"
        and _class_of(a.by_path[path]) in (*_leaves(b.policy), *_spared(b.policy))
        for b in a.under_each_plan
    )


def _leaves(plan: Fsdp1Plan) -> Collection[str]:
    return plan.leaves or _LEAVES


def _spared(plan: Fsdp1Plan) -> Collection[str]:
    return (*plan.excluded, *_HOLDERS)


def _class_of(place: Place) -> str:
    """By which a policy by size leaves a module out, if it does."""
    return place.base or place.kind


def _kind(kinds: Mapping[str, str], path: str) -> str:
    return kinds.get(path) or f".{path.rpartition('.')[2]}"


class _Sizes:
    """``_recursive_wrap`` under ``size_based_auto_wrap_policy``.

    A module becomes a unit if it is large enough, and so is what of it lies in no unit within it.
    Into one that is not large enough, and into a leaf, the policy does not look, nor is either a
    unit.
    """

    def __init__(self, plan: Fsdp1Plan, places: Sequence[Place], ties: Sequence[Tie]) -> None:
        root = root_of(plan)
        self._least = plan.min_num_params
        self._leaves, self._spared = _leaves(plan), _spared(plan)
        self._apart = kept_out(root)
        self._sizes = sizes(places, ties, root.left_alone)
        self._kinds = {place.path: _class_of(place) for place in places}
        self._inside: dict[str, list[str]] = {}
        for path in sorted({*self._sizes, *self._kinds} - {""}):
            self._inside.setdefault(path.rpartition(".")[0], []).append(path)
        self._units: list[str] = []
        self._wrapped("", passed=False)
        self.units = [path for path in self._units if path]
        self.finds_root = "" in self._units
        """Whether it makes a unit of the root as well, where that lies in a wrapper."""

    # What is kept out of mixed precision is looked for everywhere: ``_or_policy`` always recurses.
    def _wrapped(self, path: str, *, passed: bool) -> int:
        """How many elements lie in units once a module is through; ``passed`` over if in a leaf."""
        size, kind = self._sizes.get(path, 0), _kind(self._kinds, path)
        passed = passed or kind in self._leaves or size < self._least
        if passed and not self._apart:
            return 0
        done = sum(self._wrapped(inner, passed=passed) for inner in self._inside.get(path, ()))
        if kind in self._apart:
            return size
        if passed or kind in self._spared or size - done < self._least:
            return done
        self._units.append(path)
        return size


def check_policy(a: Anatomy, plan: Fsdp1Plan) -> None:
    """:class:`CaseError` for a policy that contradicts itself, or takes modules apart."""
    paths, at = [unit.path for unit in plan.units], "$.plan"
    if plan.by_policy and "" not in paths:
        raise CaseError(f"wrap={plan.wrap!r} starts from the root: add a unit ''", path=at)
    if plan.wrap not in LISTING and len(paths) != 1:
        raise CaseError(f"wrap={plan.wrap!r} finds the units; list the root alone", path=at)
    for field, ways in _GO_WITH.items():
        if bool(getattr(plan, field)) != (plan.wrap in ways):
            said = " or ".join(f"wrap={way!r}" for way in ways)
            raise CaseError(f"{field} go with {said}, and only there", path=at)
    if (plan.excluded or plan.leaves) and plan.wrap != "size_policy":
        raise CaseError("classes are passed over with wrap='size_policy' alone", path=at)
    check_names(plan.chosen, a.by_path, f"{at}.chosen", "module")
    for path in plan.chosen:
        if any(within(path, p) for p in root_of(plan).left_alone):
            raise CaseError(f"{path!r} is ignored, and so no unit", path=f"{at}.chosen")
    for field in ("classes", "excluded", "leaves"):
        _check_classes(a, getattr(plan, field), f"{at}.{field}")
    if plan.wrap == "size_policy":
        _check_sizes(a, plan)
    inside = any(c.wraps and not c.path and c.side == "inside" for c in a.case.checkpoints)
    if inside and finds_root(a):
        raise CaseError("the policy finds the root once more in its wrapper", path=at)


def _check_classes(a: Anatomy, classes: Sequence[str], at: str) -> None:
    check_names(classes, CLASSES, at, "class of modules to wrap")
    for place in a.places if classes else ():
        inside = set(classes).intersection(place.node.inner_kinds if place.node else ())
        if inside:
            raise CaseError(
                f"{place.kind} at {place.path!r} is called as a whole: the class "
                f"{min(inside)!r} would make units within it",
                path=at,
            )


def _check_sizes(a: Anatomy, plan: Fsdp1Plan) -> None:
    at, found = "$.plan.min_num_params", _Sizes(plan, a.places, a.case.ties)
    for path in found.units:
        place = a.by_path.get(path)
        if place is None or not place.alone or place.by_method:
            raise CaseError(f"makes a unit of {path!r}, which is not called by itself", path=at)
    for path in (c.path for c in a.case.checkpoints if c.wraps and c.path):
        # The wrapper is a module as large, and of another class.
        if path in a.by_path and _class_of(a.by_path[path]) in (*_leaves(plan), *_spared(plan)):
            raise CaseError(f"passes over {path!r}, but not its wrapper", path=at)


def finds_root(a: Anatomy) -> bool:
    """Whether a policy makes a unit of the root once more if that lies in a wrapper."""
    plan = a.policy
    if plan is None:
        return False
    if plan.wrap == "size_policy":
        return _Sizes(plan, a.places, a.case.ties).finds_root
    return a.places[0].kind in plan.classes


def has_leaves(a: Anatomy, plan: Fsdp1Plan) -> bool:
    """Whether a plan by size leaves out what lies in some modules."""
    kinds = {place.path: _class_of(place) for place in a.places}
    modules = sizes(a.places, a.case.ties) if plan.wrap == "size_policy" else ()
    return any(_kind(kinds, path) in _leaves(plan) for path in modules)


def simpler_policies(case: CaseSpec, plan: Fsdp1Plan) -> Iterator[Simpler]:
    """One name less of several, and sizes that say less."""

    def having(**fields: object) -> CaseSpec:
        return msgspec.structs.replace(case, plan=msgspec.structs.replace(plan, **fields))

    for field in ("chosen", "classes", "leaves", "excluded"):
        named = getattr(plan, field)
        for i in range(len(named)) if len(named) > 1 else ():
            yield Simpler(having(**{field: (*named[:i], *named[i + 1 :])}))
    if plan.leaves:
        yield Simpler(having(leaves=()), "force_leaf_modules")
    if plan.excluded:
        yield Simpler(having(excluded=()), "exclude_wrap_modules")
    if plan.min_num_params > 1:
        yield Simpler(having(min_num_params=1))


def auto_wrap(plan: Fsdp1Plan, known: Collection[object], chosen: Sequence[Value]) -> Value:
    """The policy of a plan.

    ``known`` are the functions that make modules, ``chosen`` the modules that a function names.
    """
    if plan.wrap == "module_classes":
        return call(f"{_MODULE}.ModuleWrapPolicy", _set(_classes(plan.classes, known)))
    function = Global(f"{_MODULE}.{NAMES[plan.wrap]}")
    if plan.wrap == "transformer_policy":
        classes = _set(_classes(plan.classes, known))
        return call("functools.partial", function, transformer_layer_cls=classes)
    if plan.wrap == "lambda_policy":
        return call("steps.fsdp1.policy.among", Items("set", tuple(chosen)))
    options: dict[str, Value] = {"min_num_params": plan.min_num_params}
    if plan.leaves:
        options["force_leaf_modules"] = _set(_classes(plan.leaves, known))
    if plan.excluded:
        held = [Global("torch.nn.ModuleList"), Global("torch.nn.ModuleDict")]
        options["exclude_wrap_modules"] = _set([*held, *_classes(plan.excluded, known)])
    return call("functools.partial", function, **options)


def _classes(kinds: Sequence[str], known: Collection[object]) -> list[Global]:
    # A script would import in vain one of ours that the model is not made of.
    return [
        Global(name)
        for kind in kinds
        for name in CLASSES[kind]
        if name in known or name.startswith("torch.")
    ]


def _set(classes: Sequence[Global]) -> Items:
    return Items("set", tuple(classes))
