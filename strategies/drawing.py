"""What all strategies draw with: a case that grows, and choices that are cheap.

A case costs Hypothesis one choice per decision, so decisions are plain integers: building a
strategy object for each would cost more than training the case. All of them come from one
strategy, because Hypothesis also makes new cases by copying choices within an old one, and
replaces a copy that its new place does not permit by the simplest value: with bounds of their
own, decisions would drift towards "off".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import msgspec
from hypothesis import strategies as st

from fsdpfuzz.case import Anatomy, CaseSpec, anatomy, is_sound

T = TypeVar("T")

LOTS = 128
"""How many values a decision is drawn from; Hypothesis draws so few of them evenly."""

MAX_WIDTH = 9
_WIDTHS: tuple[int, ...] = (*range(1, MAX_WIDTH + 1), *(2, 3, 4) * 5)

Focus = Literal["parity", "state_dict", "memory", "checkpoint", "fine_tune", "exec_order"]
Parting = Literal["never", "all", "later", "first"]

_lots = st.integers(0, LOTS - 1)
_purpose: ContextVar[str] = ContextVar("purpose", default="")


def purpose() -> str:
    """What choices are made for just now: the dimension under way, or the operation in it."""
    return _purpose.get()


@contextmanager
def choosing(name: str) -> Iterator[None]:
    """Choices for one purpose.

    `fsdpfuzz.loop` takes those of each purpose from a random sequence of its own: a dimension that
    is new, or that draws more than it did, leaves to a seed what it gives for all others.
    """
    token = _purpose.set(name)
    try:
        yield
    finally:
        _purpose.reset(token)


class Draw(Protocol):
    """What ``@st.composite`` hands to a strategy."""

    def __call__(self, strategy: st.SearchStrategy[T], label: object = None) -> T:
        """A value of ``strategy``."""


@dataclass(slots=True)
class Drawing:
    """A case while it is drawn: each dimension puts its part into ``case``, in turn."""

    draw: Draw
    focus: Focus
    case: CaseSpec
    parting: Parting = "never"
    """Whether ranks take other paths than before: some of them first of all or later, or all."""
    flat: bool = False
    """Whether only flat parameters keep the paths' units equally long."""
    elsewhere: bool = False
    """Whether it is drawn for what another plan has saved, so that shards should lie elsewhere."""
    trains: bool = True
    """Whether the program trains; else it saves and loads only."""

    @property
    def a(self) -> Anatomy:
        """What follows from the case as it stands."""
        return anatomy(self.case)

    @property
    def apart(self) -> bool:
        """Whether some ranks take another path than the others."""
        return self.parting in ("later", "first")

    def _lot(self) -> int:
        """A number below `LOTS`."""
        return self.draw(_lots)

    def put(self, **fields: Any) -> None:
        """Replaces fields of the case."""
        self.case = msgspec.structs.replace(self.case, **fields)

    def accepts(self, case: CaseSpec) -> bool:
        """Whether a case is sound with an optimizer as simple as one may still be drawn."""
        told = case.optimizer
        if told is not None:
            case = msgspec.structs.replace(
                case, optimizer=msgspec.structs.replace(told, foreach=False)
            )
        return is_sound(case)

    # Strategies draw what they may need before they ask whether it is of use: a choice that is left
    # out would shift all that follow, and Hypothesis could not tell the smaller case for one.
    def between(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``, both included. Shrinks towards ``low``."""
        return low + self._lot() % (high - low + 1)

    # torch works out each operation on DTensors once for each shape (``ShardingPropagator`` in
    # tensor/_sharding_prop.py), which for new shapes takes a third of an fsdp2 case's time.
    def width(self) -> int:
        """From 1 to `MAX_WIDTH`, three quarters of them from 2 to 4. Shrinks towards 1."""
        return self.pick(_WIDTHS)

    def pick(self, options: Sequence[T]) -> T:
        """One of ``options``; the first is the simplest. A single one costs no choice."""
        return options[0] if len(options) == 1 else options[self._lot() % len(options)]

    def for_each(self, size: int, most: int, value: Callable[[], T]) -> list[T]:
        """A value for each of ``size`` things, of which there are at most ``most``.

        Always as many choices: a thing less must not shift those that come after.
        """
        return [value() for _ in range(most)][:size]

    def mask(self, size: int) -> list[bool]:
        """A flag for each of ``size`` things, half of them True. Shrinks towards few True ones.

        Always two choices, and the flags repeat after 14: a model that shrinks must not shift
        the choices that come after it.
        """
        bits = self._lot() + LOTS * self._lot()
        return [bool(bits >> i % 14 & 1) for i in range(size)]

    def chance(self, percent: int, **focused: int) -> bool:
        """True in about ``percent`` of 100 draws, or as often as the focus has it.

        Shrinks towards False.
        """
        often = focused.get(self.focus, percent)
        # 0 is False, the lowest of the others are True: what has shrunk to 1 stays True where the
        # rest of a case, once it is plainer, makes it less likely.
        lot = self._lot()
        return often >= 100 or 1 <= lot <= LOTS * often // 100


def all_units(d: Drawing, option: str, value: object) -> None:
    """Gives an option to all units that have it."""
    for i in range(len(d.case.plan.units)):
        one_unit(d, option, value, unit=i)


def each_unit(d: Drawing, option: str, value: Callable[[], object]) -> None:
    """Gives an option the same value in all units, in a quarter of the draws one value each.

    Where ranks part, the units of their paths have to be alike: else their collectives differ.
    """
    units = d.case.plan.units
    if option not in units[0].__struct_fields__:
        return
    all_units(d, option, value())
    if d.chance(25) and len(units) > 1 and not d.apart:
        for i in range(1, len(units)):
            one_unit(d, option, value(), unit=i)


def one_unit(d: Drawing, option: str, value: object, *, unit: int = 0) -> None:
    """Gives an option to one of the units that the plan lists, if it has the option."""
    plan = d.case.plan
    units = list(plan.units)
    if option in units[unit].__struct_fields__:
        units[unit] = msgspec.structs.replace(units[unit], **{option: value})
        d.put(plan=msgspec.structs.replace(plan, units=tuple(units)))
