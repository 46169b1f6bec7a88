"""Makes the entry of a known defect from a finding; a person then says why it is one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from fsdpfuzz.case import Anatomy, CaseSpec, as_document, digest
from fsdpfuzz.known.defect import TO_WRITE, Defect, Pattern, Predicate
from fsdpfuzz.known.narrow import focus_of, narrowest, run_of
from fsdpfuzz.known.others import other_findings
from fsdpfuzz.known.trials import Examine, Trial, same, trials_of
from fsdpfuzz.reduce import MOST_RANKS, ablate, alike, reduce
from fsdpfuzz.verdict import Finding, Verdict
from fsdpfuzz.wire import Backend

_MAX_TEXT = 120
_MAX_PATTERN = 400
_MAX_LITERAL = 40
_VARIES = r"(?P<address>0x[0-9a-f]+)|(?P<number>\d+)"
_STANDS_FOR = {
    "name": r"\S+",
    "quoted": "'[^']*'",
    "address": "0x[0-9a-f]+",
    "number": r"\d+",
}
_SPECIAL = re.compile(r"([.^$*+?{}\[\]\\|()])")

replace = msgspec.structs.replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """An entry, and on what it rests."""

    defect: Defect
    without: int
    """Plainer cases that were run and do not show the finding."""
    showing: int
    """Plainer cases that were run and show it."""
    despite: tuple[str, ...]
    """What the finding needs beside the predicate, which has no feature for it."""


def propose(
    case: CaseSpec,
    finding: Finding,
    examine: Examine,
    *,
    title: str,
    seen: Mapping[Backend, tuple[str, ...]],
    date: str,
    max_ranks: int = MOST_RANKS,
) -> Proposal:
    """The entry of the defect that a finding shows, as narrow as what is run allows.

    The case is reduced, and each plainer neighbour (`simpler`) of what is left is run. Where
    the finding goes away, what the neighbour lacks is needed, and the predicate asks for it:
    as a feature of the parameter or unit that the finding names, or else of the case. Nothing
    else is asked for. ``examine`` runs a case; it should give no findings that are known.
    """

    verdicts = dict[str, Verdict]()

    def remembered(other: CaseSpec) -> Verdict:
        # Reducing, ablation and trials ask for many of the same cases.
        name = digest(other)
        if name not in verdicts:
            verdicts[name] = examine(other)
        return verdicts[name]

    first = finding
    smallest = reduce(case, first, lambda other: same(first, remembered(other)))
    case, finding = smallest.case, smallest.finding
    ablation = ablate(case, finding, remembered, max_ranks=max_ranks)
    trials = tuple(trials_of(case, finding, remembered, max_ranks))
    narrowed = narrowest(case, finding, trials)
    patterns = [_pattern(case, narrowed.predicate, finding, trials)]
    companions = _companions(finding, remembered, case, trials)
    patterns += [_pattern(case, narrowed.predicate, other, ()) for other in companions]
    defect = Defect(
        title=title,
        reason=f"{TO_WRITE} why FSDP does this. What was found out: {ablation.words}",
        date=date,
        seen=dict(seen),
        when=narrowed.predicate,
        shows=tuple(patterns),
        case=msgspec.Raw(msgspec.json.encode(as_document(case))),
        finding=_lasting(finding),
        refuses=(),
    )
    return Proposal(
        defect=replace(defect, refuses=other_findings(case, defect, trials)),
        without=sum(trial.without for trial in trials),
        showing=sum(trial.finding is not None for trial in trials),
        despite=tuple(dict.fromkeys(trial.words for trial in narrowed.despite if trial.words)),
    )


def _companions(
    finding: Finding, examine: Examine, case: CaseSpec, trials: Sequence[Trial]
) -> Iterator[Finding]:
    """Other findings of the smallest case that come and go with this one."""
    for other in examine(case).findings:
        if not alike(finding, other) and all(
            (trial.finding is None) == (same(other, examine(trial.case)) is None)
            for trial in trials
        ):
            yield other


def _pattern(
    case: CaseSpec, predicate: Predicate, finding: Finding, trials: Sequence[Trial]
) -> Pattern:
    """How a finding shows, on the smallest case and wherever else it was met."""
    a = run_of(case, finding.variant)
    met = [finding, *(trial.finding for trial in trials if trial.finding is not None)]
    failures = [found.failure for found in met if found.failure is not None]
    kinds = [found.kind for found in met if found.failure is None and found.kind]
    codes = [failure.exitcode for failure in failures if failure.exitcode is not None]
    focus = focus_of(a, finding)
    pattern = Pattern(
        invariant=(finding.invariant,),
        kind=_once(kinds),
        detail=_once(found.detail for found in met if found.detail),
        operation=_operations(a, finding, trials),
        observed=(),
        exception=_once(failure.type for failure in failures if failure.type),
        place=_once(failure.place for failure in failures if failure.place),
        text=_text(a, finding),
        exitcode=tuple(dict.fromkeys(codes)),
    )
    if focus.parameter is not None and predicate.has_parameter(a, focus.parameter):
        return replace(pattern, names="parameter")
    if focus.unit is not None and predicate.has_unit(a, focus.unit):
        return replace(pattern, names="unit")
    return pattern if pattern.says_more else replace(pattern, observed=(finding.observed,))


def _once(values: Iterator[str] | list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _operations(a: Anatomy, finding: Finding, trials: Sequence[Trial]) -> tuple[str, ...]:
    """The operation's kind; its words where a plainer one of that kind does not show it."""
    if not 0 <= finding.op < len(a.case.program):
        return ()
    own = a.case.program[finding.op]
    plainer = (trial.case.program for trial in trials if trial.without)
    needed = any(
        len(program) == len(a.case.program)
        and program[finding.op].kind() == own.kind()
        and program[finding.op] != own
        for program in plainer
    )
    return (own.words() if needed else own.kind(),)


def _text(a: Anatomy, finding: Finding) -> str:
    """A pattern for the exception's first line, whatever the numbers and names in it."""
    failure = finding.failure
    lines = failure.text.strip().splitlines() if failure is not None else []
    if not lines:
        return ""
    # The longest first: a regular expression takes the first alternative that fits.
    names = sorted({*a.by_fqn, *a.by_path} - {""}, key=len, reverse=True)
    quoted = "|".join(f"'{re.escape(name)}'" for name in names) or r"(?!)"
    dotted = "|".join(re.escape(name) for name in names if "." in name) or r"(?!)"
    varies = re.compile(rf"(?P<quoted>{quoted})|(?P<name>{dotted})|{_VARIES}")
    line = lines[0][:_MAX_TEXT]
    text, at = "", 0
    for found in varies.finditer(line):
        text += _literally(line[at : found.start()]) + _STANDS_FOR[str(found.lastgroup)]
        at = found.end()
    text += _literally(line[at:])
    return text if len(text) <= _MAX_PATTERN else _literally(line[:_MAX_LITERAL])


def _literally(text: str) -> str:
    # `re.escape` would put a backslash before each space, too, and nobody could read it.
    return _SPECIAL.sub(r"\\\1", text)


def _lasting(finding: Finding) -> Finding:
    """The finding without what differs from run to run."""
    failure = finding.failure
    if failure is None:
        return finding
    # Addresses differ from run to run, and so does what a rank printed.
    text = re.sub(r"0x[0-9a-f]{6,}", "0x0", failure.text)
    return replace(finding, failure=replace(failure, text=text, output=""))
