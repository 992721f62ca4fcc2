"""Records for the tests of formats, and how to compare them."""

import numpy as np
import pyarrow as pa

from geodata.canonical import ContentHasher
from geodata.digests import PREFIX
from geodata.schema import KEY, dataset_schema, fit, label_field, media_field, tensor_field

ODD_KEYS = [
    "plain",
    "with space",
    "dots.in.it.tar.gz",
    "a/b/c.jpg",
    "/rooted",
    "../up",
    "ünïcode/日本語/😀",
    "__x__",
    "__geodata__",
    "__geodata__/shard.json",
    "tab\tnew\nline\r\x01\x7f",
    "percent%2E%",
    "%",
    "",
    ".",
    "UPPER",
    "upper",
    "$*?[+~`'\"\\",
    "k" * 100,
    "k" * 101,
    "long/" * 600,
    "é" * 1500,
]
ODD_COLUMNS = ["a.b", "a", "a.b.c", "a/b", "Photo", "photo", "PHOTO", "ü", "", " ", ".json", "json"]
ODD_COLUMNS += ["__x", "cls", "%41", "A", "item", "list", "c" * 300, "*", "空"]

PNG, JPG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20, b"\xff\xd8\xff\xe0" + b"x" * 300


def rows(array, name="value", metadata=None):
    """Return records with the values of `array` in one column."""
    keys = pa.array([f"dir/row {i}.x" for i in range(len(array))])
    column = pa.field(name, array.type, metadata=metadata)
    plain = pa.RecordBatch.from_arrays(
        [keys, array], schema=pa.schema([pa.field(KEY, pa.string()), column])
    )
    return fit(plain, dataset_schema(plain.schema))


def mixed(count, seed=0, value_bytes=200):
    """Return records with a column of each kind, some null, some tombstones."""
    rng = np.random.default_rng(seed)
    dead = rng.random(count) < 0.1
    missing = rng.random((5, count)) < 0.2
    sizes = rng.integers(0, value_bytes, count)
    blobs = [bytes(rng.bytes(int(size))) for size in sizes]

    def some(values, k):
        return [None if dead[i] or missing[k, i] else value for i, value in enumerate(values)]

    schema = dataset_schema(
        pa.schema(
            [
                media_field("image", "image"),
                media_field("caption", "text"),
                label_field("class"),
                tensor_field("embedding", pa.float32()),
                pa.field("score", pa.float64()),
                pa.field("tags", pa.list_(pa.string())),
            ]
        )
    )
    tensors = [{"data": [float(i), 0.5], "shape": [1, 2]} for i in range(count)]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([None if dead[i] else f"k/{i}.png" for i in range(count)], pa.string()),
            pa.array(some([f"s{i}" for i in range(count)], 4), pa.string()),
            pa.array(some([PNG + blob for blob in blobs], 0), pa.binary()),
            pa.array(some([f"text {i} é" * (i % 5) for i in range(count)], 1), pa.string()),
            pa.array(some(list(range(count)), 2), pa.int64()),
            pa.array(some(tensors, 3), schema.field("embedding").type),
            pa.array(some([i / 7 for i in range(count)], 4), pa.float64()),
            pa.array(some([["a", None] * (i % 2) for i in range(count)], 1), pa.list_(pa.string())),
        ],
        schema=schema,
    )


def digest(*batches, like=PREFIX):
    hasher = ContentHasher(batches[0].schema, like)
    for batch in batches:
        hasher.update(batch)
    return hasher.hexdigest()


def assert_same(found, expected):
    """Compare schemas, exact types and values; values by digest too, which tells -0 and NaN."""
    assert found.schema.equals(expected.schema, check_metadata=True)
    found.validate(full=True)
    for field, one, other in zip(expected.schema, found.columns, expected.columns, strict=True):
        assert str(one.type) == str(other.type), field.name
        assert one.equals(other) or shown(one) == shown(other), field.name
    assert digest(found) == digest(expected)


def shown(array):
    """Return values as text, in which NaN equals NaN."""
    if pa.types.is_struct(array.type):
        return array.is_valid().to_pylist(), *map(shown, array.flatten())
    return array.to_string(window=1000, container_window=1000)
