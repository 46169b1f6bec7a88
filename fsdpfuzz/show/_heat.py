"""The pair counts as tables: every option value by the values of one group of options."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from fsdpfuzz.show._pairs import GROUPS, Grid, PairTable, Value, group_of

if TYPE_CHECKING:
    from markupsafe import Markup

STEPS = (1, 3, 10, 30, 100, 300)
"""From how many cases on a cell has the next darker colour."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """``shade`` is ``n`` where two values exclude each other, ``z`` for never, else 1 to 6."""

    shade: str
    text: str

    def html(self) -> str:
        """The cell of a table; HTML lets its end tag be left out."""
        name = self.shade if self.shade in "nz" else f"h{self.shade}"
        return f"<td class={name}>{self.text}"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One value against the columns of a table. ``first``: the first of its option."""

    value: Value
    cells: tuple[Cell, ...]
    first: bool

    # A page has a hundred thousand of them, each of which a template takes long to put out.
    def html(self) -> Markup:
        """The cells."""
        from markupsafe import Markup

        return Markup("".join(cell.html() for cell in self.cells))


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
        pairs = {(min(i, j), max(i, j)) for j in columns for i in indices if grid.together[i][j]}
        yield Heat(
            name=name,
            columns=tuple(table.values[j] for j in columns),
            blocks=tuple(
                (block, rows)
                for block in GROUPS
                if (rows := tuple(_rows(grid, block, groups, columns)))
            ),
            met=sum(grid.counts[i][j] > 0 for i, j in pairs),
            reachable=len(pairs),
        )


def _rows(grid: Grid, block: str, groups: list[str], columns: list[int]) -> Iterator[Row]:
    last = ""
    for i, value in enumerate(grid.values):
        if groups[i] == block:
            yield Row(
                value=value,
                cells=tuple(
                    _cell(grid.counts[i][j]) if grid.together[i][j] else _NEVER for j in columns
                ),
                first=value.option != last,
            )
            last = value.option


_NEVER = Cell(shade="n", text="")


# Most counts are small, and cells of the same count are the same.
@lru_cache(maxsize=4096)
def _cell(count: int) -> Cell:
    if not count:
        return Cell(shade="z", text="0")
    return Cell(shade=str(sum(count >= step for step in STEPS)), text=short(count))
