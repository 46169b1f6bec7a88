"""Rules about ranks: no hang, no death, no crash, equal answers, clear refusals."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdpfuzz.invariants._base import Invariant
from fsdpfuzz.invariants._order import order_refused
from fsdpfuzz.observations import Observation, Raised
from fsdpfuzz.spec import REJECTIONS, CaseSpec
from fsdpfuzz.verdict import Finding

_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_MAX_WHERE = 120


def _no_hang(case: CaseSpec, observation: Observation) -> Iterator[Finding]:
    hang = observation.hang
    if hang is None or hang.after_failure:
        return
    odd = ",".join(map(str, hang.odd_ranks)) or "none"
    yield Finding(
        invariant="no_hang",
        symptom="hang",
        where=f"{case.api}:{_stage(hang.stages)}",
        message=f"ranks {list(hang.ranks)} gave no answer within {hang.deadline:.1f} s "
        f"[odd ranks: {odd}; {hang.disagreement or 'all ranks issued the same collectives'}]",
        observed="no answer",
        expected="an answer from every rank",
    )


def _no_rank_death(case: CaseSpec, observation: Observation) -> Iterator[Finding]:
    if not observation.deaths:
        return
    if _own_errors(observation):
        return  # a rank that raised comes first; the others may die of its absence
    first = observation.deaths[0]
    yield Finding(
        invariant="no_rank_death",
        symptom="rank_death",
        where=f"{case.api}:{_stage((first.stage,))}:{first.exitcode}",
        message=f"rank {first.rank} ended with exit code {first.exitcode}, but should go on "
        f"[{first.stage}]\n{first.output[-1500:]}".rstrip(),
        observed=f"exit code {first.exitcode}",
        expected="a living rank",
    )


def _no_crash(case: CaseSpec, observation: Observation) -> Iterator[Finding]:
    raised = observation.raised()
    own = _own_errors(observation)
    if not raised or _is_refusal(observation) or (observation.deaths and not own):
        return
    if order_refused(case, observation):
        return
    rank, first = own[0] if own else raised[0]
    everywhere = len(raised) == observation.world_size
    same = everywhere and len({_signature(error) for _, error in raised}) == 1
    yield Finding(
        invariant="no_crash" if same else "ranks_agree",
        symptom="crash" if same else "rank_divergence",
        where=f"{case.api}:{_signature(first)}",
        message=f"{first.type}: {first.message}\n[{first.stage} on rank {rank}; raised on ranks "
        f"{[rank for rank, _ in raised]} of {observation.world_size}; {first.frame}]",
        observed=first.type,
        expected="no exception",
    )


def _clear_refusal(case: CaseSpec, observation: Observation) -> Iterator[Finding]:
    raised = observation.raised()
    if not raised or not _is_refusal(observation):
        return
    types = {error.type for _, error in raised}
    if len(raised) == observation.world_size and len(types) == 1:
        return
    rank, first = raised[0]
    yield Finding(
        invariant="equal_rejection",
        symptom="rank_divergence",
        where=f"{case.api}:{_signature(first)}",
        message=f"ranks {[rank for rank, _ in raised]} of {observation.world_size} refuse the "
        f"case with {sorted(types)}, but all should alike [{first.message[:300]}, rank {rank}]",
        observed=str(sorted(types)),
        expected="the same error on every rank",
    )


def is_rejection(observation: Observation) -> bool:
    """Whether FSDP refused the case clearly, and every rank alike."""
    raised = observation.raised()
    return (
        len(raised) == observation.world_size
        and all(_refuses(error) for _, error in raised)
        and len({error.type for _, error in raised}) == 1
    )


def _refuses(error: Raised) -> bool:
    """A refusal has a documented type and comes while wrapping, or with a documented text.

    FSDP also raises ValueError from assertions about its own state in the middle of
    training; that is no refusal.
    """
    if not error.documented:
        return False
    return error.stage.endswith(":wrap") or any(
        rejection.matches(error.message) for rejection in REJECTIONS.values()
    )


def _is_refusal(observation: Observation) -> bool:
    """All that was raised are refusals: `equal_rejection` judges them."""
    return all(_refuses(error) for _, error in observation.raised())


def _own_errors(observation: Observation) -> list[tuple[int, Raised]]:
    """What was raised for a reason of the rank's own, not because a peer went away."""
    return [(rank, error) for rank, error in observation.raised() if not _is_consequence(error)]


def _is_consequence(error: Raised) -> bool:
    """Whether it only tells that a peer went away."""
    text = error.message.lower()
    return "connection closed by peer" in text or "connection reset by peer" in text


def _signature(error: Raised) -> str:
    """Type, place and wording without numbers and names, so that shrinking keeps it."""
    first_line = error.message.strip().splitlines()[0] if error.message.strip() else ""
    text = _NUMBER.sub("#", _QUOTED.sub("_", first_line))
    place = error.frame or error.stage.partition("[")[0]
    return f"{error.type}@{place}:{text}"[:_MAX_WHERE]


def _stage(stages: tuple[str, ...]) -> str:
    """The stage of the first rank without its operation's index."""
    return stages[0].partition("[")[0] if stages else ""


AGREEMENT = (
    Invariant("no_hang", "every rank answers within the deadline", _no_hang),
    Invariant("no_rank_death", "no rank's process ends", _no_rank_death),
    Invariant("no_crash", "nothing but a documented refusal is raised", _no_crash),
    Invariant("equal_rejection", "a refusal is the same on every rank", _clear_refusal),
)
