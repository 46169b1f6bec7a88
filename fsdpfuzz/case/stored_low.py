"""Frozen linear layers that are stored in bfloat16 beside parameters in float32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

import msgspec

from fsdpfuzz.case.base import Dtype, on
from fsdpfuzz.case.dimension import ON, Dimension, Feature, Rejection, Simpler, one
from fsdpfuzz.case.modules import Imported
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.parallel import linear_layers
from fsdpfuzz.case.recipe import MODEL, Do, Inside, Variable, call
from fsdpfuzz.case.units.param_dtype_override import overridden
from fsdpfuzz.case.units.precision import computed_in, stored_low
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec

_HOW = ("no", "alone", "mixed")


def gathered_as(a: Anatomy, owner: str, fqn: str) -> Dtype:
    """The dtype in which a unit gathers a parameter, and computes with it."""
    own: Dtype = "bfloat16" if fqn in stored_low(a) else "float32"
    return own if fqn in overridden(a) else computed_in(a.options[owner]) or own


def may_be_stored_low(a: Anatomy) -> tuple[str, ...]:
    """The layers that may be: frozen all along, and tied to nothing."""
    if a.case.tensor_parallel is not None or isinstance(a.case.model, Imported):
        return ()
    trained = {fqn for _, _, now in a.situations(0) for fqn, is_on in now.trained.items() if is_on}
    out = trained.union(a.source, a.source.values(), set(a.by_fqn).difference(a.frozen))
    layers = (a.by_path[path] for path in linear_layers(a))
    return tuple(at.path for at in layers if not any(p.fqn in out for p in at.parameters))


def stored(a: Anatomy) -> Iterator[Do]:
    """In the plain model as well: what bfloat16 rounds is no fault of FSDP."""
    for path in a.case.stored_low:
        layer = Inside("model", path) if path else MODEL
        yield Do(call=call("steps.stored_low.store", layer, Variable("dtype")))


class StoredLowDimension(Dimension):
    """Which of the frozen linear layers are."""

    name = "stored_low"
    of_model: ClassVar[bool] = True
    features: ClassVar[Mapping[str, Feature]] = {
        "stored_low": Feature(
            about="no, alone (frozen layers are stored in bfloat16, in units where all is), mixed "
            "(beside parameters in float32 of the same unit)",
            group="Parameters",
            # In too few programs for each pair with it to be waited for.
            values=("no",),
            open=True,
        ),
    }
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "stored_low": Feature(
            about="no, alone, mixed: whether the unit's parameters are stored in bfloat16",
            group="Parameters",
            values=_HOW,
        ),
    }
    parameter_features: ClassVar[Mapping[str, Feature]] = {
        "stored_low": Feature(
            about="on when the parameter is stored in bfloat16", group="Parameters", values=ON
        ),
    }
    rejections: ClassVar[tuple[Rejection, ...]] = (
        Rejection(
            name="fsdp1_mixed_dtypes",
            why="all parameters of a unit become one flat parameter, of one dtype",
            pattern=r"Must flatten tensors with uniform dtype",
            source="torch/distributed/fsdp/_flat_param.py: _validate_tensors_to_flatten",
            asked=lambda a: a.fsdp1 and _mixes(a),
        ),
    )

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """How they lie to units."""
        found = [how for how in (_how(a, unit) for unit in a.units) if how != "no"]
        alone = "alone" if a.case.stored_low else "no"
        yield "stored_low", one(found, none=alone, several="mixed")

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """How much of the unit is."""
        yield "stored_low", _how(a, path)

    def parameter_values(self, a: Anatomy, fqn: str) -> Iterator[tuple[str, str]]:
        """Whether it is."""
        yield "stored_low", on(fqn in stored_low(a))

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """Which they are."""
        if case.stored_low:
            yield "in bfloat16", ", ".join(path or "the model" for path in case.stored_low)

    def check(self, a: Anatomy) -> None:
        """They are linear layers that are frozen all along, the same ones on all ranks."""
        asked = a.case.stored_low
        check_names(asked, a.by_path, "$.stored_low", "module")
        allowed = may_be_stored_low(a) if asked else ()
        for i, path in enumerate(asked):
            if path not in allowed:
                words = (
                    f"{path or 'the model'!r} is no linear layer that is frozen all along and tied "
                    "to nothing, without tensor parallelism"
                )
                raise CaseError(words, path=f"$.stored_low[{i}]")
        if asked and any(stored_low(b) & overridden(b) for b in a.under_each_plan):
            raise CaseError("a layer whose unit gathers it in float32", path="$.stored_low")
        for i, op in enumerate(a.case.program if asked else ()):
            # What one rank gathers in another dtype than the others aborts all of them.
            if op.parts_ranks:
                raise CaseError("ranks that part gather the same dtypes", path=f"$.program[{i}]")

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """None; fewer."""
        replace, asked = msgspec.structs.replace, case.stored_low
        if asked:
            yield Simpler(replace(case, stored_low=()), "layers stored in bfloat16")
        for i in range(len(asked)) if len(asked) > 1 else ():
            yield Simpler(replace(case, stored_low=asked[:i] + asked[i + 1 :]))


def _how(a: Anatomy, unit: str) -> str:
    states = {p.fqn in stored_low(a) for p in a.owned[unit] if p.numel}
    return "mixed" if len(states) > 1 else "alone" if True in states else "no"


def _mixes(a: Anatomy) -> bool:
    return any(_how(b, unit) == "mixed" for b in a.under_each_plan for unit in b.units)
