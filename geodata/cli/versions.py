"""Versions of a dataset: which there are, back to one, what may go, what can be mended."""

from __future__ import annotations

import click

ALL: list[click.Command] = []
