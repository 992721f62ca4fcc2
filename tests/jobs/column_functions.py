"""Functions that make columns, well or badly."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def length(batch):
    return pc.utf8_length(batch["text"])


def listed(batch):
    return [None if score is None else 2 * score for score in batch["score"].to_pylist()]


def matrix(batch):
    return np.stack([np.arange(3) + n for n in range(batch.num_rows)]).astype("float32")


def chunked(batch):
    return pa.chunked_array([batch["text"]]).dictionary_encode()


def fails(batch):
    for likes in batch["likes"].to_pylist():
        assert likes % 2 == 0, f"secret {likes}"
    return [0] * batch.num_rows


def short(batch):
    return [1]


def mixed(batch):
    return [1, "one", 2.5][: batch.num_rows] + [None] * max(batch.num_rows - 3, 0)


def nothing(batch):
    return [None] * batch.num_rows


def upper(batch):
    return pc.utf8_upper(batch["text"])


def parity(batch):
    return pc.bit_wise_and(batch["likes"], 1)


def other_parity(batch):
    return pc.subtract(1, parity(batch))


def sevens(batch):
    return pa.array([7] * batch.num_rows, pa.int64())


def zeros(batch):
    return pa.array([0] * batch.num_rows, pa.int64())


def photographs(batch):
    return [Path("taken.jpg").read_bytes()] * batch.num_rows


def types(batch):
    known = [str(batch.schema.field(name).type) for name in ("x", "l", "s")]
    return [" ".join(known)] * batch.num_rows
