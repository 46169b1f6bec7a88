"""Harness errors: what is the fuzzer's or the machine's fault, told from what is FSDP's."""

from __future__ import annotations

import traceback
from collections.abc import Iterable

from fsdpfuzz.case import CaseSpec, check
from fsdpfuzz.errors import CaseError, one_line
from fsdpfuzz.observations import Observation, Raised

TRIES = 3
"""Runs of a case that ends in a harness error, each on fresh ranks, before it is given up."""
_OUTSIDE = ("reference-", "start", "ready", "broadcast", "group", "report", "idle")
"""How stages begin in which FSDP has no part."""
_PEER = ("connection closed by peer", "connection reset by peer")


def refusal(case: CaseSpec) -> str:
    """Why a case must not be sent; empty for a sound one."""
    try:
        check(case)
    except CaseError as error:
        return f"drawn, but refused: {error}"
    return ""


def fault_of(observation: Observation) -> str:
    """The harness error that an observation shows, in one line; empty where it shows none."""
    # The cause first: when one rank fails, gloo has the others raise that it went away, wherever
    # they are, and that may well be in a stage of ours.
    raised = [(rank, error) for rank, error in observation.raised() if not _follows(error)]
    for rank, error in raised:
        if error.ours or _outside(error.stage):
            what = f"{error.type}: {error.message}".strip()
            return one_line(f"{what} [{error.stage}, rank {rank}]")
    # What a rank raised for a reason of its own says more than who died, or hung, because of it.
    if raised:
        return ""
    for report in observation.reports:
        if report is not None and report.reference_apart:
            return one_line(f"{report.reference_apart} [reference, rank {report.rank}]")
    for death in observation.deaths:
        if _outside(death.stage):
            text = f"the rank's process ended with {death.exitcode} [{death.stage}, "
            return one_line(f"{text}rank {death.rank}]")
    hang = observation.hang
    if hang is not None and not hang.after_failure and not observation.deaths:
        stages = [hang.stages[rank] for rank in hang.ranks if rank < len(hang.stages)]
        if stages and all(map(_outside, stages)):
            return one_line(f"no answer within {hang.deadline:.1f} s [{stages[0]}]")
    return ""


def in_words(
    fault: str, observations: Iterable[Observation], facts: dict[str, str], trace: str = ""
) -> str:
    """Everything that helps to mend it, for a person."""
    lines = [fault, ""]
    lines += [f"{name:<12}{value}" for name, value in facts.items()]
    if trace:
        lines += ["", trace.rstrip()]
    for number, seen in enumerate(observations, start=1):
        lines += ["", f"run {number}: {seen.seconds:.2f} s, {fault_of(seen) or 'no harness error'}"]
        for rank, error in seen.raised():
            lines += ["", f"rank {rank} raised, stage {error.stage or '(none)'}:"]
            lines.append(error.traceback.rstrip() or f"{error.type}: {error.message}")
        for death in seen.deaths:
            lines += ["", f"rank {death.rank} ended with {death.exitcode}, stage {death.stage}:"]
            lines.append(death.output.rstrip() or "(printed nothing)")
        if seen.hang is not None:
            hang = seen.hang
            lines += ["", f"ranks {list(hang.ranks)} gave no answer; {hang.disagreement}".rstrip()]
            lines.append(
                f"still for {hang.still:.2f} s, load of a core {hang.load:.1f}, "
                f"had {hang.ran}, stood in line {hang.waited}"
            )
            for rank, stack in enumerate(hang.stacks):
                lines += [f"rank {rank}:", stack.rstrip()]
    return "\n".join(lines) + "\n"


def traced(error: BaseException) -> str:
    """The traceback of an exception of our own, in the controller."""
    return "".join(traceback.format_exception(error, limit=100))


def _outside(stage: str) -> bool:
    return stage.startswith(_OUTSIDE)


def _follows(error: Raised) -> bool:
    """Whether it only tells that a peer went away."""
    text = error.message.lower()
    return not error.ours and any(words in text for words in _PEER)
