"""What a session is made of outside of tests."""

from __future__ import annotations

from fsdpfuzz.known import Known
from fsdpfuzz.loop._archive import FileArchive
from fsdpfuzz.loop._ports import PoolLike, Ports
from fsdpfuzz.loop._settings import SessionSettings


def real_ports(settings: SessionSettings) -> Ports:
    """The ports of a real session: ranks on this machine, files in the output folder."""
    from fsdpfuzz.invariants import judge
    from fsdpfuzz.pool import Deadlines, Pool

    profile = settings.profile

    def make_pool(world_size: int) -> PoolLike:
        return Pool(
            world_size,
            settings.backend,
            deadlines=Deadlines(floor=profile.deadline_floor, ceiling=profile.deadline_ceiling),
            plant=settings.plant,
            python=settings.python,
        )

    return Ports(
        make_pool=make_pool,
        judge=judge,
        archive=FileArchive(settings.output, settings.kept),
        known=Known.load(settings.known) if settings.known is not None else Known(),
    )
