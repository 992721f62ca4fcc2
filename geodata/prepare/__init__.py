"""Prepares records on their way into shards: images, audio, tokens, declared types."""

from geodata.prepare.base import (
    AS_IS,
    Preparing,
    Refuse,
    Step,
    prepared_schema,
    run_steps,
    steps_of,
)

__all__ = ["AS_IS", "Preparing", "Refuse", "Step", "prepared_schema", "run_steps", "steps_of"]
