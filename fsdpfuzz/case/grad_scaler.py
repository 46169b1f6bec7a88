"""Gradient scaling: ``ShardedGradScaler`` of fsdp1, ``torch.amp.GradScaler`` with fsdp2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
from msgspec import Meta

from fsdpfuzz.case.base import Part, on
from fsdpfuzz.case.dimension import Dimension, Feature, Simpler
from fsdpfuzz.case.operations.overflow import Overflow, check_overflows, overflow_apart, stepped
from fsdpfuzz.case.operations.unscale import Unscale
from fsdpfuzz.case.operations.update_scale import UpdateScale
from fsdpfuzz.case.optimizer import mixes_tensors
from fsdpfuzz.case.recipe import SCALER, Do, Statement, Variable, call
from fsdpfuzz.case.stepped import surely_graded
from fsdpfuzz.case.units.precision import names_dtype
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec

_OWN_OPERATIONS = (Unscale, UpdateScale, Overflow)


class GradScaler(Part, frozen=True, kw_only=True):
    """The scaler that each loss and each step goes through; it doubles and halves its scale."""

    init_scale: Annotated[float, Meta(gt=0.0, le=65536.0)] = 8.0
    growth_interval: Annotated[int, Meta(ge=1, le=2000)] = 2000
    """After how many steps in a row the scale is doubled."""

    def words(self) -> str:
        """``by 8, doubled after 2 steps``."""
        return f"by {self.init_scale:g}, doubled after {self.growth_interval} steps"


class GradScalerDimension(Dimension):
    """None, or from which scale on, and after how many steps it grows."""

    name = "grad_scaler"
    features: ClassVar[Mapping[str, Feature]] = {
        "grad_scaler": Feature(
            about="off, on (losses and steps go through a GradScaler), overflow (a gradient is not "
            "finite once, where some rank has it), overflow apart (some ranks do not have it, and "
            "the first gradient is not sharded over them: fsdp2 only)",
            group="Training",
            values=("off",),
            open=True,
        ),
        "unscaled": Feature(
            about="on when the program unscales gradients before a step",
            group="Training",
            values=("off",),
            open=True,
        ),
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Whether there is one, and whether it meets an overflow."""
        program = a.case.program
        value = "off" if a.case.grad_scaler is None else "on"
        if any(isinstance(op, Overflow) for op in program):
            value = "overflow apart" if overflow_apart(a) else "overflow"
        yield "grad_scaler", value
        yield "unscaled", on(any(isinstance(op, Unscale) for op in program))

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """The scale."""
        if case.grad_scaler is not None:
            yield "gradients scaled", case.grad_scaler.words()

    def check(self, a: Anatomy) -> None:
        """What a step and its update are for, in the order that the scaler wants."""
        case, at = a.case, "$.grad_scaler"
        if case.grad_scaler is None:
            for i, op in enumerate(case.program):
                if isinstance(op, _OWN_OPERATIONS):
                    raise CaseError("goes with a grad_scaler alone", path=f"$.program[{i}]")
            return
        if case.optimizer is None or not any(op.steps_optimizer for op in case.program):
            raise CaseError("a scaler without a step", path=at)
        if a.imported is not None:
            raise CaseError("goes with a model of ours: nobody knows what has a gradient", path=at)
        if case.probes:
            raise CaseError("goes with no memory tracker", path=at)
        # "aten._amp_foreach_non_finite_check_and_unscale_.default got mixed torch.Tensor and
        # DTensor" (tensor/_dispatch.py).
        if mixes_tensors(a):
            raise CaseError("torch unscales no list of tensors and DTensors", path=at)
        if not a.fsdp1 and any(None in b.managed for b in a.under_each_plan):
            raise CaseError("each rank would look for itself at what no unit manages", path=at)
        _check_order(a)
        check_overflows(a)

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """None; without overflow; the usual scale and interval."""
        told, replace = case.grad_scaler, msgspec.structs.replace
        if told is None:
            return
        program = tuple(op for op in case.program if not isinstance(op, _OWN_OPERATIONS))
        yield Simpler(replace(case, grad_scaler=None, program=program), "a GradScaler")
        usual = GradScaler()
        for name in told.__struct_fields__:
            if getattr(told, name) != (value := getattr(usual, name)):
                changed = replace(told, **{name: value})
                yield Simpler(replace(case, grad_scaler=changed))


def _check_order(a: Anatomy) -> None:
    """As ``GradScaler`` raises where it is not asked in that order, or has seen no gradient."""
    stage = "ready"
    for i, op, _, graded in surely_graded(a):
        at = f"$.program[{i}]"
        if isinstance(op, UpdateScale):
            if stage != "stepped":
                raise CaseError("no step comes before this update", path=at)
            stage = "ready"
        elif isinstance(op, Unscale) or op.steps_optimizer:
            if stage == "stepped" or (isinstance(op, Unscale) and stage == "unscaled"):
                raise CaseError(f"{op.kind()} before the update of the step before", path=at)
            # "No inf checks were recorded for this optimizer."
            if not stepped(a, graded):
                raise CaseError("the optimizer may have no gradient", path=at)
            stage = "unscaled" if isinstance(op, Unscale) else "stepped"
        elif stage != "ready" and (
            op.gives_gradients or op.renews or op.starts_over or op.changes_trained
        ):
            raise CaseError(f"{op.kind()} between unscaling and the update", path=at)


def scaler_of(a: Anatomy) -> Iterator[Statement]:
    """The scaler, beside an optimizer."""
    told = a.case.grad_scaler
    if told is None:
        return
    options = {"init_scale": told.init_scale, "growth_interval": told.growth_interval}
    device = Variable("device")
    plain = call("steps.grad_scaler.plain", device, **options)
    own = call("steps.grad_scaler.sharded", device, **options) if a.fsdp1 else plain
    right = plain
    if names_dtype(a.plan, "float16"):
        right = call("steps.grad_scaler.by_dtype", device, Variable("dtype"), **options)
    if own == right:
        yield Do(call=own, into=(SCALER,))
        return
    yield Do(call=own, into=(SCALER,), who="fsdp")
    yield Do(call=right, into=(SCALER,), who="reference")


def scaler_made_again(a: Anatomy) -> Iterator[Statement]:
    """Another scaler, which loads the state of the one before."""
    if a.case.grad_scaler is not None:
        again = call("steps.grad_scaler.made_again", SCALER, Variable("device"))
        yield Do(call=again, into=(SCALER,), who="fsdp")
