"""How forwards leave units, changed in the midst of a program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import ModulePath
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.operations.base import OperationBase, Progress
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.recipe import Do, Statement, call
from fsdpfuzz.case.sides import unit_module
from fsdpfuzz.case.units.grouped import together
from fsdpfuzz.case.units.replicas import is_replica
from fsdpfuzz.case.units.reshard_after_forward import METHOD, with_reshard
from fsdpfuzz.case.wrap import Fsdp2Plan, Fsdp2Unit, Plan
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.lowering import Lowering


class SetReshard(OperationBase, tag="set_reshard", frozen=True, kw_only=True):
    """``set_reshard_after_forward`` of one unit (fsdp2), and of those below it with ``recurse``.

    Its documentation names evaluations, for which units may stay whole.
    """

    changes_units: ClassVar[bool] = True

    unit: ModulePath
    reshard: bool
    recurse: bool = True

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """A unit of fsdp2, and none that it reaches has replicas alone."""
        if a.fsdp1:
            raise CaseError("an operation of fsdp2 alone", path=at)
        check_names((self.unit,), a.options, f"{at}.unit", "unit")
        for unit in a.plan.units:
            if isinstance(unit, Fsdp2Unit) and self._reaches(unit) and is_replica(unit):
                raise CaseError(f"{unit.path!r} is replicated, and never sharded", path=at)

    def _reaches(self, unit: Fsdp2Unit) -> bool:
        if not self.recurse:
            return unit.path == self.unit
        return any(within(path, self.unit) for path in together(unit))

    def plan_after(self, plan: Plan) -> Plan:
        """With the option of each unit that it reaches."""
        if not isinstance(plan, Fsdp2Plan):
            return plan
        return with_reshard(plan, self._reaches, self.reshard)

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """The reference has nothing to free."""
        options = {} if self.recurse else {"recurse": False}
        unit = unit_module(lowering.a, self.unit)
        yield Do(call=call(f".{METHOD}", unit, self.reshard, **options), who="fsdp")

    def words(self) -> str:
        """``set_reshard_after_forward(False) of 0 and below``."""
        below = " and below" if self.recurse else ""
        return f"{METHOD}({self.reshard}) of {self.unit or 'root'}{below}"
