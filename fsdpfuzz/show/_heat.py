"""The pair counts as tables: every option value by the values of one group of options."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from fsdpfuzz.show._pairs import GROUPS, Grid, PairTable, Value, group_of

STEPS = (1, 3, 10, 30, 100, 300)
"""From how many cases on a cell has the next darker colour."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """``shade`` is ``n`` where two values exclude each other, ``z`` for never, else 1 to 6."""

    shade: str
    text: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One value against the columns of a table. ``first``: the first of its option."""

    value: Value
    cells: tuple[Cell, ...]
    first: bool


class Heat(msgspec.Struct, frozen=True, kw_only=True):
    """One table. Rows are grouped as the columns of all tables are."""

    name: str
    columns: tuple[Value, ...]
    blocks: tuple[tuple[str, tuple[Row, ...]], ...]
    met: int
    reachable: int


def heat_maps(table: PairTable) -> tuple[Heat, ...]:
    """A table per group that has values."""
    return tuple(_heats(table))


def short(count: int) -> str:
    """A count in at most four characters."""
    if count < 1_000:
        return str(count)
    thousands = count / 1_000
    return f"{thousands:.1f}k" if thousands < 9.95 else f"{min(round(thousands), 999)}k"


def legend() -> tuple[tuple[str, str], ...]:
    """Shade and meaning of each colour."""
    spans = []
    for i, low in enumerate(STEPS):
        high = STEPS[i + 1] - 1 if i + 1 < len(STEPS) else None
        text = f"{low}+" if high is None else str(low) if high == low else f"{low}–{high}"
        spans.append((str(i + 1), text))
    return tuple(spans)


def _heats(table: PairTable) -> Iterator[Heat]:
    groups = [group_of(value.option) for value in table.values]
    indices = range(len(table.values))
    grid = table.grid()
    for name in GROUPS:
        columns = [i for i in indices if groups[i] == name]
        if not columns:
            continue
        pairs = [(i, j) for j in columns for i in indices if grid.possible(i, j)]
        yield Heat(
            name=name,
            columns=tuple(table.values[j] for j in columns),
            blocks=tuple(
                (block, rows)
                for block in GROUPS
                if (rows := tuple(_rows(grid, block, groups, columns)))
            ),
            met=len({frozenset(pair) for pair in pairs if grid.counts[pair[0]][pair[1]]}),
            reachable=len({frozenset(pair) for pair in pairs}),
        )


def _rows(grid: Grid, block: str, groups: list[str], columns: list[int]) -> Iterator[Row]:
    last = ""
    for i, value in enumerate(grid.values):
        if groups[i] == block:
            yield Row(
                value=value,
                cells=tuple(_cell(grid, i, j) for j in columns),
                first=value.option != last,
            )
            last = value.option


def _cell(grid: Grid, i: int, j: int) -> Cell:
    if not grid.possible(i, j):
        return Cell(shade="n", text="")
    count = grid.counts[i][j]
    if not count:
        return Cell(shade="z", text="0")
    return Cell(shade=str(sum(count >= step for step in STEPS)), text=short(count))
