"""The finding that is saved with a case: read with distrust, or found again."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from msgspec import structs

from fsdpfuzz.case import anatomy, variants
from fsdpfuzz.errors import CaseError, UsageError, one_line
from fsdpfuzz.observations import Quantity

if TYPE_CHECKING:
    from fsdpfuzz.corpus import Entry
    from fsdpfuzz.pool import Interpreter
    from fsdpfuzz.verdict import Finding

_COLLECTIVE = r"(all_gather|all_reduce|reduce_scatter) \w+ \d+"
_RESULT = r"\w+\[\w+(\.\w+)*\](\.\w+)?"
_NAME = re.compile(rf"(\w+(\.\w+)*)?(\[\d+\])?|{_RESULT}|{_COLLECTIVE}", re.ASCII)
"""FQNs, keys of state dicts, ``loss[2]``, ``full_params[0.weight]``, collectives.

They come to stand in a script.
"""


def read_with_finding(path: Path) -> Entry:
    """The entry in a file; a known defect's smallest case with the finding that it shows.

    That was found on the newest release on which the defect was seen.
    """
    from fsdpfuzz.corpus import Found, read_entry
    from fsdpfuzz.known import defect_in

    entry = read_entry(path)
    if not entry.defect:
        return entry
    defect = defect_in(path)
    backend, releases = next(iter(defect.seen.items()))
    found = Found(
        key=defect.finding.key,
        message=defect.finding.message,
        property="",
        torch=releases[-1],
        backend=backend,
        world_size=entry.case.world_size,
        date=defect.date,
        seed=entry.case.seed,
        finding=defect.finding,
    )
    return structs.replace(entry, found=found)


def finding_of(
    entry: Entry,
    path: Path,
    backend: str,
    injection: str | None,
    python: Interpreter | None = None,
) -> Finding | None:
    """What is saved with a case as its finding; None where nothing is.

    Of older files, which hold key and message alone, the case is run again. :class:`CaseError`
    for a finding that does not fit its case, :class:`UsageError` for one that does not come back.
    """
    if entry.found is None:
        return None
    finding = entry.found.finding
    if finding is None:
        return _found_again(entry, path, backend, injection, python)
    try:
        _check(entry, finding)
    except CaseError as error:
        raise error.at(str(path)) from None
    return finding


def _check(entry: Entry, finding: Finding) -> None:
    from fsdpfuzz.invariants import REGISTRY

    runs = variants(entry.case)
    for name, value, good in (
        ("invariant", finding.invariant, finding.invariant in REGISTRY),
        ("api", finding.api, finding.api == entry.case.api),
        ("variant", finding.variant, not finding.variant or finding.variant in runs),
        ("op", finding.op, -1 <= finding.op < len(entry.case.program)),
        ("name", finding.name, _NAME.fullmatch(finding.name) is not None),
    ):
        if not good:
            raise CaseError(f"{value!r} does not fit the case", path=f"$.found.finding.{name}")
    a = anatomy(runs[finding.variant or "case"])
    if finding.quantity in ("grad", "param") and finding.name not in a.by_fqn:
        reason = f"the model has no parameter {finding.name!r}"
        raise CaseError(reason, path="$.found.finding.name")
    if finding.unit is not None and finding.unit not in a.units:
        reason = f"{finding.unit!r} is no unit of the case"
        raise CaseError(reason, path="$.found.finding.unit")
    parity = finding.invariant.endswith("_parity")
    if parity and finding.quantity not in get_args(Quantity):
        reason = f"{finding.quantity!r} is nothing that is compared"
        raise CaseError(reason, path="$.found.finding.quantity")


def _found_again(
    entry: Entry, path: Path, backend: str, injection: str | None, python: Interpreter | None
) -> Finding:
    from fsdpfuzz.loop import Session, SessionSettings, resolve_machine

    wanted = entry.found.key if entry.found is not None else ""
    machine = resolve_machine(backend, (entry.case.world_size,), python)
    with tempfile.TemporaryDirectory() as folder:
        settings = SessionSettings(
            injection=injection,
            output=Path(folder),
            reruns=0,
            python=python,
        ).on(machine)
        with Session(settings) as session:
            findings = session.examine(entry.case).verdict.findings
    # The end of a key, which says where or how, may have been put in other words since.
    same = [f for f in findings if f.key == wanted]
    same += [f for f in findings if f.key.partition(":")[0] == wanted.partition(":")[0]]
    if same:
        return same[0]
    shown = ", ".join(f.key for f in findings) or "nothing"
    raise UsageError(
        one_line(
            f"{path}: $.found: only the text of its finding is saved, and run again on torch "
            f"{machine.torch}, {machine.backend}, the case shows {shown}, not {wanted}; "
            "remove $.found to have a script of the case alone"
        )
    )
