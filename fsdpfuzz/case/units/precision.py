"""``MixedPrecision`` of fsdp1 and ``MixedPrecisionPolicy`` of fsdp2."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from fsdpfuzz.case.base import LOWER, Dtype, Part, default_of, on
from fsdpfuzz.case.dimension import ON, Feature, Simpler
from fsdpfuzz.case.modules.conv_norm import BATCH_NORM
from fsdpfuzz.case.paths import innermost, within
from fsdpfuzz.case.recipe import Inside, Items, Value, call, dtype
from fsdpfuzz.case.units.base import Option, anywhere
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.modules import Imported
    from fsdpfuzz.case.spec import CaseSpec
    from fsdpfuzz.case.units.configured import Configuration
    from fsdpfuzz.case.wrap import Plan, Unit

WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of an element."""
EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Machine epsilon."""


class Precision(Part, frozen=True, kw_only=True):
    """``MixedPrecision`` (fsdp1) or ``MixedPrecisionPolicy`` (fsdp2); None leaves a dtype as is."""

    param: Dtype | None = None
    reduce: Dtype | None = None
    buffer: Dtype | None = None
    """fsdp1 only."""
    output: Dtype | None = None
    """fsdp2 only."""
    cast_inputs: bool | None = None
    """``cast_forward_inputs`` where it is not the API's default: True in fsdp1, False in fsdp2."""
    cast_root_inputs: bool = True
    """``cast_root_forward_inputs`` (fsdp1 only)."""
    keep_low_grads: bool = False
    """``keep_low_precision_grads`` (fsdp1 only)."""


@lru_cache(maxsize=64)
def stored_low(a: Anatomy) -> frozenset[str]:
    """FQNs of the parameters that are stored in bfloat16."""
    return frozenset(p.fqn for path in a.case.stored_low for p in a.by_path[path].parameters)


def flat_dtype(a: Anatomy, path: str) -> Dtype:
    """The dtype in which a unit (fsdp1) stores its parameters."""
    return "bfloat16" if any(p.fqn in stored_low(a) for p in a.owned[path]) else "float32"


_NEEDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {"on": {"precision": ("off",)}}
_SWITCHES: dict[str, tuple[str, Feature]] = {
    "precision_output": (
        "output",
        Feature(
            about="on when a unit's policy has an output_dtype (fsdp2 only)",
            group="Sharding",
            values=ON,
            apis=("fsdp2",),
            excludes=_NEEDS,
        ),
    ),
    "input_casts": (
        "cast_inputs",
        Feature(
            about="on when a unit's policy has cast_forward_inputs=True (fsdp1) or False (fsdp2)",
            group="Sharding",
            values=ON,
            excludes=_NEEDS,
        ),
    ),
    "uncast_root": (
        "cast_root_inputs",
        Feature(
            about="on when a unit's policy has cast_root_forward_inputs=False (fsdp1 only)",
            group="Sharding",
            values=ON,
            apis=("fsdp1",),
            excludes=_NEEDS,
        ),
    ),
    "low_grads": (
        "keep_low_grads",
        Feature(
            about="on when a unit's policy has keep_low_precision_grads=True (fsdp1 only)",
            group="Sharding",
            values=ON,
            apis=("fsdp1",),
            excludes=_NEEDS,
        ),
    ),
}
"""By feature: the field of a policy, and what is said of it."""
_TOLD = {
    "output": "output_dtype",
    "cast_inputs": "cast_forward_inputs",
    "cast_root_inputs": "cast_root_forward_inputs",
    "keep_low_grads": "keep_low_precision_grads",
}
"""By field: PyTorch's name."""
_DEFAULTS = {name: default_of(Precision, name) for name in _TOLD}
_MIXED: Mapping[str, Dtype | None] = {
    "no": None,
    "false": None,  # which YAML reads where `no` is not quoted
    "bf16": "bfloat16",
    "fp16": "float16",
}
"""By accelerate's names."""


class PrecisionOption(Option):
    """The dtypes in which a unit computes and reduces."""

    name = "precision"
    free: ClassVar[bool] = False
    feature: ClassVar[Feature] = Feature(
        about="on when any unit has a precision policy", group="Sharding", values=ON
    )

    def __init__(self) -> None:
        super().__init__()
        told = {name: feature for name, (_, feature) in _SWITCHES.items()}
        self.features = {**self.features, **told}  # type: ignore[misc]
        self.unit_features = {**self.unit_features, **told}  # type: ignore[misc]

    def needs_gloo(self, a: Anatomy) -> str:
        """On GPUs dropout drops other elements in another dtype: see case/randomness.py."""
        random = [p.path for p in a.places if p.node is not None and p.node.draws_random()]
        low = [path for path, unit in a.options.items() if computed_in(unit) in LOWER]
        if a.imported is None and any(within(u, r) or within(r, u) for u in low for r in random):
            return "dropout in a lower dtype draws other masks on a GPU"
        return ""

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Beside whether there is any, each of the switches."""
        yield from super().values(a)
        for name, (field, feature) in _SWITCHES.items():
            if a.api in feature.apis:
                yield name, anywhere(_told(unit, field) for unit in a.options.values())

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """The same of one unit."""
        yield from super().unit_values(a, path)
        for name, (field, feature) in _SWITCHES.items():
            if a.api in feature.apis:
                yield name, _told(a.options[path], field)

    def check_unit(self, a: Anatomy, unit: Unit, at: str) -> None:
        """The API has the switch, and it is told apart from its default."""
        precision = unit.precision
        if precision is None:
            return
        for field, feature in _SWITCHES.values():
            if a.api not in feature.apis and getattr(precision, field) != _DEFAULTS[field]:
                raise CaseError(f"an option of {feature.apis[0]} alone", path=f"{at}.{field}")
        # One spelling for each policy: a default that is written out would be another digest.
        if precision.cast_inputs not in (None, a.fsdp1):
            words = f"{a.api} does so by itself: leave it out"
            raise CaseError(words, path=f"{at}.cast_inputs")
        optimizer = a.case.optimizer
        steps = any(op.steps_optimizer for op in a.case.program) and optimizer is not None
        alone = optimizer is not None and optimizer.name == "sgd" and optimizer.foreach is False
        if precision.keep_low_grads and steps and not alone:
            words = "gradients of a lower dtype go with sgd and foreach=False"
            raise CaseError(words, path=f"{at}.keep_low_grads")

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """None; each switch as PyTorch has it."""
        yield from super().simpler(case)
        replace = msgspec.structs.replace
        for field, default in _DEFAULTS.items():
            units: tuple[Any, ...] = tuple(
                unit
                if unit.precision is None
                else replace(unit, precision=replace(unit.precision, **{field: default}))
                for unit in case.plan.units
            )
            if units != case.plan.units:
                yield Simpler(replace(case, plan=replace(case.plan, units=units)), _TOLD[field])
        # What it takes may be any unit that has one, so also the root.
        given = [unit.precision for unit in case.plan.units if unit.precision is not None]
        root = next((unit for unit in case.plan.units if not unit.path), None)
        if given and root is not None and root.api == "fsdp2" and root.precision is None:
            alone: tuple[Any, ...] = (replace(root, precision=given[0]),)
            yield Simpler(replace(case, plan=replace(case.plan, units=alone)))

    def configured(self, kind: type[Unit], config: Configuration) -> Precision | None:
        """``mixed_precision``, where the model runs in it and FSDP does what autocast does."""
        asked = config.top.get("mixed_precision", "no").lower()
        if asked not in _MIXED:
            raise config.wrong("mixed_precision", "no, bf16 or fp16")
        dtype, model = _MIXED[asked], config.model
        if dtype is None:
            return None
        if dtype not in model.computes_in:
            config.note(
                f"mixed_precision: {asked}: your model does not run in {dtype}, or rounding "
                "decides what comes out, so it is trained in float32"
            )
            return None
        buffers = any(module.buffers for module in model.modules)
        if buffers and config.api == "fsdp2" and dtype not in model.computes_beside:
            config.note(
                f"mixed_precision: {asked}: fully_shard leaves buffers in float32, which "
                "accelerate's autocast makes up for; it is trained in float32 here"
            )
            return None
        # fsdp2 has no buffer_dtype.
        casts = buffers and config.api == "fsdp1"
        return Precision(param=dtype, reduce=dtype, buffer=dtype if casts else None)

    def text(self, value: Any) -> str:
        """``on`` for any policy."""
        return "off" if value is None else "on"

    def merged(self, texts: Iterable[str]) -> str:
        """``on`` where any unit has one."""
        return anywhere(texts)

    def argument(self, unit: Unit, value: Any) -> Iterator[tuple[str, Value]]:
        """``mixed_precision`` or ``mp_policy``."""
        first = unit.api == "fsdp1"
        name = "MixedPrecision" if first else "MixedPrecisionPolicy"
        policy: Value = None
        if value is not None:
            kinds = ("param", "reduce", "buffer" if first else "output")
            given = {f"{kind}_dtype": dtype(getattr(value, kind)) for kind in kinds}
            given = {kind: named for kind, named in given.items() if named is not None}
            for field, option in _TOLD.items():
                if field != "output" and getattr(value, field) != _DEFAULTS[field]:
                    given[option] = getattr(value, field)
            if unit.param_dtype_override:
                given["param_dtype_override_fn"] = _keeping(unit.param_dtype_override)
            policy = call(f"torch.distributed.fsdp.{name}", **given)
        yield "mixed_precision" if first else "mp_policy", policy

    def read(self, told: Mapping[str, Any]) -> Any:
        """None where no dtype is told."""
        dtypes = {kind: name for kind, name in told["dtypes"].items() if name is not None}
        return Precision(**dtypes) if dtypes else None

    def words(self, value: Any) -> str:
        """``precision(param bfloat16)``."""
        kinds = ("param", "reduce", "buffer", "output")
        given = [f"{kind} {getattr(value, kind)}" for kind in kinds if getattr(value, kind)]
        given += [
            f"{_TOLD[field]}={getattr(value, field)}"
            for field in ("cast_inputs", "cast_root_inputs", "keep_low_grads")
            if getattr(value, field) != _DEFAULTS[field]
        ]
        return f"precision({', '.join(given)})"

    def needed(self, value: Any) -> str:
        """In two words."""
        return "mixed precision"


def _keeping(named: Iterable[str]) -> Value:
    """The ``param_dtype_override_fn`` by which parameters keep their own dtype."""
    kept = Items("list", tuple(Inside("model", fqn) for fqn in named))
    return call("steps.fsdp2.param_dtype_override.keeping", kept)


def _told(unit: Unit, field: str) -> str:
    precision = unit.precision
    return on(precision is not None and getattr(precision, field) != _DEFAULTS[field])


# "By default, if the user passes a model with any ``_BatchNorm`` modules and an
# ``auto_wrap_policy``, then the batch norm modules will have FSDP applied to them separately with
# mixed precision disabled" (``MixedPrecision`` in fsdp/api.py).
def kept_out(root: Unit) -> tuple[str, ...]:
    """Kinds of modules that a policy gives units of their own, because of the root's precision."""
    return () if root.precision is None else (BATCH_NORM,)


def in_full(unit: Unit) -> Unit:
    """The unit without mixed precision."""
    return msgspec.structs.replace(unit, precision=None)


def cast_outputs(unit: Unit) -> Dtype | None:
    """The dtype to which a unit (fsdp2) casts what it puts out, where it says so."""
    return None if unit.precision is None else unit.precision.output


def reduced_in(unit: Unit, *, own: bool = False) -> Dtype | None:
    """The dtype in which a unit reduces gradients, where it says so.

    Without ``reduce_dtype`` that is the one it computes in, or with ``own`` the parameters' own.
    """
    precision = unit.precision
    if precision is None:
        return None
    return precision.reduce or (None if own else precision.param)


def coarsest(a: Anatomy) -> Dtype:
    """The coarsest dtype that a plan, or what is stored in one, lets take part."""
    names: list[Dtype] = ["bfloat16" if a.case.stored_low else "float32"]
    for unit in a.plan.units:
        if unit.precision is not None:
            told = unit.precision
            given = (told.param, told.reduce, told.buffer, told.output)
            names += [name for name in given if name is not None]
    return max(names, key=lambda name: EPSILON[name])


def cast_buffer(a: Anatomy, fqn: str) -> Dtype | None:
    """The dtype to which FSDP has cast a floating-point buffer by the end of the program.

    It does so when the root first runs, saves, or shows its parameters. None where it does not.
    """
    unit = innermost(fqn.rpartition(".")[0], a.units)
    precision = None if unit is None else a.options[unit].precision
    # ``_lazy_init`` in fsdp/_runtime_utils.py, which state dicts and summon_full_params, too, call.
    cast = any(op.casts_buffers for op in a.case.program)
    return precision.buffer if precision is not None and cast else None


def names_dtype(plan: Plan, name: str) -> bool:
    """Whether any unit is given a dtype, for whatever."""
    given = [unit.precision for unit in plan.units if unit.precision is not None]
    return any(name in (p.param, p.reduce, p.buffer, p.output) for p in given)


def computed_in(unit: Unit) -> Dtype | None:
    """The dtype in which a unit gathers its parameters and computes, where it says so."""
    return None if unit.precision is None else unit.precision.param


def dtypes_fit(a: Anatomy) -> bool:
    """Whether each unit gets what it computes in, and in another unit puts out what that one does.

    fsdp2 casts a unit's inputs unless it is told otherwise. fsdp1 casts those of an outermost unit
    unless ``cast_root_forward_inputs`` says otherwise, and those of any other one if
    ``cast_forward_inputs`` says so. fsdp2 alone casts outputs, to ``output_dtype``. Nobody casts
    the inputs of a layer that lies in no unit. Code of somebody's own may ask a parameter for its
    dtype to cast to: outside of its unit's forward that is the one in which it is sharded.
    """
    return all(map(_fits, a.under_each_plan))


def _fits(a: Anatomy) -> bool:
    if a.imported is not None and _told_wrongly(a, a.imported):
        return False
    modules = a.unit_at
    # A layer outside of all units computes in float32 and refuses the outputs of one that does not.
    # So may code of somebody's own between units, whatever the modules around it hold.
    bare = (a.imported is not None and "" not in modules) or any(
        place.parameters and innermost(place.path, modules) is None for place in a.places
    )
    for path, unit in a.options.items():
        if path in a.kept_out:
            continue  # hooks cast what comes in, and back what goes out
        outer = innermost(path.rpartition(".")[0], modules) if path else None
        around = "float32" if outer is None else computed_in(a.options[modules[outer]]) or "float32"
        own, told = computed_in(unit) or "float32", unit.precision
        casts = told is not None and (
            told.cast_inputs is (True if a.fsdp1 else None)
            or (a.fsdp1 and outer is None and told.cast_root_inputs)
        )
        put_out = own if told is None else told.output or own
        taken = outer is not None or bare
        if (taken and put_out != around) or (own != around and not casts):
            return False
    return True


def left_to_the_root(a: Anatomy, path: str) -> bool:
    """Whether a unit computes in a low dtype to which others have to cast its inputs."""
    unit = a.options[path]
    uncast = unit.precision is not None and unit.precision.cast_inputs is False
    return computed_in(unit) in LOWER and (a.fsdp1 or uncast)


def _told_wrongly(a: Anatomy, own: Imported) -> bool:
    asked = {module.path for module in own.modules if module.dtype_asked}
    return any(path in asked and computed_in(unit) for path, unit in a.options.items())


def coarsest_buffer(a: Anatomy) -> Dtype | None:
    """The coarsest dtype to which a unit casts its buffers; None where none does."""
    told = (unit.precision.buffer for unit in a.plan.units if unit.precision is not None)
    return max((n for n in told if n is not None), key=lambda name: EPSILON[name], default=None)


def keeps_low_grads(units: Iterable[Unit]) -> bool:
    """Whether some unit leaves its gradients in low precision."""
    return any(unit.precision is not None and unit.precision.keep_low_grads for unit in units)
