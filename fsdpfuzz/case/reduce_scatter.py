"""How units of fsdp2 reduce and scatter their gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
from msgspec import Meta

from fsdpfuzz.case.base import Part, on
from fsdpfuzz.case.dimension import ON, Dimension, Feature, Simpler
from fsdpfuzz.case.lacking import may_lack_grads
from fsdpfuzz.case.recipe import Do, Value, call
from fsdpfuzz.case.units.replicas import is_replica
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec


# ``unused`` answers pytorch issue 158719: ranks that use different parameters otherwise reduce
# inputs of different sizes in one collective.
class ReduceScatter(Part, frozen=True, kw_only=True):
    """What all units are told of it; the defaults are PyTorch's own."""

    unused: bool = False
    """``set_reduce_scatter_unused_params(True)``: zeros for parameters without a gradient."""
    buffers: Annotated[int, Meta(ge=1, le=8)] = 1
    """``set_reduce_scatter_max_input_buffers``."""
    own_group: bool = False
    """``set_separate_reduce_scatter_group(True)``: not the process group of the all-gathers."""

    def words(self) -> str:
        """``unused parameters, too, 2 buffers, own group``."""
        words = ["unused parameters, too"] if self.unused else []
        words += [f"{self.buffers} buffers"] if self.buffers > 1 else []
        words += ["own group"] if self.own_group else []
        return ", ".join(words)


_PLAINER = (
    ("unused", False, "set_reduce_scatter_unused_params"),
    ("buffers", 1, "set_reduce_scatter_max_input_buffers"),
    ("own_group", False, "set_separate_reduce_scatter_group"),
)


class ReduceScatterDimension(Dimension):
    """As it is by default, or with zeros for what is unused, more buffers, a group of its own."""

    name = "reduce_scatter"
    newer: ClassVar[tuple[str, ...]] = tuple(f"FSDPModule.{name}()" for _, _, name in _PLAINER)
    features: ClassVar[Mapping[str, Feature]] = {
        "unused_reduced": Feature(
            about="on when parameters without a gradient are reduced as zeros (fsdp2 only)",
            group="Training",
            values=ON,
            apis=("fsdp2",),
        ),
        "reduce_buffers": Feature(
            about="one, more: the buffers with which gradients go into it (fsdp2 only)",
            group="Training",
            values=("one", "more"),
            apis=("fsdp2",),
        ),
        "reduce_group": Feature(
            about="shared, own: the process group of it, that of all-gathers or another one "
            "(fsdp2 only)",
            group="Training",
            # In too few cases for each pair with it to be waited for.
            values=("shared",),
            open=True,
            apis=("fsdp2",),
        ),
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Each of the three."""
        if not a.fsdp1:
            told = a.case.reduce_scatter or ReduceScatter()
            yield "unused_reduced", on(told.unused)
            yield "reduce_buffers", "more" if told.buffers > 1 else "one"
            yield "reduce_group", "own" if told.own_group else "shared"

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """What differs from the default."""
        if case.reduce_scatter is not None:
            yield "reduce-scatter", case.reduce_scatter.words()

    def asked(self, a: Anatomy) -> bool:
        """Wherever anything is told."""
        return a.case.reduce_scatter is not None

    def check(self, a: Anatomy) -> None:
        """fsdp2 is told something; an optimizer takes a zero gradient as it takes none."""
        case, told, at = a.case, a.case.reduce_scatter, "$.reduce_scatter"
        if told is None:
            return
        if a.fsdp1:
            raise CaseError("an option of fsdp2 alone", path=at)
        if told == ReduceScatter():
            raise CaseError("leave it out where all is PyTorch's default", path=at)
        # ``FSDPParamGroup._set_separate_reduce_scatter_group`` asserts a mesh to shard over.
        if told.own_group and replicates(a):
            text = "replicated units have no reduce-scatter that could have a group"
            raise CaseError(text, path=f"{at}.own_group")
        # Plain torch skips a parameter whose gradient is None, and steps one whose gradient is
        # zero.
        if told.unused and keeps_going(case) and may_lack_grads(a):
            text = "with a momentum, a parameter goes on moving under gradients of zero"
            raise CaseError(text, path=f"{at}.unused")

    def told(self, a: Anatomy, root: Value) -> Iterator[Do]:
        """A call for each that differs."""
        told = a.case.reduce_scatter or ReduceScatter()
        for field, plain, method in _PLAINER:
            value = getattr(told, field)
            if value != plain:
                yield Do(call=call(f".{method}", root, value), who="fsdp")

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """One thing less; fewer buffers."""
        told, replace = case.reduce_scatter, msgspec.structs.replace
        if told is None:
            return
        for name, plain, words in _PLAINER:
            less = replace(told, **{name: plain})
            if less != told:
                left = None if less == ReduceScatter() else less
                yield Simpler(replace(case, reduce_scatter=left), words)
        for number in range(2, told.buffers):
            yield Simpler(replace(case, reduce_scatter=replace(told, buffers=number)))


def keeps_going(case: CaseSpec) -> bool:
    """Whether the optimizer changes a parameter whose gradient is zero now, and was not."""
    optimizer = case.optimizer
    return optimizer is not None and optimizer.keeps_state


def replicates(a: Anatomy) -> bool:
    """Whether any unit is replicated instead of sharded, under any plan."""
    return any(is_replica(unit) for b in a.under_each_plan for unit in b.options.values())
