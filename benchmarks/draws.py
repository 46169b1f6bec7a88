"""Draws of every focus, none of them run: each is a case that `check` accepts and the wire carries.

    python benchmarks/draws.py [--draws 100000] [--world-sizes 2,3,4] [--jobs N] [--seed N]

A drawn case that `check` refuses, or that is another one once encoded and decoded, is printed as
JSON, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from fsdpfuzz.case import NEWER, CaseSpec, check, decode, encode
from fsdpfuzz.errors import FsdpFuzzError
from fsdpfuzz.loop._hypothesis import drive
from fsdpfuzz.strategies import FOCUSES, cases

_AT_ONCE = 2_000


class Lot(NamedTuple):
    """Draws of one process."""

    focus: str
    seed: int
    draws: int
    world_sizes: tuple[int, ...]


class Drawn(NamedTuple):
    """What became of a lot: how many draws there were, and those refused."""

    lot: Lot
    draws: int
    wrong: tuple[str, ...]


def draw(lot: Lot) -> Drawn:
    """Draws and looks at each case. Cases with options of every torch are among them."""
    wrong: list[str] = []
    count = 0

    def look(case: CaseSpec) -> None:
        nonlocal count
        count += 1
        data = encode(case)
        try:
            check(case)
        except FsdpFuzzError as error:
            wrong.append(f"{error}: {data.decode()}")
            return
        if decode(data) != case:
            wrong.append(f"another case once decoded: {data.decode()}")

    strategy = cases(
        focus=lot.focus,  # type: ignore[arg-type]  # One of FOCUSES.
        world_sizes=lot.world_sizes,
        offers=tuple(NEWER),
    )
    drive(strategy, look, seed=lot.seed, max_examples=lot.draws)
    return Drawn(lot, count, tuple(wrong))


def main() -> int:
    """Prints a line for each focus; 1 if any case was refused."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--draws", type=int, default=100_000, help="of each focus")
    parser.add_argument("--world-sizes", default="2,3,4")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    sizes = tuple(int(size) for size in options.world_sizes.split(","))
    lots = [
        Lot(focus, options.seed + start, min(_AT_ONCE, options.draws - start), sizes)
        for focus in FOCUSES
        for start in range(0, options.draws, _AT_ONCE)
    ]
    started = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        done = list(pool.imap_unordered(draw, lots))
    table = Table(title=f"{time.monotonic() - started:.0f} s, {options.jobs} processes")
    for name in ("focus", "draws", "refused or changed"):
        table.add_column(name, justify="left" if name == "focus" else "right")
    wrong = [line for one in done for line in one.wrong]
    for focus in FOCUSES:
        of = [one for one in done if one.lot.focus == focus]
        table.add_row(focus, str(sum(o.draws for o in of)), str(sum(len(o.wrong) for o in of)))
    Console(width=None if sys.stdout.isatty() else 100).print(table)
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
