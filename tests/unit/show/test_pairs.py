"""Counting which option values came together."""

from __future__ import annotations

import re
from collections import Counter
from itertools import product

import msgspec
import pytest

from fsdpfuzz.case import FEATURES, CaseSpec, features
from fsdpfuzz.seeds import SEEDS
from fsdpfuzz.show import PairCounts, PairTable, Value
from fsdpfuzz.show._heat import heat_maps, legend, short
from fsdpfuzz.show._pairs import AT_ONCE, GROUPS, MAX_VALUES, OTHER, _exclusive
from fsdpfuzz.show._report import _part
from tests.unit.show.samples import REFUSED, RICH, SMALL, many_cases


def counted(*cases: dict[str, str]) -> PairTable:
    counts = PairCounts()
    for case in cases:
        counts.add(case)
    return counts.table()


def at(table: PairTable, option: str, value: str) -> int:
    return [(v.option, v.value) for v in table.values].index((option, value))


ABC = (
    {"api": "fsdp1", "sharding": "NO_SHARD", "tied": "no"},
    {"api": "fsdp1", "sharding": "FULL_SHARD", "tied": "no"},
    {"api": "fsdp1", "sharding": "FULL_SHARD", "tied": "nested"},
    {"api": "fsdp2", "reshard_after_forward": "on", "tied": "no"},
)


def test_counts() -> None:
    table = counted(*ABC)
    full, none, tied = (
        at(table, "sharding", "FULL_SHARD"),
        at(table, "sharding", "NO_SHARD"),
        at(table, "tied", "no"),
    )
    assert table.cases == 4
    assert table.values[tied].count == 3
    assert table.count(full, tied) == table.count(tied, full) == 1
    assert table.count(tied, tied) == 3
    assert table.count(none, at(table, "tied", "nested")) == 0


def test_what_cannot_come_together_is_not_missed() -> None:
    table = counted(*ABC, {"freeze": "none", "frozen_unit": "off"}, {"frozen_unit": "on"})
    value = {str(v): i for i, v in enumerate(table.values)}
    assert not table.grid().possible(value["api=fsdp2"], value["sharding=NO_SHARD"])
    assert not table.grid().possible(value["reshard_after_forward=on"], value["sharding=NO_SHARD"])
    assert not table.grid().possible(value["sharding=NO_SHARD"], value["sharding=FULL_SHARD"])
    assert not table.grid().possible(value["frozen_unit=on"], value["freeze=none"])
    assert not table.grid().possible(value["freeze=none"], value["frozen_unit=on"])
    assert table.grid().possible(value["frozen_unit=off"], value["freeze=none"])
    assert table.grid().possible(value["api=fsdp2"], value["tied=nested"])


def test_what_one_api_alone_can_take_does_not_meet_options_of_the_other() -> None:
    table = counted(
        {"api": "fsdp1", "state_dict": "local", "full_params": "written"},
        {"api": "fsdp2", "shard_placement": "on", "full_params": "read"},
    )
    value = {str(v): i for i, v in enumerate(table.values)}
    for own in ("state_dict=local", "full_params=written"):
        assert not table.grid().possible(value[own], value["shard_placement=on"])
    assert table.grid().possible(value["full_params=read"], value["state_dict=local"])


@pytest.mark.parametrize("value", ["off", "across"])
def test_an_option_of_one_api_has_no_value_under_the_other(value: str) -> None:
    """Also one that the feature does not list, as it is too rare to be waited for."""
    assert FEATURES["replicated"].values == ("off",)
    table = counted({"api": "fsdp2", "replicated": value}, {"api": "fsdp1"})
    first, second = at(table, "api", "fsdp1"), at(table, "replicated", value)
    assert not table.grid().possible(first, second)
    assert not table.grid().possible(second, first)
    assert (first, second) not in set(table.grid().possible_pairs())


def test_a_pair_that_did_occur_is_possible_whatever_was_thought() -> None:
    table = counted({"freeze": "none", "frozen_unit": "on"})
    assert table.grid().possible(0, 1)


def test_blind_spots_come_by_how_much_is_missed() -> None:
    table = counted(*ABC)
    spots = [(str(s.first), str(s.second), s.expected) for s in table.blind_spots(9)]
    assert spots == [
        ("api=fsdp2", "tied=nested", 0.25),
        ("reshard_after_forward=on", "tied=nested", 0.25),
        ("sharding=NO_SHARD", "tied=nested", 0.25),
    ]
    assert len(table.blind_spots(2)) == 2


def test_values_that_no_case_took() -> None:
    missing = {str(value) for value in counted(*ABC).missing}
    assert {
        "sharding=SHARD_GRAD_OP",
        "reshard_after_forward=default",
        "tied=across units",
    } <= missing
    assert not missing & {"sharding=NO_SHARD", "api=fsdp1", "tied=no"}
    of_one_api = {value.option for value in counted(ABC[3]).missing}
    apis = {FEATURES[option].apis for option in of_one_api}
    assert apis == {("fsdp1", "fsdp2"), ("fsdp2",)}


def test_memory_is_bounded() -> None:
    counts = PairCounts()
    for i in range(2_000):
        counts.add({"steps": str(i), "tied": str(i % 50), "api": "fsdp2"})
    table = counts.table()
    assert len(table.values) == 2 * (MAX_VALUES + 1) + 1
    other = at(table, "steps", OTHER)
    assert table.values[other].count == 2_000 - MAX_VALUES
    assert sum(value.count for value in table.values if value.option == "steps") == 2_000


def test_counts_of_many_cases_are_those_of_each() -> None:
    counts, alone = PairCounts(), Counter[tuple[str, str]]()
    drawn = [features(case) for case in many_cases(60)]
    for i in range(AT_ONCE + 100):
        case = drawn[i * i % len(drawn)]
        counts.add(case)
        if i == 50:
            counts.table()  # a report of a run that goes on changes nothing
        names = [f"{option}={value}" for option, value in case.items()]
        alone.update((one, other) for one in names for other in names)
    table = counts.table()
    shown, grid = [str(value) for value in table.values], table.grid()
    assert table.cases == AT_ONCE + 100
    for (i, one), (j, other) in product(enumerate(shown), repeat=2):
        assert table.count(i, j) == grid.counts[i][j] == alone[one, other]


def test_json_and_back() -> None:
    table = counted(*(features(case) for case in many_cases(30)))
    assert msgspec.json.decode(msgspec.json.encode(table), type=PairTable) == table


def test_the_order_of_cases_does_not_change_the_table() -> None:
    cases = [features(case) for case in many_cases(30)]
    assert counted(*cases) == counted(*reversed(cases))


def test_every_feature_is_shown_in_one_group() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(FEATURES)
    assert all(GROUPS.values())


@pytest.mark.parametrize("name", sorted(FEATURES.keys() - {"steps", "variants"}))
def test_what_a_feature_is_about_names_its_values(name: str) -> None:
    about, values = FEATURES[name].about, set(FEATURES[name].values)
    if re.match("(on|off) when ", about):
        values -= {"on", "off"}
    words = {v for v in values if re.search(rf"(?<![\w-]){re.escape(v)}(?![\w-])", about)}
    assert words == values


def test_values_that_exclude_each_other_are_values() -> None:
    for feature in FEATURES.values():
        assert feature.excludes.keys() <= set(feature.values)
        for others in feature.excludes.values():
            assert others.keys() <= FEATURES.keys()
            for other, values in others.items():
                assert values
                assert set(values) <= set(FEATURES[other].values)


@pytest.mark.parametrize(
    "cases", [tuple(seed.case for seed in SEEDS), (SMALL, RICH, REFUSED), tuple(many_cases(200))]
)
def test_no_case_has_values_that_exclude_each_other(cases: tuple[CaseSpec, ...]) -> None:
    for case in cases:
        values = [Value(option=o, value=v) for o, v in features(case).items()]
        assert [
            (str(a), str(b))
            for a in values
            for b in values
            if a.option != b.option and _exclusive(a.option, a.value, b.option, b.value)
        ] == []


def test_heat_maps_show_every_value_in_rows_and_once_in_columns() -> None:
    table = counted(*(features(case) for case in many_cases(40)))
    heats = heat_maps(table)
    columns = [str(value) for heat in heats for value in heat.columns]
    assert columns == [str(value) for value in table.values]
    for heat in heats:
        rows = [row for _, block in heat.blocks for row in block]
        assert [str(row.value) for row in rows] == columns
        assert {len(row.cells) for row in rows} == {len(heat.columns)}
        zeros = sum(cell.shade == "z" for row in rows for cell in row.cells)
        assert zeros >= heat.reachable - heat.met
        assert all((cell.text == "0") == (cell.shade == "z") for row in rows for cell in row.cells)


def test_cells() -> None:
    table = counted(*([ABC[0]] * 12 + [ABC[1]] + [ABC[2]]))
    (wrapping, *_) = heat_maps(table)
    cells = {
        str(row.value): row.cells[0] for _, block in wrapping.blocks for row in block
    }  # against api=fsdp1
    assert (cells["sharding=NO_SHARD"].shade, cells["sharding=NO_SHARD"].text) == ("3", "12")
    assert (cells["tied=nested"].shade, cells["tied=nested"].text) == ("1", "1")
    assert cells["api=fsdp1"].shade == "n"
    shown = "".join(cells[name].html() for name in ("sharding=NO_SHARD", "api=fsdp1"))
    assert shown == "<td class=h3>12<td class=n>"
    rows = [row for heat in heat_maps(table) for _, block in heat.blocks for row in block]
    assert all(str(row.html()).count("<td class=") == len(row.cells) for row in rows)
    assert all(f".h{shade} {{" in _part("report.css") for shade, _ in legend())
    assert [text for _, text in legend()] == ["1–2", "3–9", "10–29", "30–99", "100–299", "300+"]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (999, "999"), (1_000, "1.0k"), (9_949, "9.9k"), (12_345, "12k"), (10**9, "999k")],
)
def test_short_counts(count: int, text: str) -> None:
    assert short(count) == text
