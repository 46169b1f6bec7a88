"""Several runs that were one, in several processes, as one record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from fsdpfuzz.show._pairs import PairTable, Value, in_order
from fsdpfuzz.show._record import KnownRecord, RunRecord


def merged(records: Sequence[RunRecord]) -> RunRecord:
    """The sum of the records, of which there is at least one; the first says what was run.

    Progress over time is that of a process, so a sum has none.
    """
    first, *others = records
    if not others:
        return first
    every = (first, *others)
    seconds = max(record.seconds for record in every)
    examples = sum(record.examples for record in every)
    findings = {(f.key, f.known): f for record in reversed(every) for f in record.findings}
    met = _known(every)
    return msgspec.structs.replace(
        first,
        properties=tuple(dict.fromkeys(name for record in every for name in record.properties)),
        examples=examples,
        passed=sum(record.passed for record in every),
        rejected=sum(record.rejected for record in every),
        vacuous=sum(record.vacuous for record in every),
        failed=sum(record.failed for record in every),
        skipped=sum(record.skipped for record in every),
        seconds=seconds,
        examples_per_second=examples / seconds if seconds > 0 else 0.0,
        pool_restarts=sum(record.pool_restarts for record in every),
        exit_code=max((record.exit_code or 0 for record in every), default=0),
        findings=tuple(findings.values()),
        unconfirmed=tuple(f for record in every for f in record.unconfirmed),
        harness_errors=sum(record.harness_errors for record in every),
        harness=tuple(text for record in every for text in record.harness),
        pairs=_pairs([record.pairs for record in every]),
        samples=(),
        known_met=met,
        known_silent=tuple(
            entry
            for entry in first.known_silent
            if all(entry.id in {e.id for e in record.known_silent} for record in others)
        ),
        notices=tuple(dict.fromkeys(text for record in every for text in record.notices)),
    )


def _known(records: Iterable[RunRecord]) -> tuple[KnownRecord, ...]:
    met: dict[str, KnownRecord] = {}
    for record in records:
        for entry in record.known_met:
            before = met[entry.id].cases if entry.id in met else 0
            met[entry.id] = msgspec.structs.replace(entry, cases=entry.cases + before)
    return tuple(met[name] for name in sorted(met))


def _pairs(tables: list[PairTable]) -> PairTable:
    counts: Counter[tuple[str, str]] = Counter()
    pairs: Counter[tuple[tuple[str, str], tuple[str, str]]] = Counter()
    for table in tables:
        names = [(value.option, value.value) for value in table.values]
        counts.update({name: value.count for name, value in zip(names, table.values, strict=True)})
        for key, count in table.pairs.items():
            low, _, high = key.partition(",")
            pairs[names[int(low)], names[int(high)]] += count
    order = in_order(counts)
    position = {name: i for i, name in enumerate(order)}
    placed = {tuple(sorted((position[a], position[b]))): count for (a, b), count in pairs.items()}
    return PairTable(
        cases=sum(table.cases for table in tables),
        values=tuple(
            Value(option=option, value=value, count=counts[option, value])
            for option, value in order
        ),
        pairs={f"{low},{high}": placed[low, high] for low, high in sorted(placed)},
        missing=tuple(
            value
            for value in dict.fromkeys(v for table in tables for v in table.missing)
            if (value.option, value.value) not in counts
        ),
    )
