"""What somebody who read the source has said of the mutants that survived."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from packaging.version import Version

if TYPE_CHECKING:
    from benchmarks.many_injections import Bench

READINGS = Path(__file__).with_name("survivors.json")


class Reading(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What somebody who read the source says of a survivor.

    ``same``: nothing differs but speed, a text, a log or a check of what holds anyway; ``gpu``:
    only streams and events do; ``invalid``: only of what no valid case has; ``missed``: a run
    could have shown it.
    """

    kind: Literal["same", "gpu", "invalid", "missed"]
    why: str


def readings(torch: str, path: Path = READINGS) -> dict[str, Reading]:
    """The survivors that were read, by id: of the release that they are of, else none."""
    of = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, Reading]])
    return of.get(Version(torch).base_version, {})


def set_aside(bench: Bench, read: Mapping[str, Reading]) -> set[str]:
    """The survivors of which, by their reading, nothing is to be seen."""
    shown = {i for (i, _), record in bench.records.items() if record["status"] == "found"}
    unshown = {i for i, _ in bench.records} - shown
    return {i for i, said in read.items() if said.kind != "missed" and i in unshown}
