"""One line a few steps for the person who watches, on stderr."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any

_UNITS = {"tokens": "tok", "images": "img"}

_SHARES = {"accuracy": "accuracy", "balanced_accuracy": "balanced", "majority": "majority"}
"""Measures of an evaluation that are told in percent, and their short names."""


class _Once(logging.Filter):
    """Lets each message through once: the loaders of all splits say the same."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        fresh = message not in self._seen
        self._seen.add(message)
        return fresh


def configure_logging(*, first: bool) -> None:
    """Send warnings to stderr, on the first rank only; errors on all."""
    handler = logging.StreamHandler()
    handler.addFilter(_Once())
    level = logging.WARNING if first else logging.ERROR
    logging.basicConfig(level=level, format="%(levelname)s: %(message)s", handlers=[handler])


class Console:
    """Prints on the first rank, and is silent on the others."""

    def __init__(self, active: bool, log_every: int):
        self._active, self._log_every = active, log_every
        self.total_steps = 0
        self.unit = "tokens"
        """What the speed is told of: "tokens" or "images"."""
        self._since: list[Mapping[str, Any]] = []

    def say(self, text: str) -> None:
        """Print a line."""
        if self._active:
            print(text, file=sys.stderr, flush=True)

    def step(self, record: Mapping[str, Any]) -> None:
        """Print every `log_every`-th step and the last, with the rates since the line before."""
        self._since.append(record)
        step = record["step"]
        if step % self._log_every and step != self.total_steps:
            return
        volume, seconds, waited = (
            sum(one[key] for one in self._since)
            for key in (self.unit, "step_seconds", "data_wait_seconds")
        )
        speed = f"{short(volume / seconds)} {_UNITS[self.unit]}/s"
        left = (self.total_steps - step) * seconds / len(self._since)
        skips = sum(one.get("skipped", False) for one in self._since)
        tail = f"  {skips} skipped at scale {record['loss_scale']:g}" if skips else ""
        self._since = []
        self.say(
            f"step {step:,}/{self.total_steps:,}  loss {record['loss']:.3f}  "
            f"lr {scientific(record['learning_rate'])}  {speed}  "
            f"wait {100 * waited / seconds:.1f} %  eta {duration(left)}{tail}"
        )

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Print an evaluation: the loss, and what else the task is judged by."""
        told = [f"held out at step {record['step']:,}", f"loss {record['loss']:.3f}"]
        if "bits_per_byte" in record:
            told.append(f"{record['bits_per_byte']:.3f} bits per byte")
        told += [f"{_SHARES[key]} {100 * record[key]:.1f} %" for key in _SHARES if key in record]
        self.say("  ".join(told))

    def cache(self, tiers: Mapping[str, Mapping[str, int]]) -> None:
        """Print how often the tiers of the cache had what was asked, and how often none did."""
        if not tiers:
            return
        told = [f"{name} {one['hits']:,} of {_asked(one):,}" for name, one in tiers.items()]
        nearest, *others = tiers.values()
        missed = nearest["misses"] - sum(one["hits"] for one in others)
        self.say(f"cache: {', '.join(told)}, store {missed:,}")


def _asked(tier: Mapping[str, int]) -> int:
    return tier["hits"] + tier["misses"]


def scientific(value: float) -> str:
    """Return a rate such as 5.8e-4."""
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def short(value: float) -> str:
    """Return a count such as 98.1k."""
    for unit in ("", "k", "M", "G"):
        if value < 1000:
            return f"{value:.1f}{unit}"
        value /= 1000
    return f"{value:.1f}T"


def duration(seconds: float) -> str:
    """Return a time such as 2 h 11 min."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
