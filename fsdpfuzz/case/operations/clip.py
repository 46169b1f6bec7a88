"""Clipping of gradients by their total norm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Feature, Simpler, one
from fsdpfuzz.case.lacking import may_lack_grads
from fsdpfuzz.case.operations.average_unmanaged import trains_unmanaged
from fsdpfuzz.case.operations.base import Listed, OperationBase, Progress, Word
from fsdpfuzz.case.operations.requires_grad import alone_at
from fsdpfuzz.case.recipe import MODEL, Do, Global, Statement, Value, Variable, call
from fsdpfuzz.case.strides import without_elements
from fsdpfuzz.errors import CaseError, UsageError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.lowering import Lowering
    from fsdpfuzz.case.spec import CaseSpec

TOTAL_NORM = "total_norm"
_UTILITY = "torch.nn.utils.clip_grad_norm_"
_TYPES = ("2", "1", "inf", "1 and 2", "inf and other")
_MOST = 1e6


def _written(listed: Listed) -> tuple[Clip]:
    if listed.argument is None:
        return (Clip(max_norm=1.0, own=listed.clips),)
    try:
        norm = float(listed.argument)
    except ValueError:
        norm = 0.0
    if not 0.0 < norm <= _MOST:
        raise UsageError(f"give a norm above 0 and up to {_MOST:.0f}")
    return (Clip(max_norm=norm),)


class Clip(OperationBase, tag="clip", frozen=True, kw_only=True):
    """``clip_grad_norm_``: fsdp1's own method of the root, ``torch.nn.utils``' with fsdp2.

    ``error_if_nonfinite`` is an option of the latter alone. With ``own`` it is what ``clip(model)``
    of an imported model's target does, and the other options say nothing.
    """

    features: ClassVar[Mapping[str, Feature]] = {
        "clip": Feature(
            about="no, or the types of norm by which gradients are clipped: 2, 1, inf, 1 and 2, "
            "inf and other",
            group="Training",
            values=("no", *_TYPES),
            excludes={
                "no": {"clip_error": ("on",), "clips": ("1", "2+")},
                **{kind: {"clips": ("0",)} for kind in _TYPES},
            },
        ),
        "clips": Feature(
            about="0, 1, 2+: how often gradients are clipped",
            group="Training",
            values=("0", "1", "2+"),
            excludes={
                "0": {"clip_error": ("on",)},
                "1": {"clip": ("1 and 2", "inf and other")},
            },
        ),
        "clip_error": Feature(
            about="on when clipping is to raise where the norm is not finite (fsdp2 only)",
            group="Training",
            values=ON,
            apis=("fsdp2",),
        ),
    }
    program_words: ClassVar[Mapping[str, Word]] = {
        "clip": Word(
            about="clips gradients to the norm 1, or by clip(model); 'clip 0.1' to 0.1",
            means=_written,
            takes_argument=True,
            after_reduction=True,
        )
    }
    needs_reduced: ClassVar[bool] = True
    casts_buffers: ClassVar[bool] = True
    joins_gradients: ClassVar[bool] = True
    compared: ClassVar[tuple[Literal["grad", "param"], ...]] = ("grad",)
    results: ClassVar[tuple[str, ...]] = (TOTAL_NORM,)

    max_norm: Annotated[float, Meta(gt=0.0, le=_MOST)]
    norm_type: Literal[1, 2, "inf"] = 2
    error_if_nonfinite: bool = False
    own: bool = False

    @property
    def clips_by(self) -> str:
        """Of a clipping of your own it is not known."""
        return "own" if self.own else str(self.norm_type)

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """All gradients are reduced, and fsdp1 has a root to call it on."""
        if progress.pending or not progress.reduced:
            raise CaseError("clip where gradients are not reduced", path=at)
        if self.own and (a.imported is None or not a.imported.has("clip")):
            words = "goes with an imported model whose target has clip(model)"
            raise CaseError(words, path=f"{at}.own")
        if self.norm_type == "inf" and without_elements(a):
            raise CaseError("no tensor without elements has a maximum", path=f"{at}.norm_type")
        # ``FullyShardedDataParallel.clip_grad_norm_`` raises unless it is called on a root.
        if a.fsdp1 and "" not in a.options:
            raise CaseError("fsdp1 clips on its root, which is no unit here", path=at)
        if a.fsdp1 and self.error_if_nonfinite:
            raise CaseError("an option of fsdp2 alone", path=f"{at}.error_if_nonfinite")
        # Unless the user averages them there are others on each rank, so there is no one norm.
        left = trains_unmanaged(a)
        if left and (progress.own or progress.apart):
            raise CaseError("clip where ranks differ in what no unit manages", path=at)
        # One norm of tensors and DTensors torch does not take: ``_get_total_norm`` in
        # torch/nn/utils/clip_grad.py stacks the norms of all gradients.
        if left and not a.fsdp1:
            raise CaseError("clip with a parameter that no unit manages", path=at)

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """On the root, or over all parameters, as the plain model does."""
        norm = Variable(TOTAL_NORM)
        options: dict[str, Value] = {}
        target = lowering.a.imported
        if self.own and target is not None:
            yield Do(call=call(target.function("clip"), MODEL), into=(norm,))
            yield Do(call=call("steps.clip.known", norm), into=(norm,))
            return
        if self.norm_type != 2:
            inf = self.norm_type == "inf"
            options["norm_type"] = Global("torch.inf") if inf else self.norm_type
        plain = call(_UTILITY, call(".parameters", MODEL), self.max_norm, **options)
        if lowering.a.fsdp1:
            own = call(".clip_grad_norm_", MODEL, self.max_norm, **options)
            yield Do(call=own, into=(norm,), who="fsdp")
            yield Do(call=plain, into=(norm,), who="reference")
            return
        # fsdp2 has no clipping of its own: over DTensors the norm that the utility returns is one
        # itself, and partial, so only FSDP's has to be made whole afterwards.
        if self.error_if_nonfinite:
            # A reference that leaves the range of its dtype is no error: nothing is compared then.
            own = call(_UTILITY, *plain.args, **options, error_if_nonfinite=True)
            yield Do(call=own, into=(norm,), who="fsdp")
            yield Do(call=plain, into=(norm,), who="reference")
        else:
            yield Do(call=plain, into=(norm,))
        # What an evaluation has left whole are plain tensors, and have no gradient.
        alone = alone_at(lowering.a, lambda _, op: isinstance(op, Clip))
        lacking = may_lack_grads(lowering.a) or not lowering.reduced or bool(alone)
        yield Do(call=call("steps.clip.whole", norm, lacking), into=(norm,), who="fsdp")

    # ``clip_grad_norm_`` in torch/nn/utils/clip_grad.py has no type of its own for that.
    def may_refuse(self, message: str) -> bool:
        """With ``error_if_nonfinite``."""
        return self.error_if_nonfinite and "is non-finite, so it cannot be clipped" in message

    def words(self) -> str:
        """``clip to 0.5, norm inf``."""
        if self.own:
            return "clip(model) of the target"
        words = [f"clip to {self.max_norm:g}"]
        words += [f"norm {self.norm_type}"] if self.norm_type != 2 else []
        words += ["error if nonfinite"] if self.error_if_nonfinite else []
        return ", ".join(words)

    @classmethod
    def values(cls, a: Anatomy) -> Iterator[tuple[str, str]]:
        """By which norms, and whether one that is not finite is an error."""
        clips = [op for op in a.case.program if isinstance(op, Clip)]
        inf = any(op.norm_type == "inf" for op in clips)
        several = "inf and other" if inf else "1 and 2"
        yield "clip", one((str(op.norm_type) for op in clips), several=several)
        yield "clips", str(len(clips)) if len(clips) < 2 else "2+"
        if not a.fsdp1:
            yield "clip_error", on(any(op.error_if_nonfinite for op in clips))

    @classmethod
    def simpler(cls, case: CaseSpec) -> Iterator[Simpler]:
        """By the usual norm; without the error; to 0.1, which clips in a small model, too; to 1."""
        changes: tuple[tuple[dict[str, Any], str], ...] = (
            ({"own": False}, "clip(model)"),
            ({"norm_type": 2}, "clipping by another norm than the 2-norm"),
            ({"error_if_nonfinite": False}, "error_if_nonfinite"),
            ({"max_norm": 0.1}, ""),
            ({"max_norm": 1.0}, ""),
        )
        for fields, words in changes:
            low = fields.get("max_norm", 0)
            program = tuple(
                msgspec.structs.replace(op, **fields)
                if isinstance(op, Clip) and op.max_norm >= low
                else op
                for op in case.program
            )
            if program != case.program:
                yield Simpler(msgspec.structs.replace(case, program=program), words)
