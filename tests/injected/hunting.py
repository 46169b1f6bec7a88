"""Short hunts for injected faults, and what their findings have to come with."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from fsdpfuzz.case import CaseSpec, Linear, anatomy
from fsdpfuzz.corpus import read_entry
from fsdpfuzz.loop import (
    PROFILES,
    Api,
    Event,
    FindingDone,
    Found,
    RunSettings,
    SessionSettings,
    Summary,
    default_known,
    resolve_machine,
    run,
    write_script,
)
from fsdpfuzz.wire import Backend
from tests.injected.forked import verify_forked

UNITS = "tests.injected.units"
MAX_LINES = 60
LONGER = 75
"""Of a script that needs a second iteration, or modules of its own, whatever it is about."""


def hunt(
    injection: str,
    folder: Path,
    *,
    property_name: str = "parity",
    number: int = 30,
    backend: Backend = "gloo",
    tries: int = PROFILES["dev"].shrink_tries,
    apis: tuple[Api, ...] = ("fsdp2",),
    scripts: bool = True,
    world_sizes: tuple[int, ...] = (2,),
    until: tuple[str, ...] = (),
    seed: int = 5,
) -> Summary:
    """A run under an injection; a finding is reduced in ``tries`` runs of a case at most.

    It ends before ``number`` examples once it has new findings whose keys start with each of
    ``until``, reduced and scripted.
    """
    profile = replace(PROFILES["dev"], shrink_tries=tries, shrink_seconds=600.0)
    here = resolve_machine(backend, world_sizes)
    settings = RunSettings(
        session=SessionSettings(
            backend=backend,
            torch=here.torch,
            offers=here.offers,
            output=folder,
            known=default_known(),
            injection=injection,
            seed=seed,
            profile=profile,
        ),
        properties=(property_name,),
        max_examples=number,
        apis=apis,
        world_sizes=world_sizes,
    )
    return run(
        settings,
        Enough(until),
        script=partial(write_script, verify=verify_forked) if scripts else None,
    )


class Enough:
    """Ends a run that has found what it was for."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._left = set(keys)

    def __call__(self, event: Event) -> None:
        """Hears what the run tells; `KeyboardInterrupt` ends it in good order."""
        if isinstance(event, FindingDone) and event.found.known is None and self._left:
            shown = keys_of(event.found)
            self._left = {key for key in self._left if not any(k.startswith(key) for k in shown)}
            if not self._left:
                raise KeyboardInterrupt


def found_by(summary: Summary, start: str) -> Found:
    """The first new finding whose key starts so, or that shows as one that does.

    Which of the keys of a cause comes first hangs on the case in which it is met: a fault of a
    reduction shows in the collectives alone where the gradients are equal.
    """
    new = [found for found in summary.findings if found.known is None]
    for found in new:
        if any(key.startswith(start) for key in keys_of(found)):
            return found
    pytest.fail(f"no {start} among {[keys_of(found) for found in new]}")


def keys_of(found: Found) -> tuple[str, ...]:
    """The key of a finding, and those of what else its cause shows."""
    return (found.finding.key, *found.also)


def case_of(found: Found) -> CaseSpec:
    """The case of a finding, as it was saved."""
    return read_entry(found.case).case


def linears(case: CaseSpec) -> int:
    """How many linear layers of their own its model has."""
    return sum(isinstance(place.node, Linear) for place in anatomy(case).places)


def assert_shown_by_its_script(
    found: Found, *, lines: int = MAX_LINES, backend: Backend = "gloo"
) -> None:
    """The script shows the finding where the fault is, as the run has seen, and only there."""
    script = found.script
    assert script is not None
    assert script.path is not None
    assert script.confirmed, script.note
    text = script.path.read_text()
    # What it was found with may take a line more: builds for GPUs name more versions.
    found_with = text.partition("Found with: ")[2].partition("Ablation: ")[0].splitlines()
    assert len(text.splitlines()) <= lines + max(0, len(found_with) - 2)
    without = verify_forked(script.path, case_of(found).world_size, backend, found.finding)
    assert without.outcome == "not reproduced", without.output
