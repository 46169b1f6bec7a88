"""Texts cut to size."""

from __future__ import annotations


def bounded(text: str, limit: int) -> str:
    """``text`` without its middle if it is longer than ``limit``, and always encodable."""
    if len(text) > limit:
        mark = "\n[...]\n"
        # More of the end: there a traceback says what was raised.
        head = limit // 4
        text = text[:head] + mark + text[len(text) - (limit - head - len(mark)) :]
    return text.encode(errors="replace").decode()
