"""Other ways to run a training, which must come to the same result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

import msgspec

from fsdpfuzz.case.base import Name, ParameterName, Part
from fsdpfuzz.case.checkpoints import Checkpoint, CheckpointsDimension, check_checkpoints
from fsdpfuzz.case.dimension import Dimension, Feature, Simpler
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.operations.forward import cut_gradients
from fsdpfuzz.case.wrap import Plan
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec

FIELDS = ("plan", "checkpoints", "frozen")
"""What a variant may have of its own."""


class Variant(Part, frozen=True, kw_only=True):
    """Another plan, placement of checkpoints or freezing of a case.

    What is None is taken over from the case. ``held_out`` names parameters that require
    grad but are not given to the optimizer.
    """

    name: Name
    plan: Plan | None = None
    checkpoints: tuple[Checkpoint, ...] | None = None
    frozen: tuple[ParameterName, ...] | None = None
    held_out: tuple[ParameterName, ...] = ()


def variant_of(case: CaseSpec, variant: Variant) -> CaseSpec:
    """The case as a variant runs it."""
    own = {name: value for name in FIELDS if (value := getattr(variant, name)) is not None}
    return msgspec.structs.replace(case, held_out=variant.held_out, twins=(), **own)


def variants(case: CaseSpec) -> dict[str, CaseSpec]:
    """The case and its variants by the name of their subject, each as it is run."""
    return {"case": case, **{v.name: variant_of(case, v) for v in case.twins}}


class VariantsDimension(Dimension):
    """What the variants of a case have of their own."""

    name = "variants"
    features: ClassVar[Mapping[str, Feature]] = {
        "variants": Feature(
            about="no, or what the case's variants have of their own: plan, checkpoints, frozen, "
            "joined by +",
            group="Training",
            values=("no",),
            open=True,
        )
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """What differs in any of them."""
        own = [n for n in FIELDS if any(getattr(v, n) is not None for v in a.case.twins)]
        yield "variants", "+".join(own) or "no"

    def check(self, a: Anatomy) -> None:
        """Each has a name of its own, and comes to the same gradients."""
        names = [v.name for v in a.case.twins]
        for i, variant in enumerate(a.case.twins):
            at = f"$.twins[{i}]"
            if variant.name == "case" or variant.name in names[:i]:
                raise CaseError(f"{variant.name!r} is a name in use", path=f"{at}.name")
            check_names(variant.held_out, a.by_fqn, f"{at}.held_out", "parameter")
            check_names(variant.frozen or (), a.by_fqn, f"{at}.frozen", "parameter")
            # Clipping by a total norm: other frozen parameters change the factor for all that are
            # left.
            if variant.frozen is not None and any(op.joins_gradients for op in a.case.program):
                raise CaseError(
                    "with other gradients the program leaves others of all", path=f"{at}.frozen"
                )
            if variant.frozen is not None and any(op.asks_trained for op in a.case.program):
                words = "the program changes what requires grad, whether it is held out or not"
                raise CaseError(words, path=f"{at}.frozen")
            run = a.of(variant_of(a.case, variant))
            check_checkpoints(run, variant.checkpoints or (), f"{at}.checkpoints")
            _check_gradients(a, run, at)

    def cases(self, case: CaseSpec) -> Iterator[tuple[str, CaseSpec]]:
        """The case as each variant runs it."""
        for i, variant in enumerate(case.twins):
            yield f"$.twins[{i}]", variant_of(case, variant)

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """None; one less."""
        replace = msgspec.structs.replace
        if case.twins:
            yield Simpler(replace(case, twins=()), "another way to run the same training")
        for i in range(len(case.twins)) if len(case.twins) > 1 else ():
            yield Simpler(replace(case, twins=case.twins[:i] + case.twins[i + 1 :]))
        for i, variant in enumerate(case.twins):
            for smaller in _simpler_variants(case, variant):
                left = (*case.twins[:i], smaller, *case.twins[i + 1 :])
                yield Simpler(replace(case, twins=left))


def _check_gradients(a: Anatomy, run: Anatomy, at: str) -> None:
    """:class:`CaseError` where a variant with other checkpoints rightly has other gradients."""
    if run.case.checkpoints == a.case.checkpoints:
        return
    for whose, one in (("the case's", a), ("its", run)):
        if cut_gradients(one, plain=True):
            raise CaseError(
                f"{whose} reentrant checkpoints leave out gradients, as no input of theirs "
                "requires grad, so other checkpoints come to another result",
                path=f"{at}.checkpoints",
            )


def _simpler_variants(case: CaseSpec, variant: Variant) -> Iterator[Variant]:
    """The variant with its own placement of checkpoints made plainer."""
    if variant.checkpoints:
        run = variant_of(case, variant)
        for simpler in CheckpointsDimension().simpler(run):
            yield msgspec.structs.replace(variant, checkpoints=simpler.case.checkpoints)
