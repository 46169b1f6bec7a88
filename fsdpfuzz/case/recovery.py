"""``reset_iter_state`` of fsdp2, after exceptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import msgspec

from fsdpfuzz.case.dimension import Dimension, Feature, Simpler
from fsdpfuzz.case.operations.interrupt import root_calls
from fsdpfuzz.case.operations.recover import METHOD, Recover
from fsdpfuzz.case.paths import within

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.flow import Situation
    from fsdpfuzz.case.spec import CaseSpec

_WAYS = ("begin", "end", "gradient")


class RecoveryDimension(Dimension):
    """Whether the program starts over after an exception, which not every torch can."""

    name = "recovery"
    newer: ClassVar[tuple[str, ...]] = (f"FSDPModule.{METHOD}()",)
    features: ClassVar[Mapping[str, Feature]] = {
        "recovered": Feature(
            about="no, begin, end, gradient: where a module raises first, as its forward begins or "
            "ends or a gradient comes to it, before the program starts over (fsdp2 only)",
            group="Training",
            values=("no", *_WAYS),
            apis=("fsdp2",),
            excludes={way: {"flips": ("some", "all"), "root": ("open",)} for way in _WAYS},
        )
    }

    unit_features: ClassVar[Mapping[str, Feature]] = {
        "abandoned": Feature(
            about="off, half way (an exception may end a backward half way through the unit), "
            "accumulated (gradients of it wait for their reduction), as the program starts over "
            "(fsdp2 only)",
            group="Training",
            values=("off", "half way", "accumulated"),
            apis=("fsdp2",),
        ),
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Where a module raises."""
        if not a.fsdp1:
            found = (op.when for op in a.case.program if isinstance(op, Recover))
            yield "recovered", next(found, "no")

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """What a unit holds by then."""
        if not a.fsdp1:
            yield "abandoned", abandoned_units(a).get(path, "off")

    def asked(self, a: Anatomy) -> bool:
        """Where it does."""
        return any(op.starts_over for op in a.case.program)

    def check(self, a: Anatomy) -> None:
        """The operation sees to it."""

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """Without any."""
        left = tuple(op for op in case.program if not op.starts_over)
        if left != case.program:
            yield Simpler(msgspec.structs.replace(case, program=left), f"an exception and {METHOD}")


@lru_cache(maxsize=64)
def abandoned_units(a: Anatomy) -> Mapping[str, str]:
    """Units that hold unreduced gradients as the program starts over, or may: from where."""
    found: dict[str, str] = {}
    unreduced: set[str] = set()
    sync = True
    for i, op, now in a.situations(0):
        b = a.at(i)
        if op.waits:
            sync = op.reduces
        elif op.gives_gradients:
            given = {p for p, own in b.managed.items() for one in own if one.fqn in now.given}
            unreduced = set() if sync else unreduced | {path for path in given if path is not None}
        elif op.renews:
            unreduced.clear()
        elif isinstance(op, Recover):
            found |= dict.fromkeys(unreduced, "accumulated")
            for path in _half_way(b, op, now) if op.when == "gradient" else ():
                found.setdefault(path, "half way")
            unreduced.clear()
    return found


# ``FSDPParamGroup.post_backward`` comes with the gradient of what a unit was given or, without
# one, as the whole backward ends (fsdp/_fully_shard/_fsdp_param_group.py).
def _half_way(a: Anatomy, op: Recover, now: Situation) -> Iterator[str]:
    """Units of which the backward may have come to a parameter, but not to the end."""
    calls = root_calls(a, now)
    last = max((i for i, call in enumerate(calls) if call.path == op.module), default=len(calls))
    before = [call for i, call in enumerate(calls) if i < last or within(call.path, op.module)]
    later = [call.path for call in calls[last + 1 :] if not within(call.path, op.module)]
    for path in a.units:
        modules = a.modules_of(path)
        around = any(within(op.module, module) for module in modules)
        # Of several modules it comes with the gradient of what the first was given.
        waits = len(modules) > 1 and any(call.path in modules for call in before)
        given = all(call.input_grad for call in calls if call.path in modules)
        # What a module holds itself may be used at its very end.
        own = [module for module in a.by_path if within(op.module, module) and module != op.module]
        names = a.names_in(path)
        used = any(within(name, module) for name in names for module in later) or any(
            name.rpartition(".")[0] in own for name in names
        )
        if used and (around or waits or not given):
            yield path
