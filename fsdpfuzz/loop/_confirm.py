"""Whether a finding happens again when its case is run again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fsdpfuzz.loop._events import Rate
from fsdpfuzz.observations import Observation
from fsdpfuzz.verdict import Finding, Verdict

Judged = tuple[Observation, Verdict]

SLOW = Verdict(status="vacuous", reason="no answer, but the ranks did not get a processor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """A verdict that several runs of the case agree on, or the rates where they do not."""

    verdict: Verdict
    observation: Observation
    rates: dict[str, Rate] = field(default_factory=dict)
    unconfirmed: tuple[Finding, ...] = ()
    """What one run showed and no other one, and hangs of ranks that were starved."""


def is_starved(observation: Observation) -> bool:
    """Whether ranks gave no answer, and it is not evident that they hang."""
    return observation.hang is not None and not observation.hang.evident


def confirm(
    first: Judged, rerun: Callable[[bool], Judged], *, reruns: int, flaky_runs: int
) -> Confirmed:
    """Runs a failing case again; ``rerun`` takes whether to wait for the ceiling deadline.

    A case whose ranks were starved is run again with patience; an answer then stands. If each
    of ``reruns`` more runs shows the same keys, a finding stands. Otherwise the case is run
    ``flaky_runs`` times in all and every finding met carries its rate. What shows once only is
    unconfirmed, unless it is a hang with evidence; so is a hang that never had any.
    """
    runs = [first]
    # First of all: what a slow machine shows must not be repeated ten times.
    if is_starved(first[0]):
        runs.append(rerun(True))
        if not runs[1][1].findings:
            return Confirmed(verdict=runs[1][1], observation=runs[1][0])
    hung = any(finding.symptom == "hang" for finding in first[1].findings)
    hung = hung and not _disagree(first[0])
    while len(runs) <= reruns:
        # Each patient rerun of a real hang costs the ceiling, so one has to do.
        runs.append(rerun(hung and len(runs) == 1))
    keys = [frozenset(finding.key for finding in verdict.findings) for _, verdict in runs]
    if not all(found == keys[0] for found in keys):
        while len(runs) < flaky_runs:
            runs.append(rerun(hung))
    return _weigh(runs)


def _weigh(runs: list[Judged]) -> Confirmed:
    by_key: dict[str, Finding] = {}
    failed: dict[str, int] = {}
    evident: set[str] = set()
    for observation, verdict in runs:
        for key, finding in {finding.key: finding for finding in verdict.findings}.items():
            by_key.setdefault(key, finding)
            failed[key] = failed.get(key, 0) + 1
            if finding.symptom == "hang" and not is_starved(observation):
                evident.add(key)
    doubtful = {
        key
        for key, finding in by_key.items()
        # One run that nobody asked to repeat says nothing about the next one.
        if (1 == failed[key] < len(runs) or finding.symptom == "hang") and key not in evident
    }
    findings = tuple(finding for key, finding in by_key.items() if key not in doubtful)
    observation, verdict = _typical(runs, findings)
    return Confirmed(
        verdict=verdict,
        observation=observation,
        rates={
            key: Rate(failed=count, runs=len(runs))
            for key, count in failed.items()
            if count < len(runs) or key in doubtful
        },
        unconfirmed=tuple(by_key[key] for key in by_key if key in doubtful),
    )


def _typical(runs: list[Judged], findings: tuple[Finding, ...]) -> Judged:
    """A run that shows the first of the findings; without any, one that shows none."""
    if not findings:
        return next((run for run in runs if not run[1].findings), (runs[0][0], SLOW))
    observation, verdict = next(
        run for run in runs if any(finding.key == findings[0].key for finding in run[1].findings)
    )
    return observation, Verdict(status="finding", findings=findings, reason=verdict.reason)


def _disagree(observation: Observation) -> bool:
    hang = observation.hang
    return hang is not None and hang.mismatched
