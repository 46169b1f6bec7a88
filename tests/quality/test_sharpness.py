"""How much of a gradient may be wrong before it counts: a reference that is off allows anything.

FSDP is allowed what the plain model loses, many times over. So a mistake in what the plain model
does, or in what is made of it, is no false alarm: it hides all faults in the cases it concerns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fsdpfuzz.case import CaseSpec, anatomy, coarsest
from fsdpfuzz.invariants import tolerance
from fsdpfuzz.observations import Observation
from fsdpfuzz.pool import Pool
from fsdpfuzz.strategies import FOCUSES
from tests.unit.strategies.sample import sample

EACH = 25
"""Cases of a focus."""
MOST = {"float32": 0.001, "float16": 0.2, "bfloat16": 0.5}
"""Of the largest element of all gradients, by the coarsest dtype that takes part."""
DETAILED = "tests.injected.references:compares_each_tensor"
IN_FLOAT32 = "tests.injected.references:is_right_in_float32_and_compares"
MISTAKEN = "tests.injected.references:averages_twice_and_compares"


def drawn(*, random: bool = False) -> Iterator[CaseSpec]:
    """Of each focus the first ones that train; of those that draw numbers alone, if asked."""
    for focus in FOCUSES:
        trained = (
            case
            for case in sample(focus).cases
            if case.world_size == 2
            and any(op.gives_gradients for op in case.program)
            and (anatomy(case).draws_random or not random)
        )
        yield from (case for case, _ in zip(trained, range(EACH), strict=False))


def allowed(seen: Observation) -> Iterator[float]:
    """For each gradient, as a share of the largest element of all."""
    for report in seen.reports:
        for subject in report.subjects if report is not None else ():
            for c in subject.comparisons:
                if c.quantity == "grad" and c.floor > 1e-3 and c.finite:
                    yield tolerance(c) / c.floor


def blunt(cases: Iterable[CaseSpec], injection: str) -> tuple[int, list[str]]:
    """How many cases were looked at, and those of which more may be wrong than `MOST`."""
    looked, found = 0, []
    with Pool(2, "gloo", injection=injection) as pool:
        for case in cases:
            worst = max(allowed(pool.run(case)), default=None)
            if worst is None:
                continue
            looked += 1
            dtype = coarsest(anatomy(case))
            if worst > MOST[dtype]:
                found.append(f"{worst:.3g} where {dtype} is the coarsest")
    return looked, found


def test_a_gradient_that_is_off_by_half_is_seen() -> None:
    looked, found = blunt(drawn(), DETAILED)
    assert looked >= 4 * EACH
    assert len(found) <= looked // 50, found


def test_so_it_is_where_no_float64_tells_what_is_right() -> None:
    """As of models with dropout on GPUs, whose parameters are nudged instead."""
    looked, found = blunt(drawn(random=True), IN_FLOAT32)
    assert looked >= 3 * EACH
    assert len(found) <= looked // 50, found


def test_a_mistake_in_the_reference_makes_it_blunt() -> None:
    """Where the plain model averages by itself; DDP is not touched by it."""
    looked, found = blunt([case for case, _ in zip(drawn(), range(EACH), strict=False)], MISTAKEN)
    assert looked >= EACH // 2
    assert len(found) >= looked // 4
