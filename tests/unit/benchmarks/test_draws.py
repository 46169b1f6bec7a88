"""`benchmarks/draws.py`: what `check` refuses, and what is another case once decoded, is told."""

import pytest

from benchmarks import draws
from fsdpfuzz.case import CaseSpec, Fsdp2Plan, decode
from fsdpfuzz.errors import CaseError

LOT = draws.Lot("parity", 3, 12, (2,))


def test_sound_draws_are_counted() -> None:
    assert draws.draw(LOT) == draws.Drawn(LOT, 12, ())


def test_a_refused_draw_is_told_with_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(case: CaseSpec) -> None:
        if isinstance(case.plan, Fsdp2Plan):
            raise CaseError("refused on purpose", path="$.plan")

    monkeypatch.setattr(draws, "check", refuse)
    done = draws.draw(LOT)
    assert done.draws == 12
    assert 0 < len(done.wrong) < 12
    assert all("refused on purpose" in line and '"api":"fsdp2"' in line for line in done.wrong)


def test_a_draw_that_the_wire_changes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    other: list[CaseSpec] = []

    def garble(data: bytes) -> CaseSpec:
        other.append(decode(data))
        return other[0]

    monkeypatch.setattr(draws, "decode", garble)
    assert len(draws.draw(LOT).wrong) == 11
