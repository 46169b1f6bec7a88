"""What went on over time, as lines that stretch with the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec

from fsdpfuzz.show._record import RunRecord, Sample

BINS = 48


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a chart: a path in a box of 100 × 100, the origin at the top left."""

    name: str
    path: str
    last: str


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """A chart with its labels. ``told`` says in words what it shows."""

    title: str
    told: str
    top: str
    ticks: tuple[str, str, str]
    lines: tuple[Line, ...]


def charts(record: RunRecord) -> tuple[Chart, ...]:
    """Rate, findings and restarts over the time of the run; none for a run without samples."""
    samples = record.samples
    end = max(record.seconds, samples[-1].seconds if samples else 0.0)
    if not samples or end <= 0:
        return ()
    ticks = (duration(0), duration(end / 2), duration(end))
    rates = _rates(samples, end)
    fastest = max(rates, default=0.0)
    last = samples[-1]
    most = max(last.new, last.known, 1)
    return (
        Chart(
            title="Examples per second",
            told=f"{record.examples_per_second:.1f} examples a second on average, "
            f"at most {fastest:.1f} over one of {BINS} equal parts of the run",
            top=f"{fastest:.1f}",
            ticks=ticks,
            lines=(
                Line(
                    name="rate",
                    path=_bars(rates, fastest),
                    last=f"{record.examples_per_second:.1f} on average",
                ),
            ),
        ),
        Chart(
            title="Different findings",
            told=f"{last.new} new and {last.known} known findings by the end",
            top=str(most),
            ticks=ticks,
            lines=(
                _steps("new", samples, end, most, lambda sample: sample.new),
                _steps("known", samples, end, most, lambda sample: sample.known),
            ),
        ),
        Chart(
            title="Restarts of the ranks",
            told=f"{last.restarts} restarts by the end",
            top=str(max(last.restarts, 1)),
            ticks=ticks,
            lines=(
                _steps(
                    "restarts", samples, end, max(last.restarts, 1), lambda sample: sample.restarts
                ),
            ),
        ),
    )


def duration(seconds: float) -> str:
    """``12 s``, ``3 min 05 s``, ``2 h 05 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds else "0 s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _rates(samples: Sequence[Sample], end: float) -> list[float]:
    """Examples a second in each of `BINS` parts of the run."""
    edges = [_examples_at(samples, end * i / BINS) for i in range(BINS + 1)]
    return [(b - a) * BINS / end for a, b in pairwise(edges)]


def _examples_at(samples: Sequence[Sample], seconds: float) -> float:
    before = Sample(seconds=0.0)
    for sample in samples:
        if sample.seconds > seconds:
            part = (seconds - before.seconds) / (sample.seconds - before.seconds)
            return before.examples + part * (sample.examples - before.examples)
        before = sample
    return before.examples


def _bars(values: Sequence[float], top: float) -> str:
    """The outline of touching bars, closed at the bottom."""
    points = ["M0 100"]
    for i, value in enumerate(values):
        y = 100 - 100 * value / top if top else 100
        points.append(f"V{y:.1f}H{100 * (i + 1) / len(values):.2f}")
    return "".join(points) + "V100Z"


def _steps(
    name: str, samples: Sequence[Sample], end: float, top: float, of: Callable[[Sample], int]
) -> Line:
    """A line that jumps where the value changes."""
    points, last = ["M0 100"], 0
    for sample in samples:
        if of(sample) != last:
            last = of(sample)
            points.append(f"H{100 * sample.seconds / end:.2f}V{100 - 100 * last / top:.1f}")
    return Line(name=name, path="".join(points) + "H100", last=f"{last} {name}")
