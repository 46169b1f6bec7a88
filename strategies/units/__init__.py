"""How the options of units are drawn: a file each, with the option's name."""

from __future__ import annotations
