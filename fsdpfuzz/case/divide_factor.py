"""``set_gradient_divide_factor`` of fsdp2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
from msgspec import Meta

from fsdpfuzz.case.base import Part, on
from fsdpfuzz.case.dimension import ON, Dimension, Feature, Simpler
from fsdpfuzz.case.recipe import MODEL, Do, Statement, Value, Variable, call, literal
from fsdpfuzz.case.tensor_parallel import data_ranks
from fsdpfuzz.case.units.precision import reduced_in
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec


class DivideFactor(Part, frozen=True, kw_only=True):
    """By what every unit divides the sum of its gradients over all ranks, and who does it."""

    factor: Annotated[float, Meta(gt=0.0, le=1024.0)] | None = None
    """None for the number of ranks, as usual."""
    force_sum: bool = False
    """``set_force_sum_reduction_for_comms(True)``."""

    def words(self) -> str:
        """``2, sums only``."""
        words = ["ranks" if self.factor is None else f"{self.factor:g}"]
        return ", ".join([*words, "sums only"] if self.force_sum else words)


class DivideFactorDimension(Dimension):
    """None, for the number of ranks, or another number, for all units alike."""

    name = "divide_factor"
    newer: ClassVar[tuple[str, ...]] = (
        "FSDPModule.set_gradient_divide_factor()",
        "FSDPModule.set_force_sum_reduction_for_comms()",
    )
    features: ClassVar[Mapping[str, Feature]] = {
        "divide_factor": Feature(
            about="no, ranks (their number, told), other, sums (their number, not told, where "
            "collectives are only to sum up): by what gradients are divided (fsdp2 only)",
            group="Training",
            # Too few sum up alone for each pair with it to be waited for.
            values=("no", "ranks", "other"),
            open=True,
            apis=("fsdp2",),
            excludes={"no": {"divided_apart": ("on",)}},
        ),
        "divided_apart": Feature(
            about="on when FSDP divides by the factor itself, because collectives are only to sum "
            "up or because float16 is reduced (fsdp2 only)",
            group="Training",
            values=ON,
            apis=("fsdp2",),
        ),
    }
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "divided_low": Feature(
            about="on when the reduce-scatter of the unit divides by the factor in bfloat16 "
            "(fsdp2 only)",
            group="Training",
            # Only NCCL does so: no pair is waited for where there are no GPUs.
            values=("off",),
            open=True,
            apis=("fsdp2",),
        )
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Whether the factor changes anything, and who divides by it."""
        if a.fsdp1:
            return
        told = a.case.divide_factor
        yield "divide_factor", _by(a)
        # ``_get_gradient_divide_factors`` in fsdp/_fully_shard/_fsdp_collectives.py: only float32
        # and bfloat16 leave the division to the collective, any other dtype might overflow in the
        # sum.
        half = any(reduced_in(unit) == "float16" for unit in a.options.values())
        yield "divided_apart", on(told is not None and (told.force_sum or half))

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """Whether the collective divides, and in bfloat16."""
        if a.fsdp1:
            return
        told, low = a.case.divide_factor, reduced_in(a.options[path]) == "bfloat16"
        alone = told is not None and not told.force_sum
        yield "divided_low", on(alone and low and _multiplies(a, path))

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """The factor."""
        if case.divide_factor is not None:
            yield "divided by", case.divide_factor.words()

    def asked(self, a: Anatomy) -> bool:
        """Whether there is one."""
        return a.case.divide_factor is not None

    def check(self, a: Anatomy) -> None:
        """It is an option of fsdp2, and says something."""
        told = a.case.divide_factor
        if a.fsdp1 and told is not None:
            raise CaseError("an option of fsdp2 alone", path="$.divide_factor")
        if told == DivideFactor():
            raise CaseError("neither a factor nor sums only", path="$.divide_factor")

    def needs_gpu(self, a: Anatomy) -> str:
        """gloo cannot multiply while it sums up, as FSDP wants it unless it only sums up."""
        told = a.case.divide_factor
        if told is None or told.force_sum:
            return ""
        multiplies = any(_multiplies(a, unit) for unit in a.units)
        return "a divide factor without sums only" if multiplies else ""

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """None; not by sums alone; 1."""
        told, replace = case.divide_factor, msgspec.structs.replace
        if told is None:
            return
        none = replace(case, divide_factor=None)
        if told.factor is None:
            yield Simpler(none, "set_force_sum_reduction_for_comms")
            return
        yield Simpler(none, "set_gradient_divide_factor")
        if told.force_sum:
            plainer = replace(told, force_sum=False)
            yield Simpler(replace(case, divide_factor=plainer), "set_force_sum_reduction_for_comms")
        if told.factor != 1.0:
            yield Simpler(replace(case, divide_factor=replace(told, factor=1.0)))


def _by(a: Anatomy) -> str:
    told = a.case.divide_factor
    if told is None:
        return "no"
    if told.factor is None:
        return "sums"
    return "ranks" if told.factor == data_ranks(a.case) else "other"


# ``_get_gradient_divide_factors``: a factor that is the size of the group is ReduceOp.AVG, which
# gloo has, any other is PREMUL_SUM. Over one rank there is no reduce-scatter to tell it to.
def _multiplies(a: Anatomy, path: str) -> bool:
    """Whether the reduce-scatter of a unit is asked to multiply, if not only to sum up."""
    factor = a.case.divide_factor
    return factor is not None and a.shards(path) not in (1, factor.factor)


def told(a: Anatomy, target: Value) -> Iterator[Do]:
    """What a unit is told once it is made."""
    factor = a.case.divide_factor
    if factor is not None and factor.factor is not None:
        tell = call(".set_gradient_divide_factor", target, factor.factor)
        yield Do(call=tell, who="fsdp")
    if factor is not None and factor.force_sum:
        sums = call(".set_force_sum_reduction_for_comms", target, True)
        yield Do(call=sums, who="fsdp")


def followed(a: Anatomy) -> Iterator[Statement]:
    """What makes the plain model's gradients those of FSDP, once they are averaged."""
    factor = a.case.divide_factor
    if factor is not None and factor.factor is not None:
        # The plain model's are divided by the number of ranks already, FSDP's by the factor
        # instead.
        yield scaled(a, data_ranks(a.case) / factor.factor)


def scaled(a: Anatomy, scale: float) -> Do:
    """Has each gradient of the plain model multiplied, as FSDP does with those that it reduces."""
    # What no unit manages FSDP neither reduces nor divides.
    unmanaged = sorted(fqn for fqn, owner in a.owners.items() if owner is None)
    parameters = call(".parameters", MODEL)
    if unmanaged:
        parameters = call("steps.names.others", Variable("named"), literal(unmanaged))
    later = any(not all(now.trained.values()) for _, _, now in a.situations(0))
    freezes = bool(a.case.frozen) or later
    options: dict[str, Value] = {"freezes": True} if freezes else {}
    made = call("steps.averaging.scaled", parameters, scale, **options)
    return Do(call=made, who="reference")
