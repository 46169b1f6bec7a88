"""Which options a finding needs: each is set back to its default alone, and the case run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from fsdpfuzz.case import CaseSpec, anatomy, digest
from fsdpfuzz.case.dimensions import on_ranks
from fsdpfuzz.case.wrap import under_other_api
from fsdpfuzz.reduce.cause import alike
from fsdpfuzz.reduce.neighbours import simpler, usable
from fsdpfuzz.verdict import Finding, Verdict

MAX_RUNS = 40
SIZES = (1, 2, 3, 4)
MOST_RANKS = max(SIZES)


class Ablation(msgspec.Struct, frozen=True, kw_only=True):
    """Which options a finding needs, and in which surroundings it shows."""

    needed: tuple[str, ...] = ()
    """Options without which it does not show, in words: ``use_orig_params=True``."""
    absent: tuple[str, ...] = ()
    """Surroundings in which it does not show: ``with FSDP2``, ``at world size 3``."""
    present: tuple[str, ...] = ()
    """Surroundings in which it shows all the same."""
    otherwise: tuple[str, ...] = ()
    """Surroundings in which the case shows another finding."""
    runs: int = 0
    """Cases that were run for it."""
    complete: bool = True
    """False where the bound on the runs was reached."""

    def not_under(self, api: str) -> bool:
        """Whether the same case under that API, the other one, shows nothing at all."""
        return _under(api) in self.absent

    def tried_under(self, api: str) -> bool:
        """Whether the case has a counterpart under that API, the other one, which was run."""
        return any(_under(api) in words for words in (self.absent, self.present, self.otherwise))

    @property
    def lines(self) -> tuple[str, ...]:
        """``fails only with ...``, ``not with ...``, ``also with ...``, as far as there is any."""
        lines = []
        if self.needed:
            lines.append(f"fails only with {_joined(self.needed)}")
        if self.absent:
            lines.append(f"not {_joined(self.absent, 'or')}")
        if self.present:
            lines.append(f"also {_joined(self.present)}")
        if self.otherwise:
            lines.append(f"shows otherwise {_joined(self.otherwise)}")
        if not lines:
            lines.append("no single option matters")
        return tuple(lines) if self.complete else (*lines, "not all options were tried")

    @property
    def words(self) -> str:
        """The lines in one."""
        return "; ".join(self.lines)


@dataclass(frozen=True, slots=True)
class _Variation:
    """The case with one thing changed, in words.

    Words of an option say what the case has and the variation lacks; those of surroundings,
    which are no option of the case but where it runs, what the variation has.
    """

    words: str
    case: CaseSpec
    surrounding: bool = False


def ablate(
    case: CaseSpec,
    finding: Finding,
    examine: Callable[[CaseSpec], Verdict | None],
    *,
    max_runs: int = MAX_RUNS,
    max_ranks: int = MOST_RANKS,
) -> Ablation:
    """Changes one option of ``case`` at a time and asks ``examine`` whether ``finding`` shows.

    It is the same finding where the same invariant breaks in the same way (see `alike`),
    whatever its key. A change that FSDP refuses, or that leaves nothing to check, says nothing
    and is passed over. At most ``max_runs`` cases are run, none on more than ``max_ranks``
    ranks; it also ends where ``examine`` has had enough and gives None.
    """
    needed, absent, present, otherwise = list[str](), list[str](), list[str](), list[str]()
    runs, complete = 0, True
    seen = {digest(case)}
    for variation in _variations(case, max_ranks):
        if digest(variation.case) in seen or not usable(case, variation.case):
            continue
        seen.add(digest(variation.case))
        verdict = examine(variation.case) if runs < max_runs else None
        if verdict is None:
            complete = False
            break
        runs += 1
        # A refusal tells nothing of the option: without it the case is another one.
        if verdict.status not in ("passed", "finding"):
            continue
        shows = any(alike(finding, found) for found in verdict.findings)
        if not variation.surrounding:
            needed += [] if shows else [variation.words]
        elif shows:
            present.append(variation.words)
        else:
            # Another finding may hide this one, so its absence there is not known.
            (otherwise if verdict.findings else absent).append(variation.words)
    return Ablation(
        needed=tuple(dict.fromkeys(needed)),
        absent=tuple(absent),
        present=tuple(present),
        otherwise=tuple(otherwise),
        runs=runs,
        complete=complete,
    )


def _variations(case: CaseSpec, max_ranks: int) -> Iterator[_Variation]:
    """All changes that are tried, the likeliest to matter first."""
    other = under_other_api(case, anatomy(case).units)
    if other is not None:
        yield _Variation(_under(other.api), other, surrounding=True)
    for size in SIZES:
        if size != case.world_size and size <= max_ranks:
            changed = on_ranks(case, size)
            yield _Variation(f"at world size {size}", changed, surrounding=True)
    for neighbour in simpler(case):
        if neighbour.words:
            yield _Variation(neighbour.words, neighbour.case)


def _under(api: str) -> str:
    return f"with {api.upper()}"


_AT = "at world size "


def _joined(items: tuple[str, ...], word: str = "and") -> str:
    """``a, b and c``; the world sizes in one."""
    sizes = [item.removeprefix(_AT) for item in items if item.startswith(_AT)]
    if len(sizes) > 1:
        others = tuple(item for item in items if not item.startswith(_AT))
        return _joined((*others, f"{_AT.strip()}s {_joined(tuple(sizes), word)}"), word)
    if len(items) == 1:
        return items[0]
    return f"{', '.join(items[:-1])} {word} {items[-1]}"
