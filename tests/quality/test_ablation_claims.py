"""What an ablation claims of an injected fault, the scripts of the changed cases show.

In a case without an option that is claimed to be needed, and in surroundings in which it is
claimed not to show, the script finds nothing; where it is claimed to show, the script shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Op,
    Plan,
    Sequential,
    Step,
)
from fsdpfuzz.invariants import judge
from fsdpfuzz.pool import Pool
from fsdpfuzz.reduce import Ablation, ablate
from fsdpfuzz.reduce.ablation import _variations
from fsdpfuzz.verdict import Finding, Verdict

MOST_RANKS = 3
PLAIN, MASKED, LATER = Forward(), Forward(masked=0), Forward(masked=1)
FAULTS: dict[str, tuple[str, tuple[Forward, ...]]] = {
    "fsdp2_summed_not_averaged": ("fsdp2", (PLAIN, MASKED)),
    "fsdp2_idle_rank_keeps_nothing": ("fsdp2", (MASKED, LATER)),
    "fsdp1_idle_rank_keeps_nothing": ("fsdp1", (MASKED, LATER)),
}
"""Faults, the API that each is in, and forwards with which it shows."""


@dataclass
class Ranks:
    """Pools with a fault: of those that run cases, and of those that run scripts."""

    fault: str
    stack: ExitStack
    pools: dict[tuple[str, int], Pool] = field(default_factory=dict)

    def pool(self, module: str, world_size: int) -> Pool:
        key = module, world_size
        if key not in self.pools:
            pool = Pool(world_size, "gloo", injection=f"{module}:{self.fault}")
            self.pools[key] = self.stack.enter_context(pool)
        return self.pools[key]

    def verdict(self, case: CaseSpec) -> Verdict:
        return judge(case, self.pool("benchmarks.faults.injections", case.world_size).run(case))

    def script_shows(self, case: CaseSpec) -> bool:
        """Whether the script ends with 1 on some rank; it does so with 0 on all others."""
        seen = self.pool("tests.injected.claims", case.world_size).run(case)
        codes = {report.beyond for report in seen.reports if report is not None}
        assert codes <= {"exit 0", "exit 1"}, seen
        assert len(seen.reports) == case.world_size
        return "exit 1" in codes


@pytest.fixture(scope="module", params=FAULTS)
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with ExitStack() as stack:
        yield Ranks(request.param, stack)


def cases(api: str, forwards: tuple[Forward, ...]) -> Iterator[CaseSpec]:
    """With another plain option each."""
    children = (Linear(out=3), Linear(out=2))
    nested: dict[str, Plan] = {
        "fsdp1": Fsdp1Plan(units=(Fsdp1Unit(path=""), Fsdp1Unit(path="1"))),
        "fsdp2": Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="1"))),
    }
    single: dict[str, Plan] = {
        "fsdp1": Fsdp1Plan(units=(Fsdp1Unit(path="", use_orig_params=True),)),
        "fsdp2": Fsdp2Plan(units=(Fsdp2Unit(path="", reshard_after_forward=False),)),
    }
    for forward in forwards:
        program: tuple[Op, ...] = (forward, Backward(), Step())
        for plan, width, grad in ((nested[api], 4, True), (single[api], 3, False)):
            yield CaseSpec(
                world_size=2,
                model=Sequential(children=children),
                inputs=Dense(width=width, requires_grad=grad),
                plan=plan,
                program=program,
            )
        accumulated = (forward, Backward(), *program)
        yield CaseSpec(
            world_size=3,
            model=children[0],
            inputs=Dense(width=2),
            plan=single[api],
            program=accumulated,
        )


def gradient(verdict: Verdict) -> Finding:
    found = [f for f in verdict.findings if f.invariant == "grad_parity"]
    assert found, verdict
    return found[0]


def against_the_script(case: CaseSpec, ablation: Ablation, ranks: Ranks) -> list[str]:
    """The claims that the scripts contradict."""
    without = {*ablation.needed, *ablation.absent}
    wrong = []
    for variation in _variations(case, MOST_RANKS):
        claimed = variation.words in ablation.present
        if not claimed and variation.words not in without:
            continue
        if ranks.script_shows(variation.case) is not claimed:
            wrong.append(variation.words)
    return wrong


def test_the_scripts_show_what_ablations_claim(ranks: Ranks) -> None:
    api, forwards = FAULTS[ranks.fault]
    claims: set[str] = set()
    for case in cases(api, forwards):
        finding = gradient(ranks.verdict(case))
        assert ranks.script_shows(case)
        ablation = ablate(case, finding, ranks.verdict, max_ranks=MOST_RANKS)
        assert against_the_script(case, ablation, ranks) == []
        claims |= {*ablation.needed, *(f"not {w}" for w in ablation.absent), *ablation.present}
    other = {"fsdp1": "FSDP2", "fsdp2": "FSDP1"}[api]
    assert f"not with {other}" in claims
    assert "at world size 3" in claims
    if "idle" in ranks.fault:
        assert "a loss that is zero on one rank" in claims
    else:
        assert "not at world size 1" in claims


def test_a_claim_that_is_not_true_is_seen(ranks: Ranks) -> None:
    api, forwards = FAULTS[ranks.fault]
    case = next(cases(api, forwards))
    assert against_the_script(case, Ablation(absent=("at world size 3",)), ranks)
