"""On NCCL, too: a finding of every symptom, shrunk, with a script that torchrun confirms."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.injected.hunting import UNITS, assert_shown_by_its_script, found_by, hunt

NUMBER = 8
"""Most draws have two units; each hang costs a deadline and new ranks."""


@pytest.mark.gpu(2)
@pytest.mark.timeout(900)  # NCCL may fail in several ways at once, each shrunk and run
@pytest.mark.parametrize(
    ("fault", "key"),
    [
        ("second_unit_not_averaged", "grad_parity/mismatch/"),
        ("second_unit_raises", "no_crash/crash/"),
        ("second_unit_raises_on_one_rank", "ranks_agree/rank_divergence/"),
        ("second_unit_stays_whole", "resharded_after_backward/leak/"),
        ("second_unit_parts_the_ranks", "no_hang/hang/"),
        ("second_unit_kills_its_rank", "no_rank_death/rank_death/"),
    ],
)
def test_each_symptom_is_found_and_confirmed(fault: str, key: str, tmp_path: Path) -> None:
    summary = hunt(f"{UNITS}:{fault}", tmp_path, number=NUMBER, backend="nccl", tries=60)
    found = found_by(summary, key)
    assert found.script is not None
    print(f"{found.finding.key} after {found.examples_to_find}: {found.script.note}")
    assert_shown_by_its_script(found, lines=120, backend="nccl")
