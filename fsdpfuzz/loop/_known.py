"""Keeping off known defects: which drawn cases are not worth a run, and what is a consequence.

A draw costs a few milliseconds, a run many times that, so a case that can show what is known,
or that asks for a documented refusal, is often not run. A share is: the defect may be gone, and
another one may sit beside it; what is not refused as documented would be one.
"""

from __future__ import annotations

from collections.abc import Collection

from fsdpfuzz.case import (
    CaseSpec,
    anatomy,
    digest,
    foreseen_rejections,
    needs_gloo,
    needs_gpu,
    needs_of_torch,
)

SHARE = 16
"""Of so many cases in the region of a known defect one is run."""
REFUSED = 2
"""Of so many that are to be refused one is run: drawn are few, and they are over at once."""


def reason_to_skip(
    case: CaseSpec, showing: Collection[str], backend: str, offers: Collection[str] = ()
) -> str | None:
    """Why a drawn case is not run; None for one that is.

    ``machine`` for what `lacking` says, which none of is run; a known defect's id, or
    ``refused``.
    """
    if lacking(case, backend, offers):
        return "machine"
    # By the case, not by chance: the same seed runs the same cases.
    number = int(digest(case), 16)
    if showing:
        return None if number % SHARE == 0 else next(iter(showing))
    return "refused" if number % REFUSED and foreseen_rejections(anatomy(case)) else None


def lacking(case: CaseSpec, backend: str, offers: Collection[str] = ()) -> str:
    """What a case needs that ranks on this backend do not have; empty for one that can run.

    ``offers`` is what their torch has of what not every torch does.
    """
    # On gloo there may be no GPU, and NCCL has no collectives on the CPU.
    needs = needs_gpu if backend == "gloo" else needs_gloo
    return lacking_in_torch(case, offers) or needs(anatomy(case))


def lacking_in_torch(case: CaseSpec, offers: Collection[str]) -> str:
    """The same of torch alone, whatever the machine is."""
    missing = [name for name in needs_of_torch(anatomy(case)) if name not in offers]
    return f"a torch with {', '.join(missing)}" if missing else ""
