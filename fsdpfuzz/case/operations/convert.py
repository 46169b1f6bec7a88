"""A model that is moved, or cast, and back again between iterations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from fsdpfuzz.case.dimension import Feature, Simpler, one
from fsdpfuzz.case.modules import Imported
from fsdpfuzz.case.operations.base import Listed, OperationBase, Progress, Word
from fsdpfuzz.case.recipe import MODEL, Do, Statement, Variable, call
from fsdpfuzz.case.units.cpu_offload import lies_on_cpu
from fsdpfuzz.case.wrap import Fsdp1Plan
from fsdpfuzz.errors import CaseError, UsageError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.lowering import Lowering
    from fsdpfuzz.case.spec import CaseSpec


def _moved(listed: Listed) -> tuple[OperationBase, ...]:
    """The operation of ``to_cpu``. :class:`UsageError` under fsdp1."""
    if isinstance(listed.plan, Fsdp1Plan):
        raise UsageError("FSDP1 promises nothing of model.to(): leave it out, or use fully_shard")
    return (Convert(what="device"),)


class Convert(OperationBase, tag="convert", frozen=True, kw_only=True):
    """``model.to()`` there and back (fsdp2): to float64, or to the CPU.

    A trainer does the latter to make room for something else on its GPU. ``FSDPModule._apply``
    shards all units for it, and takes over the parameters' new storage.
    """

    features: ClassVar[Mapping[str, Feature]] = {
        "converted": Feature(
            about="no, dtype (to float64 and back), device (to the CPU and back), several: what "
            "model.to() changes between iterations (fsdp2 only)",
            group="Training",
            # In too few programs for each pair with it to be waited for.
            values=("no",),
            open=True,
            apis=("fsdp2",),
        )
    }
    program_words: ClassVar[Mapping[str, Word]] = {
        "to_cpu": Word(
            about="moves an fsdp2 model to the CPU and back",
            means=_moved,
        )
    }
    compared: ClassVar[tuple[Literal["grad", "param"], ...]] = ("param",)

    what: Literal["dtype", "device"] = "dtype"

    @property
    def converts(self) -> bool:
        """``FSDPModule._apply`` shards all units first."""
        return True

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """Of fsdp2, while no backward is to come, and back to where all was before."""
        if a.fsdp1:
            raise CaseError("an operation of fsdp2 alone", path=at)
        if progress.pending:
            raise CaseError("a forward waits for its backward", path=at)
        reason = hinders(a, self.what)
        if reason is not None:
            raise CaseError(reason, path=f"{at}.what")

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """To FSDP's model as to the plain one."""
        to = Variable(self.what)
        yield Do(call=call(f"steps.convert.through_{_THROUGH[self.what]}", MODEL, to))

    def words(self) -> str:
        """``to float64 and back``."""
        return f"to {_THROUGH[self.what]} and back"

    @classmethod
    def values(cls, a: Anatomy) -> Iterator[tuple[str, str]]:
        """What is changed."""
        if not a.fsdp1:
            found = (op.what for op in a.case.program if isinstance(op, Convert))
            yield "converted", one(found, several="several")

    @classmethod
    def simpler(cls, case: CaseSpec) -> Iterator[Simpler]:
        """By its dtype, which needs no other device."""
        replace, ops = msgspec.structs.replace, case.program
        for i, op in enumerate(ops):
            if isinstance(op, Convert) and op.what != "dtype":
                program = (*ops[:i], replace(op, what="dtype"), *ops[i + 1 :])
                yield Simpler(replace(case, program=program), "a move to the CPU")


_THROUGH = {"dtype": "float64", "device": "cpu"}


def hinders(a: Anatomy, what: Literal["dtype", "device"]) -> str | None:
    """Why a model cannot go there and back by one ``to()`` each; None where it can."""
    if what == "device":
        offloaded = any(map(lies_on_cpu, a.options.values()))
        return "parameters of a unit are offloaded to the CPU" if offloaded else None
    if a.case.stored_low or isinstance(a.case.model, Imported):
        return "not all parameters may be of one dtype"
    return None
