"""Ranks that take another path from here on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

import msgspec

from fsdpfuzz.case.base import ModulePath, Rank
from fsdpfuzz.case.dimension import Feature, Simpler
from fsdpfuzz.case.modules import Switch
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.operations.base import OperationBase, Progress
from fsdpfuzz.case.paths import join, within
from fsdpfuzz.case.recipe import MODEL, Do, Statement, Value, Variable, call, literal
from fsdpfuzz.case.units.use_orig_params import is_flat
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.flow import Situation
    from fsdpfuzz.case.lowering import Lowering
    from fsdpfuzz.case.spec import CaseSpec


class Flip(OperationBase, tag="flip", frozen=True, kw_only=True):
    """Moves the `switch` at ``path`` to its next child, on ``ranks`` only.

    The child that was active is frozen and the next one unfrozen.
    """

    features: ClassVar[Mapping[str, Feature]] = {
        "flips": Feature(
            about="no, all, some (of the ranks, at one time or another)",
            group="Training",
            values=("no", "some", "all"),
        )
    }
    parts_ranks: ClassVar[bool] = True
    changes_trained: ClassVar[bool] = True

    path: ModulePath
    ranks: tuple[Rank, ...]

    def check(self, a: Anatomy, progress: Progress, at: str) -> None:
        """A switch, and ranks that exist."""
        check_names((self.path,), a.switches, at, "switch")
        if any(rank >= a.case.world_size for rank in self.ranks):
            raise CaseError(
                f"ranks {list(self.ranks)} exceed world_size={a.case.world_size}", path=at
            )

    def steps(self, lowering: Lowering) -> Iterator[Statement]:
        """On those ranks alone."""
        a = lowering.a
        # By its number: a wrapper around the switch, or around what holds it, changes its FQN.
        number = a.switches.index(self.path)
        prefix = f"{self.path}." if self.path else ""
        named = Variable("named")
        kept = [name for name in a.owners if _flattened_beyond(a, self.path, name)]
        options: dict[str, Value] = {"kept": literal(a.canonical_names(kept))} if kept else {}
        flip = call("steps.switching.flip", MODEL, named, number, prefix, **options)
        yield Do(call=flip, ranks=self.ranks)

    def words(self) -> str:
        """``flip 2 on rank 1``."""
        where = f" {self.path}" if self.path else ""
        return f"flip{where} on rank {', '.join(map(str, self.ranks)) or 'none'}"

    def moves(self, now: Situation, a: Anatomy, rank: int) -> None:
        """The active child, and what is trained from here on."""
        if rank not in self.ranks:
            return
        node = a.by_path[self.path].node
        children = len(node.children) if isinstance(node, Switch) else 1
        old = now.active.get(self.path, 0)
        new = (old + 1) % children
        now.active[self.path] = new
        for child, value in ((old, False), (new, True)):
            prefix = join(self.path, "branches", str(child)) + "."
            names = [name for name in now.trained if name.startswith(prefix)]
            now.require([n for n in names if not _flattened_beyond(a, self.path, n)], value)

    @classmethod
    def values(cls, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Which ranks switch."""
        flips = [op for op in a.case.program if isinstance(op, Flip)]
        everyone = all(len(set(op.ranks)) == a.case.world_size for op in flips)
        yield "flips", ("all" if everyone else "some") if flips else "no"

    @classmethod
    def simpler(cls, case: CaseSpec) -> Iterator[Simpler]:
        """On one rank alone: the first of them, or rank 0, which any number of ranks has."""
        for i, op in enumerate(case.program):
            ranks = op.ranks if isinstance(op, Flip) else ()
            for one in dict.fromkeys((*ranks[:1], 0)) if ranks else ():
                if ranks not in ((one,), (0,)):
                    alone = msgspec.structs.replace(op, ranks=(one,))
                    program = (*case.program[:i], alone, *case.program[i + 1 :])
                    yield Simpler(msgspec.structs.replace(case, program=program))


# The flat parameter has the name of its unit (``_flat_param``), not those of what lies in it.
def _flattened_beyond(a: Anatomy, switch: ModulePath, name: str) -> bool:
    """Whether a parameter of a branch lies in a flat parameter of a unit around that branch."""
    owner = a.owners[name]
    branches = join(switch, "branches")
    return (
        owner is not None
        and within(name, branches)
        and is_flat(a, owner)
        and not (within(owner, branches) and owner != branches)
    )
