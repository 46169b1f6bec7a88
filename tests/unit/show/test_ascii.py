"""Text for terminals without more than ASCII."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from fsdpfuzz.show import in_ascii, spell_out, wants_ascii
from fsdpfuzz.show._ascii import SIGNS

SOURCES = Path(__file__).resolve().parents[3] / "fsdpfuzz"


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({"LANG": "C"}, True),
        ({"LANG": "POSIX", "LC_CTYPE": "C.UTF-8"}, True),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "C"}, True),
        ({"LANG": "C", "LC_ALL": "C.UTF-8"}, False),
        ({"LANG": "C", "PYTHONIOENCODING": "utf-8"}, False),
        ({"LANG": "de_DE.UTF-8"}, False),
        ({}, False),
    ],
)
def test_the_locale_decides(environ: dict[str, str], wanted: bool) -> None:
    assert wants_ascii(environ) is wanted


def test_signs_become_others_and_the_rest_is_escaped() -> None:
    assert in_ascii("├── 3×4 → é🐛") == "|-- 3x4 -> \\xe9\\U0001f41b"


def test_a_stream_takes_any_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    monkeypatch.delenv("PYTHONUTF8", raising=False)
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="utf-8")
    spell_out(stream)
    stream.write("2×3 \udcff\n")
    stream.flush()
    assert raw.getvalue() == b"2x3 \\udcff\n"
    spell_out(io.StringIO())


def test_every_sign_that_the_drawing_uses_has_another_one() -> None:
    words = (SOURCES / "show/_words.py").read_text() + (SOURCES / "case/inputs.py").read_text()
    assert set(re.findall(r"[^\x00-\x7f]", words)) <= set(SIGNS)
    assert all(text.isascii() for text in SIGNS.values())
