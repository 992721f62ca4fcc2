"""What other libraries need beside our files."""

from __future__ import annotations

import click

ALL: list[click.Command] = []
