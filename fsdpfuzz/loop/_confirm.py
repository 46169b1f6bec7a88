"""Whether a finding happens again when its case is run again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fsdpfuzz.loop._events import Rate
from fsdpfuzz.observations import Observation
from fsdpfuzz.verdict import Finding, Verdict

Judged = tuple[Observation, Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """A verdict that several runs of the case agree on, or the rates where they do not."""

    verdict: Verdict
    observation: Observation
    rates: dict[str, Rate] = field(default_factory=dict)


def confirm(
    first: Judged, rerun: Callable[[bool], Judged], *, reruns: int, flaky_runs: int
) -> Confirmed:
    """Runs a failing case again; ``rerun`` takes whether to wait for the ceiling deadline.

    If each of ``reruns`` more runs shows the same keys, the finding stands. Otherwise the
    case is run ``flaky_runs`` times in all and every finding met carries its rate. A hang
    that never comes back under the ceiling deadline was a slow case and no finding; ranks
    that disagreed on a collective were not slow, and get no longer deadline.
    """
    hung = any(finding.symptom == "hang" for finding in first[1].findings)
    hung = hung and not _disagree(first[0])
    runs = [first]
    while len(runs) <= reruns:
        # Each patient rerun of a real hang costs the ceiling, so one has to do.
        runs.append(rerun(hung and len(runs) == 1))
    keys = [frozenset(finding.key for finding in verdict.findings) for _, verdict in runs]
    if all(found == keys[0] for found in keys):
        return Confirmed(verdict=first[1], observation=first[0])
    while len(runs) < flaky_runs:
        runs.append(rerun(hung))
    return _weigh(runs)


def _weigh(runs: list[Judged]) -> Confirmed:
    by_key: dict[str, Finding] = {}
    failed: dict[str, int] = {}
    for _, verdict in runs:
        for key, finding in {finding.key: finding for finding in verdict.findings}.items():
            by_key.setdefault(key, finding)
            failed[key] = failed.get(key, 0) + 1
    slow = {
        finding.key
        for finding in runs[0][1].findings
        if finding.symptom == "hang" and failed[finding.key] == 1 and not _disagree(runs[0][0])
    }
    findings = tuple(finding for key, finding in by_key.items() if key not in slow)
    if not findings:
        observation, verdict = runs[-1]
        return Confirmed(verdict=verdict, observation=observation)
    observation, verdict = next(
        run for run in runs if any(finding.key == findings[0].key for finding in run[1].findings)
    )
    return Confirmed(
        verdict=Verdict(status="finding", findings=findings, reason=verdict.reason),
        observation=observation,
        rates={
            finding.key: Rate(failed=failed[finding.key], runs=len(runs))
            for finding in findings
            if failed[finding.key] < len(runs)
        },
    )


def _disagree(observation: Observation) -> bool:
    hang = observation.hang
    return hang is not None and hang.mismatched
