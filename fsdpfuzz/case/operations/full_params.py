"""Whole parameters between iterations: read, and with fsdp1 written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from fsdpfuzz.case.base import ParameterName, on
from fsdpfuzz.case.checkpoints import names_are_prefixed
from fsdpfuzz.case.dimension import ON, Feature, Rejection, Simpler
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.operations.base import OperationBase, Progress
from fsdpfuzz.case.operations.rescale import check_trained
from fsdpfuzz.case.recipe import MODEL, Do, Statement, Value, Variable, call, literal
from fsdpfuzz.case.tensor_parallel import ANY_CUT
from fsdpfuzz.case.units.sharding import is_whole
from fsdpfuzz.case.units.use_orig_params import ANY_FLAT
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.lowering import Lowering
    from fsdpfuzz.case.spec import CaseSpec

WHOLE = "full_params"
MAX_NAMES = 3


class FullParams(OperationBase, tag="full_params", frozen=True, kw_only=True):
    """All parameters, whole and by name: ``summon_full_params``, or ``unshard`` by hand.

    fsdp2 reshards every unit afterwards; of its units only the values can be read.
    """

    features: ClassVar[Mapping[str, Feature]] = {
        "full_params": Feature(
            about="no, read, written: what is done with whole parameters between iterations",
            group="State",
            values=("no", "read", "written"),
            excludes={
                "no": {
                    "full_params_offload": ("on",),
                    "full_params_grads": ("on",),
                    "full_params_rank0": ("on",),
                    "unshard_async": ("on",),
                },
                "read": ANY_CUT,
                "written": {"api": ("fsdp2",), **ANY_CUT},
            },
        ),
        "full_params_offload": Feature(
            about="on when whole parameters are offloaded to the CPU (fsdp1 only)",
            group="State",
            values=ON,
            apis=("fsdp1",),
        ),
        "full_params_grads": Feature(
            about="on when whole gradients are read beside whole parameters (fsdp1 only)",
            group="State",
            values=ON,
            apis=("fsdp1",),
            excludes={"on": ANY_FLAT},
        ),
        "full_params_rank0": Feature(
            about="on when rank 0 alone gets whole parameters (fsdp1 only)",
            group="State",
            values=ON,
            apis=("fsdp1",),
        ),
        "unshard_async": Feature(
            about="on when units are unsharded by hand with async_op=True (fsdp2 only)",
            group="State",
            values=ON,
            apis=("fsdp2",),
        ),
    }
    rejections: ClassVar[tuple[Rejection, ...]] = (
        Rejection(
            name="fsdp1_summon_offload_unsharded",
            why="whole parameters of a unit that is not sharded cannot be offloaded",
            # One rank in a shard group is NO_SHARD as well, whatever the strategy that was asked
            # for.
            pattern=r"offload_to_cpu=True and NO_SHARD is not supported",
            source="_validate_unshard_params_args of torch.distributed.fsdp",
            asked=lambda a: a.fsdp1 and _offloads(a) and any(is_whole(a, unit) for unit in a.units),
        ),
    )
    needs_reduced: ClassVar[bool] = True
    casts_buffers: ClassVar[bool] = True
    takes_tensor_parallel: ClassVar[bool] = False
    compared: ClassVar[tuple[Literal["grad", "param"], ...]] = ("param",)
    results: ClassVar[tuple[str, ...]] = (WHOLE,)

    written: tuple[ParameterName, ...] = ()
    """Those that are scaled meanwhile (fsdp1)."""
    offload_to_cpu: bool = False
    """fsdp1 only."""
    grads: bool = False
    """``with_grads``: the gradients, too, of units that show their original parameters (fsdp1)."""
    rank0_only: bool = False
    """Whether the other ranks get nothing, and none writes (fsdp1)."""
    async_op: bool = False
    """fsdp2 only."""

    @property
    def asks_trained(self) -> bool:
        """With gradients, which trained parameters alone have."""
        return self.grads

    @property
    def moves_parameters(self) -> bool:
        """With ``offload_to_cpu``."""
        return self.offload_to_cpu

    @property
    def looks_whole(self) -> bool:
        """It is for that."""
        return True

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """Between iterations; what is written is trained, and FSDP has the option."""
        if progress.pending or not progress.reduced:
            raise CaseError("whole parameters in the middle of an iteration", path=at)
        if a.fsdp1 and self.async_op:
            raise CaseError("an option of fsdp2 alone", path=f"{at}.async_op")
        if not a.fsdp1 and a.split_ties:
            # Refused by a forward alone (``_validate_no_duplicate_params`` in _fsdp_state.py).
            raise CaseError("a parameter tied across units, of which fsdp2 makes two", path=at)
        for name in ("written", "offload_to_cpu", "grads", "rank0_only"):
            if not a.fsdp1 and getattr(self, name):
                raise CaseError("an option of fsdp1 alone", path=f"{at}.{name}")
        # ``_validate_unshard_params_args`` in fsdp/_unshard_param_utils.py.
        flat = any(unit.flat for unit in a.fsdp1_options.values())
        if self.grads and (flat or self.offload_to_cpu):
            text = "gradients go with use_orig_params=True alone, and with no offload"
            raise CaseError(text, path=f"{at}.grads")
        if self.rank0_only and self.written:
            raise CaseError("what one rank writes the others do not get", path=f"{at}.written")
        check_names(self.written, a.by_fqn, f"{at}.written", "parameter")
        check_trained(a, self.written, f"{at}.written")

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """From FSDP's model while it is whole, from the plain one as it is."""
        a, whole = lowering.a, Variable(WHOLE)
        names = a.canonical_names(self.written)
        options: dict[str, Value] = {}
        if self.offload_to_cpu:
            options["offload_to_cpu"] = True
        if self.grads:
            options |= {"grads": True, "with_grads": True}
        if self.rank0_only:
            options["rank0_only"] = True
        if self.async_op:
            options["waits"] = True
        written = [literal(names)] if a.fsdp1 else []
        own = call(
            f"steps.full_params.{'summoned' if a.fsdp1 else 'unsharded'}",
            MODEL,
            names_are_prefixed(lowering.a),
            *written,
            **options,
        )
        yield Do(call=own, into=(whole,), who="fsdp")
        shared = call("steps.full_params.shared", whole, Variable("device"))
        if self.rank0_only:
            yield Do(call=shared, into=(whole,), who="fsdp")
        more = {"grads": True} if self.grads else {}
        plain = call("steps.full_params.taken", Variable("named"), literal(names), **more)
        yield Do(call=plain, into=(whole,), who="reference")
        # What no unit manages each rank has trained by itself.
        if self.rank0_only and a.unmanaged:
            yield Do(call=shared, into=(whole,), who="reference")

    def words(self) -> str:
        """``full parameters, write 0.weight``."""
        more = len(self.written) - MAX_NAMES
        shown = ", ".join(self.written[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
        words = ["full parameters"]
        words += [f"write {shown}"] if self.written else []
        words += ["to CPU"] if self.offload_to_cpu else []
        words += ["with gradients"] if self.grads else []
        words += ["on rank 0 only"] if self.rank0_only else []
        words += ["async"] if self.async_op else []
        return ", ".join(words)

    @classmethod
    def values(cls, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Whether any are written, and the options of the API."""
        found = [op for op in a.case.program if isinstance(op, FullParams)]
        written = any(op.written for op in found)
        yield "full_params", "written" if written else "read" if found else "no"
        if a.fsdp1:
            yield "full_params_offload", on(_offloads(a))
            yield "full_params_grads", on(any(op.grads for op in found))
            yield "full_params_rank0", on(any(op.rank0_only for op in found))
        else:
            yield "unshard_async", on(any(op.async_op for op in found))

    @classmethod
    def simpler(cls, case: CaseSpec) -> Iterator[Simpler]:
        """Nothing written; on the device, and at once; less written."""
        replace = msgspec.structs.replace

        def having(i: int, op: FullParams) -> CaseSpec:
            return replace(case, program=(*case.program[:i], op, *case.program[i + 1 :]))

        for i, op in enumerate(case.program):
            if not isinstance(op, FullParams):
                continue
            if op.written:
                yield Simpler(having(i, replace(op, written=())), "a write of whole parameters")
            if op.offload_to_cpu:
                yield Simpler(having(i, replace(op, offload_to_cpu=False)), "offload_to_cpu")
            if op.grads:
                yield Simpler(having(i, replace(op, grads=False)), "with_grads")
            if op.rank0_only:
                yield Simpler(having(i, replace(op, rank0_only=False)), "rank0_only")
            if op.async_op:
                yield Simpler(having(i, replace(op, async_op=False)), "async_op")
            for j in range(len(op.written)) if len(op.written) > 1 else ():
                less = op.written[:j] + op.written[j + 1 :]
                yield Simpler(having(i, replace(op, written=less)))


def _offloads(a: Anatomy) -> bool:
    return any(isinstance(op, FullParams) and op.offload_to_cpu for op in a.case.program)
