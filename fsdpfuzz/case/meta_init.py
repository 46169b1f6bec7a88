"""Models on the meta device: shapes alone, until parameters and buffers get memory and values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from fsdpfuzz.case.base import ModulePath, Part, on
from fsdpfuzz.case.dimension import ON, Api, Dimension, Feature, Rejection, Simpler
from fsdpfuzz.case.paths import innermost, within
from fsdpfuzz.case.recipe import MODEL, Do, Value, Variable, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec

By = Literal[
    "reset_parameters",
    "param_init_fn",
    "sync_module_states",
    "full_state_dict",
    "broadcast",
    "assign",
    "never",
]
WAYS: Mapping[Api, tuple[By, ...]] = {
    "fsdp1": ("reset_parameters", "param_init_fn", "sync_module_states"),
    "fsdp2": ("reset_parameters", "full_state_dict", "broadcast", "assign", "never"),
}
"""What each API documents for models on the meta device, the plainest first."""
_PLAIN = Variable("plain")
_DEVICE = Variable("device")
_INIT = Variable("param_init_fn")


class MetaInit(Part, frozen=True, kw_only=True):
    """The model that FSDP gets is on the meta device, and has the plain model's values afterwards.

    ``reset_parameters``: ``to_empty``, and then values in place; fsdp1 does so by itself.
    ``param_init_fn``: the same by a function that fsdp1 is given. ``sync_module_states``: rank 0
    alone has values, which fsdp1 sends to the others, where a function makes room for them.
    ``full_state_dict`` and ``broadcast``: ``set_model_state_dict`` of a full state dict, which
    all ranks have, or rank 0. ``assign``: ``load_state_dict(assign=True)`` of sharded tensors.
    ``never``: nothing, which FSDP refuses.
    """

    by: By = "reset_parameters"
    part: ModulePath = ""
    """FQN of the module that alone is on the meta device; empty for the whole model."""

    def words(self) -> str:
        """``2.body, assign``."""
        return f"{self.part or 'the model'}, {self.by}"


def _never(a: Anatomy) -> bool:
    """Whether nothing materialises what is on the meta device."""
    return a.case.meta_init is not None and a.case.meta_init.by == "never"


class MetaInitDimension(Dimension):
    """Nothing, or all, or one module; and by what it is materialised."""

    name = "meta_init"
    of_model: ClassVar[bool] = True
    features: ClassVar[Mapping[str, Feature]] = {
        "meta_init": Feature(
            about="what materialises parameters on the meta device: no: none are on it; "
            "reset_parameters: their modules, in place; full_state_dict, broadcast: a full state, "
            "loaded by each rank or sent by rank 0; assign: a state of shards; param_init_fn: a "
            "function of one's own; sync_module_states: rank 0; never: nothing does",
            group="Model",
            values=("no", *dict.fromkeys(way for ways in WAYS.values() for way in ways)),
        ),
        "meta_part": Feature(
            about="on when only a part of the model is on the meta device", group="Model", values=ON
        ),
    }
    rejections: ClassVar[tuple[Rejection, ...]] = (
        Rejection(
            name="fsdp2_left_on_meta",
            why="parameters have to be materialised before training",
            pattern=r"FSDP parameters should be materialized from meta device before training",
            source="torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py: "
            "_validate_no_meta_params",
            asked=_never,
            raised="RuntimeError",
        ),
    )

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Whether there is any, by what, and where."""
        asked = a.case.meta_init
        yield "meta_init", "no" if asked is None else asked.by
        yield "meta_part", on(asked is not None and bool(asked.part))

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """Where and by what."""
        if case.meta_init is not None:
            yield "on meta", case.meta_init.words()

    def check(self, a: Anatomy) -> None:
        """The API has the way, and what is on the meta device gets its values by it."""
        asked, at = a.case.meta_init, "$.meta_init"
        if asked is None:
            return
        if asked.by not in WAYS[a.api]:
            raise CaseError(f"{a.api} has no by={asked.by!r}", path=f"{at}.by")
        if a.imported is not None:
            raise CaseError("an imported model is made by its own code", path=at)
        if asked.part not in a.by_path:
            raise CaseError(f"the model has no module {asked.part!r}", path=f"{at}.part")
        if not any(tensors_in(a, asked.part)):
            raise CaseError(f"{asked.part!r} has nothing to be materialised", path=f"{at}.part")
        if a.shared:
            # nn.Module.to_empty() gives each name of a tied parameter a tensor of its own.
            raise CaseError("a tied parameter would be two", path=at)
        if a.fsdp1 and (left := next(_left(a, asked.part), None)) is not None:
            # _get_modules_to_materialize() passes over what is ignored.
            raise CaseError(f"fsdp1 does not materialise {left!r}", path=f"{at}.part")
        if (unit := mixed_unit(a, asked.part)) is not None:
            told = f"fsdp1 takes no unit that is partly on the meta device, as {unit!r} is"
            raise CaseError(told, path=f"{at}.part")
        # FSDP looks for it in ``_lazy_init`` alone (``_validate_no_meta_params``), at the first
        # forward.
        if asked.by == "never" and not _refused_at_once(a, asked.part):
            raise CaseError("another error may come before the documented one", path=f"{at}.by")

    def needs_gpu(self, a: Anatomy) -> str:
        """fsdp1 documents that ``sync_module_states`` requires GPU communication."""
        asked = a.case.meta_init
        synchronises = asked is not None and asked.by == "sync_module_states"
        return "sync_module_states of FSDP1 needs a GPU" if synchronises else ""

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """Not on the meta device; all of it; in a plainer way."""
        asked, replace = case.meta_init, msgspec.structs.replace
        if asked is None:
            return
        yield Simpler(replace(case, meta_init=None), "meta device")
        if asked.part:
            yield Simpler(replace(case, meta_init=replace(asked, part="")), "a part on meta")
        ways = WAYS[case.api]
        for way in ways[: ways.index(asked.by)] if asked.by in ways else ():
            yield Simpler(replace(case, meta_init=replace(asked, by=way)))


def tensors_in(a: Anatomy, path: str) -> Iterator[str]:
    """FQNs of the parameters and buffers of the module at ``path``."""
    for place in a.places:
        if within(place.path, path):
            yield from (p.fqn for p in place.parameters)
            yield from place.buffers


def _left(a: Anatomy, part: str) -> Iterator[str]:
    """What of a module fsdp1 leaves on the meta device under any plan: it lies in no unit, or is
    ignored by its unit."""
    for op in range(-1, len(a.case.program)):
        b = a.at(op)
        alone = [path for paths in b.left_alone.values() for path in paths]
        for place in b.places:
            outside = innermost(place.path, b.units) is None
            bare = outside or any(within(place.path, path) for path in alone)
            yield from (name for name in place.buffers if bare and within(name, part))
        yield from (name for name in b.unmanaged if within(name, part))


def mixed_unit(a: Anatomy, part: str) -> str | None:
    """A unit of fsdp1 that has parameters both in a module and outside it, under any plan.

    "FSDP only supports single device modules" (``_check_single_device_module`` in
    fsdp/_init_utils.py), which overlooks one that is on a CPU and the meta device.
    """
    for op in range(-1, len(a.case.program)) if a.fsdp1 else ():
        sides: dict[str, bool] = {}
        for fqn, unit in a.at(op).owners.items():
            inside = within(fqn, part)
            if unit is not None and sides.setdefault(unit, inside) is not inside:
                return unit
    return None


def _refused_at_once(a: Anatomy, part: str) -> bool:
    """Whether the first that happens is a forward of the root, whose units are on meta."""
    first = next(iter(a.case.program), None)
    managed = [owner is not None for fqn, owner in a.owners.items() if within(fqn, part)]
    forward = first is not None and first.runs_model and not first.called
    return forward and "" in a.options and bool(managed) and all(managed)


def emptied(a: Anatomy) -> Iterator[Do]:
    """What is done with a model before it is wrapped."""
    asked = a.case.meta_init
    if asked is None:
        return
    yield Do(call=MODEL, into=(_PLAIN,), who="fsdp")
    made = call("steps.meta_init.on_meta", _PLAIN, asked.part)
    # Rank 0 keeps its values: ``_sync_module_params_and_buffers`` in fsdp/_init_utils.py sends
    # them.
    others = tuple(range(1, a.case.world_size)) if asked.by == "sync_module_states" else None
    yield Do(call=made, into=(MODEL,), who="fsdp", ranks=others)
    # Without a param_init_fn fsdp1 calls ``reset_parameters`` of each module that has tensors of
    # its own (``_materialize_meta_module``), with other values than the reference's unless it is
    # ours.
    if a.fsdp1 and asked.by == "reset_parameters":
        yield Do(call=call("steps.meta_init.resettable", MODEL, _PLAIN), who="fsdp")
    if asked.by == "param_init_fn":
        given = call("steps.meta_init.param_init_fn", MODEL, _PLAIN, _DEVICE)
        yield Do(call=given, into=(_INIT,), who="fsdp")
    if asked.by == "sync_module_states":
        yield Do(call=call("steps.meta_init.to_empty", _DEVICE), into=(_INIT,), who="fsdp")


def arguments(a: Anatomy) -> dict[str, Value]:
    """What each unit of fsdp1 is told of it."""
    asked = a.case.meta_init
    if asked is None or asked.by not in ("param_init_fn", "sync_module_states"):
        return {}
    sync: dict[str, Value] = {}
    if asked.by == "sync_module_states":
        sync["sync_module_states"] = True
    return {_INIT.name: _INIT, **sync}


def filled(a: Anatomy) -> Iterator[Do]:
    """What is done with it once all units are made; fsdp1 materialises while it makes them."""
    asked = a.case.meta_init
    if asked is None or a.fsdp1:
        return
    given: dict[By, Value] = {
        "reset_parameters": call("steps.meta_init.reset", MODEL, _PLAIN, _DEVICE),
        "full_state_dict": call("steps.meta_init.load", MODEL, _PLAIN, False),
        "broadcast": call("steps.meta_init.load", MODEL, _PLAIN, True),
        "assign": call("steps.meta_init.assign", MODEL, _PLAIN),
    }
    if asked.by in given:
        yield Do(call=given[asked.by], who="fsdp")
    if asked.by in ("full_state_dict", "broadcast", "assign") and _has_unsaved(a, asked.part):
        yield Do(call=call("steps.meta_init.unsaved", MODEL, _PLAIN), who="fsdp")


# What loads a state dict cannot bring them: without a step of their own they stay uninitialised.
def _has_unsaved(a: Anatomy, part: str) -> bool:
    """Whether a buffer on the meta device is in no state dict."""
    nodes = (place.node for place in a.places if within(place.path, part))
    return any(node is not None and node.unsaved_buffers() for node in nodes)
