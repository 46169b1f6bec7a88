from __future__ import annotations

import pytest

from fsdpfuzz.errors import CaseError, one_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("as it is, ä 日 …", "as it is, ä 日 …"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x1b[31m\x00\x7f", r"\x1b[31m\x00\x7f"),
        ("\u2028\u202e\udcff", r"\u2028\u202e\udcff"),
        ("x" * 9_000, "x" * 1_000 + " ... " + "x" * 1_000),
    ],
)
def test_any_text_becomes_one_line(text: str, shown: str) -> None:
    assert one_line(text) == shown
    assert one_line(text).encode().decode().isprintable()


def test_a_case_error_is_one_line() -> None:
    error = CaseError("bad\nthing", path="$.a\x1b", source="f\n.json")
    assert str(error) == r"f\n.json: $.a\x1b: bad\nthing"
    assert error.at("g").reason == "bad\nthing"
    assert str(error.at("g")) == r"g: $.a\x1b: bad\nthing"
