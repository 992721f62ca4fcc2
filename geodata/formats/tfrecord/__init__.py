"""The format `tfrecord`: `shard` writes and reads it, the others are its parts."""

from geodata.formats.tfrecord.shard import TfRecordFormat

__all__ = ["TfRecordFormat"]
