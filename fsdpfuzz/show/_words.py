"""A case in a few words, put together from those of its parts. What is usual is left out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from fsdpfuzz.case import (
    KINDS,
    OPTIONS,
    Anatomy,
    Op,
    Place,
    Unit,
    Variant,
    anatomy,
    variant_of,
)
from fsdpfuzz.errors import one_line

MAX_NAMES = 6

_OPTIONS = {option.name: option for option in OPTIONS}


def unit_options(unit: Unit) -> dict[str, str]:
    """The options of a unit that differ from PyTorch's defaults, each in a word."""
    # By the fields, so that an option without words of its own is noticed.
    options = [_OPTIONS[name] for name in unit.__struct_fields__ if name != "path"]
    values = ((option, getattr(unit, option.name)) for option in options)
    return {o.name: o.words(value) for o, value in values if value != o.default(unit)}


def common_options(a: Anatomy) -> dict[str, str]:
    """The options other than default that all units of a case have alike, if it has several."""
    options = [unit_options(unit) for unit in a.options.values()]
    if len(options) < 2:
        return {}
    return {
        name: word
        for name, word in options[0].items()
        if all(own.get(name) == word for own in options)
    }


def unit_words(unit: Unit, said: Collection[str] = ()) -> str:
    """``unit``, and its options that differ from PyTorch's defaults and are not ``said`` yet."""
    words = [word for name, word in unit_options(unit).items() if name not in said]
    return f"unit {', '.join(words)}" if words else "unit"


def plan_words(a: Anatomy) -> str:
    """The API, how many units there are, and what all of them have in common."""
    number = len(a.units)
    counted = f"{a.plan.words()}, {number} unit{'' if number == 1 else 's'}"
    common = ", ".join(common_options(a).values())
    return f"{counted}, {'both' if number == 2 else 'all'} {common}" if common else counted


def variant_words(a: Anatomy, variant: Variant) -> str:
    """What a variant has of its own."""
    words = []
    if variant.plan is not None:
        own = anatomy(variant_of(a.case, variant))
        said = common_options(own)
        units = [
            f"{path or 'root'}{unit_words(unit, said).removeprefix('unit')}"
            for path, unit in own.options.items()
        ]
        words.append(f"{plan_words(own)}: {names(units)}")
    if variant.checkpoints is not None:
        placed = [f"{c.path or 'root'} {c.words()}" for c in variant.checkpoints]
        words.append(f"checkpoints {names(placed) or 'none'}")
    if variant.frozen is not None:
        words.append(f"frozen {names(variant.frozen) or 'none'}")
    if variant.held_out:
        words.append(f"not in the optimizer {names(variant.held_out)}")
    return one_line(f"{variant.name}: {'; '.join(words) or 'the same again'}")


def kind_words(place: Place) -> str:
    """What a module is, with the widths that go in and out and its options."""
    words = [place.kind.replace("_", " ")]
    # A module that its node brings along may be of a kind that has no node.
    shown = place.kind in KINDS and KINDS[place.kind].shows_width
    if place.width_in and place.width_out and place.width_in != place.width_out:
        words.append(f"{place.width_in}→{place.width_out}")
    elif shown:
        words.append(f"{place.width_out}" if place.width_in else f"tokens→{place.width_out}")
    if place.node is not None and (own := place.node.words()):
        words.append(", ".join(own))
    return " ".join(words)


def program_lines(program: Sequence[Op]) -> tuple[str, ...]:
    """One line per optimizer step, equal neighbours joined: ``(forward · backward) ×3``."""
    lines = [
        " · ".join(_folded([op.words() for op in chunk], together=False))
        for chunk in _chunks(program)
    ]
    return tuple(_folded(lines, together=True))


def names(values: Sequence[str]) -> str:
    """The values with commas, of many only the first ones."""
    shown = ", ".join(values[:MAX_NAMES])
    more = len(values) - MAX_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def _chunks(program: Sequence[Op]) -> Iterator[list[Op]]:
    """The program cut after each step."""
    chunk: list[Op] = []
    for op in program:
        chunk.append(op)
        if op.steps_optimizer:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _folded(words: Sequence[str], *, together: bool) -> list[str]:
    """Repeated runs of up to four words written once with their number."""
    out: list[str] = []
    at = 0
    while at < len(words):
        size, times = max(
            ((size, _times(words, at, size)) for size in (1, 2, 3, 4)),
            key=lambda pair: (pair[0] * (pair[1] - 1), -pair[0]),
        )
        if times == 1:
            out.append(words[at])
            at += 1
            continue
        run = list(words[at : at + size])
        if together and size > 1:
            out += [f"{run[0]}  ┐", *(f"{word}  │" for word in run[1:-1]), f"{run[-1]}  ┘ ×{times}"]
        else:
            text = " · ".join(run)
            out.append(f"({text}) ×{times}" if " · " in text else f"{text} ×{times}")
        at += size * times
    return out


def _times(words: Sequence[str], at: int, size: int) -> int:
    times = 1
    while words[at : at + size] == words[at + size * times : at + size * (times + 1)]:
        times += 1
    return times if len(words[at : at + size]) == size else 1
