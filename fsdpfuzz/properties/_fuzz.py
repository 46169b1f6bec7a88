"""The decorator that makes a test of cases."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, reject, settings
from hypothesis.strategies import SearchStrategy

from fsdpfuzz.errors import UsageError
from fsdpfuzz.loop import PROPERTIES, Session, drawn
from fsdpfuzz.seeds import Seed, fitting, lacking, with_seeds

if TYPE_CHECKING:
    from fsdpfuzz.case import CaseSpec

CASE = "case"
SESSION = "fsdpfuzz_session"


def fuzz(
    cases: str | SearchStrategy[CaseSpec] = "parity",
    *,
    seeds: Sequence[Seed] = (),
    **options: Any,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A test that draws its argument ``case``; its body has the session check it.

        @fuzz("memory")
        def test_memory(case, fsdpfuzz_session):
            fsdpfuzz_session.check(case)

    ``cases`` is the name of a property, whose cases have as many ranks as the options of pytest
    say, or a strategy such as ``fsdpfuzz.strategies.cases(apis=("fsdp2",))``. ``seeds`` are run
    first. ``options`` are those of ``hypothesis.settings``, beside which the profile holds:
    ranks take as long as they take, so there is neither deadline nor health check. A drawn case
    that is not worth a run, as one that can only show a known defect, makes room for another.
    """
    strategy = cases if isinstance(cases, SearchStrategy) else _of_property(cases)
    chosen = {"deadline": None, "suppress_health_check": list(HealthCheck), **options}

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        names = inspect.signature(test).parameters
        if CASE not in names or SESSION not in names:
            raise UsageError(f"{test.__qualname__}: a test of cases takes {CASE} and {SESSION}")

        @functools.wraps(test)
        def body(*args: Any, **kwargs: Any) -> None:
            case = _to_run(kwargs[CASE], seeds, kwargs[SESSION])
            if case is not None:
                test(*args, **{**kwargs, CASE: case})

        made: Callable[..., None] = settings(**chosen)(
            with_seeds(seeds)(given(**{CASE: strategy})(body))
        )
        return made

    return decorate


def _of_property(name: str) -> SearchStrategy[CaseSpec]:
    if name not in PROPERTIES:
        raise UsageError(f"fuzz: there is no property {name!r}; those: {', '.join(PROPERTIES)}")
    return drawn(name)


def _to_run(case: CaseSpec, seeds: Sequence[Seed], session: Session) -> CaseSpec | None:
    """The case in the form that runs here; None for a seed that this machine cannot run.

    `run_seed` skips such a seed by name: an explicit example that fails would keep Hypothesis
    from drawing anything.
    """
    backend = session.settings.backend
    if lacking(case, seeds, backend):
        return None
    if all(seed.case != case for seed in seeds) and session.passes_over(case):
        reject()
    return fitting(case, seeds, backend)
