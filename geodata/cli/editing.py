"""Changes of a dataset that make a new version of it."""

from __future__ import annotations

import click

ALL: list[click.Command] = []
