"""A trained run against a byte 3-gram model of the same training text, on the same held-out text.

The 3-gram is interpolated Kneser-Ney (Kneser and Ney 1995; Chen and Goodman 1999, eq. 4.16) over
the 257 byte tokens, its discount chosen on the held-out text itself, in its favour. Both models
predict the same positions: every token of a held-out sequence but the first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt

from benchmarks.report import Goal, Report, Row
from geodata.config import load_config
from geodata.loader import Loader, build_loader

VOCABULARY = 257
DISCOUNTS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

Counts = npt.NDArray[np.float64]


class TriGram:
    """Interpolated Kneser-Ney over tokens 0 … 256."""

    def __init__(self) -> None:
        self._three = np.zeros((VOCABULARY,) * 3, np.int32)
        self._first_two = np.zeros((VOCABULARY,) * 2, np.int64)

    def count(self, tokens: npt.NDArray[np.int64]) -> None:
        """Add one text, its end mark included."""
        if len(tokens) > 2:
            np.add.at(self._three, (tokens[:-2], tokens[1:-1], tokens[2:]), 1)
        if len(tokens) > 1:
            np.add.at(self._first_two, (tokens[0], tokens[1]), 1)

    def fit(self, discount: float) -> None:
        """Turn counts into probabilities P(c | a b) and P(c | b)."""
        two = (self._three > 0).sum(0).astype(np.float64) + (self._first_two > 0)
        one = (two > 0).sum(0) + 1.0
        unigram = one / one.sum()
        self._pair = _interpolate(two, unigram[None, :], discount)
        self._discount = discount

    def bits(self, tokens: npt.NDArray[np.int64]) -> float:
        """Return the bits of every token but the first; the second has one token of context."""
        if len(tokens) < 2:
            return 0.0
        total = -math.log2(self._pair[tokens[0], tokens[1]])
        a, b, c = tokens[:-2], tokens[1:-1], tokens[2:]
        seen = self._three[a, b]
        held = np.maximum(self._three[a, b, c] - self._discount, 0)
        sums = seen.sum(1).astype(np.float64)
        kinds = (seen > 0).sum(1)
        lower = self._pair[b, c]
        safe = np.maximum(sums, 1)
        probability = np.where(sums > 0, held / safe + self._discount * kinds / safe * lower, lower)
        return total - float(np.log2(probability).sum())


def _interpolate(counts: Counts, lower: Counts, discount: float) -> Counts:
    sums = counts.sum(1, keepdims=True)
    safe = np.maximum(sums, 1)
    kinds = (counts > 0).sum(1, keepdims=True)
    mixed = np.maximum(counts - discount, 0) / safe + discount * kinds / safe * lower
    result: Counts = np.where(sums > 0, mixed, lower)
    return result


def sequences(loader: Loader) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the token sequences of one epoch, padding left out."""
    for batch in loader:
        for labels, weight in zip(batch["labels"].numpy(), batch["weight"].tolist(), strict=True):
            if weight:
                yield labels[labels != -100]


@click.command()
@click.argument("config", type=click.Path(exists=True, path_type=Path))
@click.argument("run", type=click.Path(exists=True, path_type=Path))
@click.option("--json", "json_path", type=click.Path(path_type=Path))
def language(config: Path, run: Path, json_path: Path | None) -> None:
    """Bits per byte of a trained RUN beside a 3-gram model of the same text."""
    whole = ["loader.text.length=1048576", "loader.text.crop=head"]
    training = build_loader(load_config(config, whole), split="train")
    model = TriGram()
    nbytes = 0
    for tokens in sequences(training):
        model.count(tokens)
        nbytes += len(tokens)
    heldout = list(sequences(build_loader(config, split="heldout")))
    scored = sum(int((tokens[1:] < 256).sum()) for tokens in heldout)
    found = {}
    for discount in DISCOUNTS:
        model.fit(discount)
        found[discount] = sum(model.bits(tokens) for tokens in heldout) / scored
    best = min(found, key=found.__getitem__)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    evaluations = [line for line in map(json.loads, lines) if "bits_per_byte" in line]
    ours = evaluations[-1]["bits_per_byte"]
    report = Report(["torch", "transformers", "numpy"])
    report.rows = [
        Row("held-out text", "ours", ours, "bits/byte"),
        Row("held-out text", f"3-gram (D={best})", found[best], "bits/byte"),
        Row("training text", "3-gram", nbytes, "bytes"),
        Row("held-out text", "both", scored, "bytes"),
        Row("training", "ours", evaluations[-1]["step"], "steps"),
    ]
    ratio = ours / found[best]
    report.goals = [Goal("below the 3-gram", ratio, "ratio < 1", ratio < 1)]
    click.echo(report.text())
    if json_path:
        report.write(json_path)


__all__ = ["TriGram", "language"]
