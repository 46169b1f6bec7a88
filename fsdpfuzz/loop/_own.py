"""A check of somebody's own model inside of a test: drawn and examined until its examples are up.

The cases of a test are drawn as those of a run, and reduced by us: a test shows each finding once.
"""

from __future__ import annotations

import secrets

from fsdpfuzz.case import CaseSpec, digest
from fsdpfuzz.loop._derived import derived_seed
from fsdpfuzz.loop._properties import Scope, properties_named, scope_now
from fsdpfuzz.loop._run import shares_of
from fsdpfuzz.loop._session import Session
from fsdpfuzz.own import Task
from fsdpfuzz.verdict import FindingError


def check_own(
    session: Session, task: Task, max_examples: int, *, seed: str | int | None = None
) -> None:
    """Trains the model in so many ways; the session's target has to be that of the task.

    The same ``seed`` draws the same ones; None draws others each time. As with Hypothesis's own
    ``--hypothesis-seed``, a profile that says ``derandomize`` comes first.

    Raises the `FindingError` of a new finding, or an `ExceptionGroup` of several; Hypothesis's
    ``Unsatisfiable`` where nothing was drawn that is worth a run.
    """
    from hypothesis.errors import Unsatisfiable

    from fsdpfuzz.loop._hunt import SPARE
    from fsdpfuzz.loop._hypothesis import StopRound, drive

    settings, now = session.settings, scope_now()
    scope = Scope(
        apis=task.apis,
        world_sizes=now.world_sizes,
        offers=settings.offers,
        model=task.model,
        plan=task.plan,
        around=task.around,
        words=task.words,
    )
    start = secrets.randbelow(2**32) if seed is None else seed
    if settings.profile.derandomize:
        start = 0
    found: dict[str, FindingError] = {}
    seen: set[str] = set()
    properties = properties_named(task.properties)
    for item, share in zip(properties, shares_of(max_examples, len(properties)), strict=True):
        left = share

        def body(case: CaseSpec) -> None:
            nonlocal left
            name = digest(case)
            if name in seen or session.passes_over(case):
                return
            seen.add(name)
            left -= 1
            try:
                session.check(case)
            except FindingError as error:
                # Kept back: raised here, it would end the drawing at the first finding.
                found.setdefault(error.finding.key, error)
            if left <= 0:
                raise StopRound

        if share:
            drive(
                item.strategy(scope),
                body,
                seed=derived_seed(start, item.name),
                max_examples=share * SPARE + 10,
            )
    if not seen:
        # A test that has looked at nothing must not pass; Hypothesis says so of its own tests.
        raise Unsatisfiable("no case was run: nothing was drawn that is worth one")
    match list(found.values()):
        case []:
            return
        case [only]:
            raise only
        case several:
            raise ExceptionGroup("several findings", several)
