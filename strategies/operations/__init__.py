"""How operations come into a program: a file each, with the operation's name."""

from __future__ import annotations
