"""What a session is made of outside of tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fsdpfuzz.known import Known
from fsdpfuzz.loop._against import compared
from fsdpfuzz.loop._archive import FileArchive
from fsdpfuzz.loop._ports import PoolLike, Ports
from fsdpfuzz.loop._settings import SessionSettings

if TYPE_CHECKING:
    from fsdpfuzz.pool import Interpreter
    from fsdpfuzz.wire import Target


def real_ports(settings: SessionSettings) -> Ports:
    """The ports of a real session: ranks on this machine, files in the output folder."""
    from fsdpfuzz.invariants import foresee, judge
    from fsdpfuzz.pool import Deadlines, Pool

    profile = settings.profile

    def pools(
        python: Interpreter | None,
        target: Target | None = settings.target,
        *,
        taps: bool = False,
    ) -> Callable[[int], PoolLike]:
        def make_pool(world_size: int) -> PoolLike:
            return Pool(
                world_size,
                settings.backend,
                deadlines=Deadlines(floor=profile.deadline_floor, ceiling=profile.deadline_ceiling),
                injection=settings.injection,
                python=python,
                target=target,
                taps=taps,
            )

        return make_pool

    known = Known.load(settings.known) if settings.known is not None else Known()
    ports = Ports(
        make_pool=pools(settings.python),
        judge=judge,
        foresee=foresee,
        archive=FileArchive(settings.output, settings.kept),
        known=known,
        aim=lambda target, taps: pools(settings.python, target, taps=taps),
    )
    other = settings.against
    if other is None:
        return ports
    first = known.on_one_of(settings.torch, other.torch, backend=settings.backend)
    return compared(ports, pools(other), torch=other.torch, first=first)
