"""How long and how hard a run looks: the five profiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fsdpfuzz.errors import UsageError

PREFIX = "fsdpfuzz-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Bounds of a run. Deadlines and shrink times are in seconds.

    A case's deadline follows the median of the clean cases, within ``deadline_floor`` and
    ``deadline_ceiling``. Each finding is reduced for at most ``shrink_seconds`` and
    ``shrink_tries`` cases, and for at most ``ablation_seconds`` it is asked what it needs.
    """

    name: str
    max_examples: int
    world_sizes: tuple[int, ...] = (2,)
    deadline_floor: float = 3.0
    deadline_ceiling: float = 30.0
    shrink_seconds: float = 60.0
    shrink_tries: int = 300
    ablation_seconds: float = 30.0
    derandomize: bool = False

    @property
    def hypothesis_name(self) -> str:
        """The name under which Hypothesis knows the profile."""
        return PREFIX + self.name


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(name="smoke", max_examples=20, shrink_seconds=20.0, shrink_tries=200),
        Profile(name="dev", max_examples=150),
        Profile(name="ci", max_examples=150, shrink_seconds=120.0, derandomize=True),
        Profile(
            name="nightly",
            max_examples=2_000,
            world_sizes=(2, 3, 4),
            deadline_floor=5.0,
            deadline_ceiling=60.0,
            shrink_seconds=600.0,
            shrink_tries=2_000,
        ),
        Profile(
            name="soak",
            max_examples=20_000,
            world_sizes=(2, 3, 4),
            deadline_floor=5.0,
            deadline_ceiling=60.0,
            shrink_seconds=300.0,
            shrink_tries=1_000,
        ),
    )
}


def profile_named(name: str, *, origin: str = "--profile") -> Profile:
    """The profile of that name, with or without its prefix, or :class:`UsageError`."""
    found = PROFILES.get(name.removeprefix(PREFIX))
    if found is None:
        raise UsageError(
            f"{origin}: there is no profile {name!r}; choose one of {', '.join(PROFILES)}"
        )
    return found


def hypothesis_options(profile: Profile) -> dict[str, Any]:
    """What every Hypothesis setting of ours has in common, as keyword arguments.

    Ranks take as long as they take, so Hypothesis's own deadline and health checks, which
    are about time and size of the draw, would only raise false alarms.
    """
    from hypothesis import HealthCheck, Phase

    return {
        "max_examples": profile.max_examples,
        "deadline": None,
        "derandomize": profile.derandomize,
        # Such a blob is good for one version of Hypothesis; what is found is kept as a case.
        "print_blob": False,
        "report_multiple_bugs": True,
        "suppress_health_check": list(HealthCheck),
        # Without `Phase.explain`, which runs many more cases only to say which parts do not matter.
        "phases": (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    }


def register_profiles() -> None:
    """Registers ``fsdpfuzz-<name>`` with Hypothesis for each profile. Imports Hypothesis."""
    from hypothesis import settings

    for profile in PROFILES.values():
        settings.register_profile(profile.hypothesis_name, **hypothesis_options(profile))
