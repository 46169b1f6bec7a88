"""What a case must not contradict, beyond types and ranges. The first fault found is raised."""

from __future__ import annotations

from fsdpfuzz.case.anatomy import anatomy
from fsdpfuzz.case.dimensions import DIMENSIONS
from fsdpfuzz.case.spec import CaseSpec
from fsdpfuzz.errors import CaseError


def check(case: CaseSpec) -> None:
    """Raises :class:`CaseError` with the JSON path of the first contradiction."""
    a = anatomy(case)
    for dimension in DIMENSIONS:
        dimension.check(a)
        for at, other in dimension.cases(case):
            try:
                check(other)
            except CaseError as error:
                raise CaseError(error.reason, path=error.path.replace("$", at, 1)) from None


def is_sound(case: CaseSpec) -> bool:
    """Whether `check` accepts it."""
    try:
        check(case)
    except CaseError:
        return False
    return True
