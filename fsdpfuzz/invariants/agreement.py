"""Rules about ranks: no hang, no death, no crash, equal answers, clear refusals."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdpfuzz.case import (
    REJECTIONS,
    Anatomy,
    anatomy,
    foreseen_rejections,
    needs_gpu,
    variants,
)
from fsdpfuzz.case.dimension import Rejection
from fsdpfuzz.case.recipe import Do
from fsdpfuzz.invariants.base import Invariant, operation
from fsdpfuzz.invariants.evidence import Evidence
from fsdpfuzz.invariants.order import order_refused
from fsdpfuzz.observations import Observation, Raised
from fsdpfuzz.verdict import Failure, Finding, gist

_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_STAGE = re.compile(r"^(?P<subject>[^:]*):(?P<what>[a-z_]+)(?:\[(?P<op>\d+)\])?$")
_MAX_KIND = 120
_MAX_OUTPUT = 1_500
_MAX_SAID = 500
_CRASH = "Fatal Python error:"
"""What faulthandler begins with."""


class NoHang(Invariant):
    """Answers."""

    name = "no_hang"
    summary = "every rank answers within the deadline"
    wrong = "hangs"

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """Where ranks gave no answer, for a reason of their own."""
        hang = observation.hang
        # One that failed leaves the others waiting; that they do is no finding of its own.
        if hang is None or hang.after_failure:
            return
        # What the first one that gave no answer was doing; another may have answered and be idle.
        first = min(hang.ranks, default=0)
        stage = hang.stages[first] if first < len(hang.stages) else ""
        variant, what, op = stage_of(a, stage)
        odd = ",".join(map(str, hang.odd_ranks)) or "none"
        yield Finding(
            invariant=self.name,
            symptom="hang",
            api=a.api,
            kind=what,
            variant=variant,
            op=op,
            operation=operation(a, op),
            ranks=hang.ranks,
            world_size=observation.world_size,
            observed=f"no answer within {hang.deadline:.1f} s",
            expected="an answer from every rank",
            note=f"odd ranks: {odd}; "
            f"{hang.disagreement or 'all ranks issued the same collectives'}",
        )

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """A training that does not end."""
        return Evidence(manner="hang")


class NoRankDeath(Invariant):
    """Processes."""

    name = "no_rank_death"
    summary = "no rank's process ends"
    wrong = "ends a rank's process"

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """The first death, unless a rank raised before."""
        if not observation.deaths or _own_errors(observation):
            return  # a rank that raised comes first; the others may die of its absence
        first = observation.deaths[0]
        variant, what, op = stage_of(a, first.stage)
        yield Finding(
            invariant=self.name,
            symptom="rank_death",
            api=a.api,
            kind=f"{what}:{first.exitcode}",
            variant=variant,
            op=op,
            operation=operation(a, op),
            ranks=(first.rank,),
            world_size=observation.world_size,
            observed=f"exit code {first.exitcode}",
            expected="a living rank",
            failure=Failure(
                stage=first.stage, exitcode=first.exitcode, output=_last_words(first.output)
            ),
        )

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """A training that ends a process."""
        return Evidence(manner="death", last=_last(finding))


class NoCrash(Invariant):
    """Exceptions."""

    name = "no_crash"
    summary = "nothing but a documented refusal is raised"
    wrong = "raises"

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """What was raised first for a reason of the rank's own."""
        raised = observation.raised()
        own = _own_errors(observation)
        if not raised or _is_refusal(a, observation) or (observation.deaths and not own):
            return
        if order_refused(a, observation):
            return
        # What a rank raises because a peer is gone comes later, whatever its number.
        rank, first = own[0] if own else raised[0]
        everywhere = len(raised) == observation.world_size
        same = everywhere and len({signature(error) for _, error in raised}) == 1
        yield _raised(
            a,
            first,
            invariant=self.name if same else RanksAgree.name,
            symptom="crash" if same else "rank_divergence",
            ranks=(rank, *(r for r, _ in raised if r != rank)),
            world_size=observation.world_size,
            expected="no exception",
        )

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """A training that raises."""
        return _of_raising(a, finding)


# A rule of its own, since a finding names its rule: what differs by rank is another defect than
# what every rank raises.
class RanksAgree(Invariant):
    """`NoCrash` finds it where ranks raise differently."""

    name = "ranks_agree"
    summary = "what is raised is the same on every rank"
    wrong = "raises on some ranks, or differently on each"

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """`NoCrash` tells both apart."""
        return iter(())

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """A training that raises."""
        return _of_raising(a, finding)


class EqualRejection(Invariant):
    """Refusals."""

    name = "equal_rejection"
    summary = "a refusal is the same on every rank"
    wrong = "refuses on some ranks what others accept"

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """Where ranks refuse differently."""
        raised = observation.raised()
        if not raised or not _is_refusal(a, observation):
            return
        types = {error.type for _, error in raised}
        if len(raised) == observation.world_size and len(types) == 1:
            return
        yield _raised(
            a,
            raised[0][1],
            invariant=self.name,
            symptom="rank_divergence",
            ranks=tuple(rank for rank, _ in raised),
            world_size=observation.world_size,
            expected="the same error on every rank",
        )

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """A training that raises."""
        return Evidence(manner="raises", last=_last(finding))


def _of_raising(a: Anatomy, finding: Finding) -> Evidence:
    """A training that raises, or what it gives does as it is gathered."""
    last = _last(finding)
    # A training that ends while wrapping has come to none of the operations.
    gathered = None if last is None or last < 0 else a.case.program[last].gathered(a)
    reads = () if gathered is None else (Do(call=gathered),)
    return Evidence(manner="raises", last=last, reads=reads)


def stage_of(a: Anatomy, stage: str) -> tuple[str, str, int]:
    """Variant (empty for the case or the reference), what was done, operation (-1 if none)."""
    found = _STAGE.match(stage)
    if found is None:
        return "", stage.partition("[")[0], -1
    named = {variant.name for variant in a.case.twins}
    subject = found["subject"]
    what = found["what"] if subject in named else f"{subject}:{found['what']}"
    own = subject == "case" or subject in named
    op = int(found["op"]) if found["op"] and own else -1
    what = found["what"] if own else what
    return subject if subject in named else "", what, op


def _raised(
    a: Anatomy,
    first: Raised,
    *,
    invariant: str,
    symptom: str,
    ranks: tuple[int, ...],
    world_size: int,
    expected: str,
) -> Finding:
    variant, _, op = stage_of(a, first.stage)
    return Finding(
        invariant=invariant,
        symptom=symptom,  # type: ignore[arg-type]
        api=a.api,
        kind=signature(first),
        variant=variant,
        op=op,
        operation=operation(a, op),
        ranks=ranks,
        world_size=world_size,
        observed=first.type,
        expected=expected,
        failure=Failure(type=first.type, text=first.message, place=first.frame, stage=first.stage),
    )


def _last_words(output: str) -> str:
    """The end of what a rank printed: before its stack, which is long, what ended it."""
    said, crash, stack = output.rpartition(_CRASH)
    if not crash:
        return output[-_MAX_OUTPUT:]
    return said[-_MAX_SAID:] + (crash + stack)[: _MAX_OUTPUT - _MAX_SAID]


def _last(finding: Finding) -> int | None:
    """The operation at which it ends: none of them where it ends while wrapping."""
    stage = finding.failure.stage if finding.failure is not None else ""
    if finding.op < 0 and stage.endswith((":wrap", ":build")):
        return -1
    return finding.op if finding.op >= 0 else None


def is_rejection(a: Anatomy, observation: Observation) -> bool:
    """Whether FSDP refused the case as it documents, and every rank alike."""
    raised = observation.raised()
    return (
        len(raised) == observation.world_size
        and _is_refusal(a, observation)
        and len({error.type for _, error in raised}) == 1
    )


# A documented error alone proves nothing: FSDP that refuses what it should take raises it as well.
# FSDP also raises ValueError from assertions about its own state in the middle of training.
def _is_refusal(a: Anatomy, observation: Observation) -> bool:
    """Whether all that was raised are refusals of what the case asks for, by type and text.

    What is refused of somebody's own model, or on CPUs of a case that needs a GPU, is not known:
    there a documented type is enough, where it comes while wrapping.
    """
    unknown = a.imported is not None or bool(needs_gpu(a))
    asked = list(REJECTIONS.values()) if a.imported is not None else _asked(a)
    return all(
        (unknown and error.documented and error.stage.endswith(":wrap"))
        or any(one.matches(error.message) and _typed(one, error) for one in asked)
        for _, error in observation.raised()
    )


def _asked(a: Anatomy) -> list[Rejection]:
    """What the case, or one of its variants, asks for and FSDP documents to refuse."""
    runs = map(anatomy, variants(a.case).values())
    return [one for run in runs for one in foreseen_rejections(run)]


def _typed(rejection: Rejection, error: Raised) -> bool:
    """Whether an error is of the type by which FSDP refuses that."""
    return error.type == rejection.raised if rejection.raised else error.documented


def _own_errors(observation: Observation) -> list[tuple[int, Raised]]:
    """What was raised for a reason of the rank's own, not because a peer went away."""
    return [(rank, error) for rank, error in observation.raised() if not _is_consequence(error)]


def _is_consequence(error: Raised) -> bool:
    """Whether it only tells that a peer went away."""
    text = error.message.lower()
    # gloo says so, in a RuntimeError without a type of its own.
    return "connection closed by peer" in text or "connection reset by peer" in text


def signature(error: Raised) -> str:
    """Type, place and wording without numbers and names, so that shrinking keeps it."""
    text = _NUMBER.sub("#", _QUOTED.sub("_", gist(error.message)))
    # Without line numbers, which another release of torch moves.
    place = error.frame or error.stage.partition("[")[0]
    return f"{error.type}@{place}:{text}"[:_MAX_KIND]


AGREEMENT = (NoHang(), NoRankDeath(), NoCrash(), RanksAgree(), EqualRejection())
