"""The properties as pytest modules, ``pytest --pyargs fsdpfuzz.properties``, and `fuzz`.

`fuzz` makes a test of one's own of three lines.
"""

from __future__ import annotations

from fsdpfuzz.properties._fuzz import fuzz

__all__ = ["fuzz"]
