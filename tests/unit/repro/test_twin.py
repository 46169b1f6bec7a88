"""Two trainings in one function do each what they do alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdpfuzz.repro._twin import merged

STATEMENTS = st.lists(
    st.sampled_from(
        [
            ["told.append(1)"],
            ["told.append(2)"],
            ["for i in range(2):", "    told.append(i)", "    told.append(3)"],
            ["told.append(", "    4", ")"],
            ["# of its own", "told.append(5)"],
            ["if told:", "    told.append(6)", "else:", "    told.append(7)"],
        ]
    ),
    max_size=6,
)


def told_by(lines: list[str], **names: Any) -> list[int]:
    told: list[int] = []
    exec("\n".join(lines), {"told": told, **names})
    return told


@given(STATEMENTS, STATEMENTS)
def test_each_runs_as_it_would_alone(first: list[list[str]], second: list[list[str]]) -> None:
    usual = [line for statement in first for line in statement]
    other = [line for statement in second for line in statement]
    both = merged(usual, other, "twin")
    assert told_by(both, twin=False) == told_by(usual)
    assert told_by(both, twin=True) == told_by(other)


@pytest.mark.parametrize(
    ("usual", "other", "lines"),
    [
        (["a()"], ["a()"], ["a()"]),
        (["a()", "b()"], ["a()"], ["a()", "if not twin:", "    b()"]),
        (["a()"], ["b()", "a()"], ["if twin:", "    b()", "a()"]),
        (["a()"], ["b()"], ["if twin:", "    b()", "else:", "    a()"]),
        ([], [], []),
    ],
)
def test_what_they_share_is_written_once(
    usual: list[str], other: list[str], lines: list[str]
) -> None:
    assert merged(usual, other, "twin") == lines
