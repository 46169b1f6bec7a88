"""Ten thousand wrong files: each is refused in one line, or still holds a sound entry."""

from __future__ import annotations

import json
import re
import resource
import tracemalloc
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fsdpfuzz.case import anatomy, as_document, foreseen_rejections
from fsdpfuzz.corpus import Store, describe, parse_entry, read_entry, slug, write_entry
from fsdpfuzz.errors import CaseError
from tests.unit.corpus.samples import ENTRIES
from tests.unit.corpus.spoil import SPOILERS, Spoiler

FILES = 10_000
MOST_BYTES = 200 << 20
REFUSAL = re.compile(r"\$[^ ]*: .+")


def documents(folder: Path) -> list[Any]:
    path = folder / "document.json"
    found = []
    for entry in ENTRIES:
        write_entry(path, entry, durable=False)
        found += [json.loads(path.read_bytes()), as_document(entry.case)]
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def check_refusal(error: CaseError, path: Path) -> None:
    message = str(error)
    assert message.isprintable()
    assert message.startswith(f"{path}: $"), message
    assert REFUSAL.fullmatch(message.removeprefix(f"{path}: ")), message
    assert len(message) < 3_000


def test_a_wrong_file_is_refused_in_one_line_or_still_sound(tmp_path: Path) -> None:
    rng = Random(2026)
    bases = documents(tmp_path)
    path = tmp_path / "wrong.json"
    refused: Counter[str] = Counter()
    sound: Counter[str] = Counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for i in range(FILES):
        spoiler = SPOILERS[i % len(SPOILERS)]
        path.write_bytes(spoiler(rng, rng.choice(bases)))
        try:
            entry = read_entry(path)
            if sound[spoiler.__name__] < 100:
                describe(entry)
                foreseen_rejections(anatomy(entry.case))
        except CaseError as error:
            refused[spoiler.__name__] += 1
            check_refusal(error, path)
        else:
            sound[spoiler.__name__] += 1
            write_entry(path, entry, durable=False)
            assert read_entry(path) == entry
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert refused.total() + sound.total() == FILES
    assert refused.total() > 0.75 * FILES, refused
    assert min(refused[s.__name__] for s in SPOILERS) > 100, refused
    assert sound.total() > 100, "harmless changes are accepted"
    assert grown < MOST_BYTES


@pytest.mark.parametrize("spoiler", SPOILERS, ids=lambda spoiler: spoiler.__name__)
def test_no_wrong_file_costs_much_memory(spoiler: Spoiler, tmp_path: Path) -> None:
    rng = Random(spoiler.__name__)
    bases = documents(tmp_path)
    for _ in range(10):
        data = spoiler(rng, rng.choice(bases))
        tracemalloc.start()
        try:
            parse_entry(data, "x.json")
        except CaseError as error:
            check_refusal(error, Path("x.json"))
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert peak < MOST_BYTES


def test_no_name_from_a_file_leaves_the_folder(tmp_path: Path) -> None:
    """Whatever a finding is called, its file lies flat in the folder of failures."""
    rng = Random(2028)
    store = Store(tmp_path / "out")
    wrote = 0
    for _ in range(300):
        document = next(d for d in documents(tmp_path) if "found" in d)
        key = "".join(chr(rng.choice([0, 10, 27, 46, 47, 92, 97, 126, 0x202E])) for _ in range(40))
        document["found"]["key"] = rng.choice(["../", "/", "~/", "..\\", ""]) + key
        path = store.keep(parse_entry(json.dumps(document).encode(), "x"))
        assert path.parent == tmp_path / "out" / "failures"
        assert re.fullmatch(r"[a-z0-9-]+\.json", path.name)
        assert slug(document["found"]["key"]) in path.name
        wrote += 1
    assert wrote == 300
    outside = {p.name for p in tmp_path.iterdir()} - {"out", "document.json"}
    assert not outside
