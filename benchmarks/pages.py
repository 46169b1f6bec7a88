"""What the benches of injected faults and of mutants came to, as pages beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.versions import table

if TYPE_CHECKING:
    from benchmarks.faults import Fault
    from benchmarks.many_injections import Bench, Record
    from benchmarks.mutation import Mutant
    from benchmarks.survivors import Reading


FAULT_COLUMNS = ["what is wrong", "API", "examples", "caught by", "modules", "script"]


def faults_page(faults: Sequence[Fault], bench: Bench, figures: Mapping[str, Any]) -> str:
    """A row for each fault; ``figures`` are those of `benchmarks.sensitivity.summed_up`."""
    names = [*FAULT_COLUMNS, "seeds"] if figures["seeded"] else FAULT_COLUMNS
    rows = []
    for fault in faults:
        record = bench.records.get((fault.id, "hunt"))
        if record is not None:
            seeds = bench.records.get((fault.id, "seeds"))
            by_seeds = "" if seeds is None else "yes" if seeds["status"] == "found" else "no"
            rows.append([fault.says, fault.api, *_found(record), by_seeds][: len(names)])
    lines = [
        "# Faults put into FSDP by hand",
        "",
        f"Made by `python benchmarks/sensitivity.py` with {_settings(bench)},",
        "each fault in the ranks of a run of its own.",
        f"Of {figures['hunted']} faults {figures['found']} were found, "
        f"{figures['found'] - len(figures['unscripted'])} with a script that shows it. Medians: "
        f"{figures['examples']:g} examples, {figures['findings']:g} finding, "
        f"{figures['modules']:g} module and {figures['operations']:g} operations in the reduced "
        "case.",
    ]
    if figures["seeded"]:
        lines.append(
            f"The seeds alone, of which nothing is drawn, find {figures['by_seeds']} of "
            f"{figures['seeded']}."
        )
    lines += ["", *table(names, rows)]
    return "\n".join(lines) + "\n"


def mutants_page(
    mutants: Sequence[Mutant], bench: Bench, read: Mapping[str, Reading], aside: set[str]
) -> str:
    """The survivors; those ``aside`` are counted as what nothing can show."""
    ran = [m for m in mutants if (m.id, "kill") in bench.records]
    records = {m.id: bench.records[m.id, "kill"] for m in ran}
    killed = {i for i, record in records.items() if record["status"] == "found"}
    rows = [
        # A bar would end the cell, also within code.
        [
            f"`{mutant}`".replace("|", r"\|"),
            said.kind if said else "not read",
            said.why if said else "",
        ]
        for mutant in ran
        if mutant.id not in killed
        for said in (read.get(mutant.id),)
    ]
    lines = [
        "# Lines of FSDP changed by a program",
        "",
        f"Made by `python benchmarks/mutants.py` with {_settings(bench)}.",
        f"Of {len(records) - len(aside)} mutants {len(killed)} were killed; of {len(aside)} more",
        "nothing is to be seen. What somebody who read the source says of each survivor: `same`",
        "(nothing differs but speed, a text, a log or a check of what holds anyway), `gpu` (only",
        "streams and events do), `invalid` (only what no valid case has) or `missed`.",
        "",
        *table(["survivor", "class", "why"], rows),
    ]
    hasty = sum(r["status"] == "out of time" for i, r in records.items() if i not in aside)
    if hasty:
        told = f"Of what survived and is counted, {hasty} had no time for as many examples."
        lines.insert(lines.index("", 2), told)
    seeded = [r for m in mutants if m.id not in aside if (r := bench.records.get((m.id, "seeds")))]
    if seeded:
        dead = sum(record["status"] == "found" for record in seeded)
        told = f"The seeds alone, of which nothing is drawn, kill {dead} of {len(seeded)}."
        lines.insert(lines.index("", 2), told)
    return "\n".join(lines) + "\n"


def _settings(bench: Bench) -> str:
    said = bench.settings
    where = f"torch {said['torch']} on {said['backend']}, seed {said['seed']}"
    return f"{where}, up to {said['examples']} examples"


def _found(record: Record) -> list[str]:
    if record["status"] != "found":
        return [f"none in {record.get('examples', 0)}", "", "", ""]
    confirmed = "confirmed" if record["script"] else "no"
    return [str(record["found_after"]), record["invariant"], str(record["modules"]), confirmed]
