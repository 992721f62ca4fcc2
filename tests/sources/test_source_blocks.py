"""Records that come one by one become batches, in their order, or are rejected as they were."""

import weakref

import pyarrow as pa
import pytest

from geodata.schema import KEY, dataset_schema, origin_field
from geodata.sources import blocks
from geodata.sources.batches import Unfit, assemble
from geodata.sources.blocks import Item, batches_of, by_field

SCHEMA = dataset_schema(pa.schema([("a", pa.int64()), ("b", pa.string()), origin_field("o")]))


def column(values, field):
    try:
        return pa.array(values, field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise Unfit(f"'{field.name}' holds another type") from error


def item(row, nbytes=1, **values):
    return Item(f"k{row}", "f", row, values, nbytes, b"raw%d" % row)


BY_FIELD = by_field(column)


def made_of(*items, columns=BY_FIELD):
    """Return the keys in each batch, the records without keys, and what was rejected."""
    rejects = []
    made = list(batches_of(items, SCHEMA, columns, rejects.append))
    rows = [row for batch in made for row in batch.to_pylist()]
    return [batch.column(KEY).to_pylist() for batch in made], rows, rejects


def test_items_become_one_batch_with_null_for_what_they_lack():
    keys, rows, rejects = made_of(item(1, a=1), item(2, b="x"))
    assert keys == [["k1", "k2"]] and rejects == []
    assert [(row["a"], row["b"]) for row in rows] == [(1, None), (None, "x")]
    assert [row["o"] for row in rows] == [{"file": "f", "row": 1}, {"file": "f", "row": 2}]


def test_a_batch_ends_before_it_holds_too_many_bytes():
    half = (4 << 20) // 2
    keys, _, _ = made_of(item(1, half), item(2, half), item(3, 1), item(4, 9 << 20), item(5, 1))
    assert keys == [["k1", "k2"], ["k3"], ["k4"], ["k5"]]


def test_a_batch_ends_before_it_holds_too_many_rows(monkeypatch):
    monkeypatch.setattr(blocks, "most_rows", lambda _: 2)
    keys, _, _ = made_of(*(item(row) for row in range(5)))
    assert keys == [["k0", "k1"], ["k2", "k3"], ["k4"]]


def test_batches_among_the_items_stay_in_their_place():
    ready = assemble(SCHEMA, ["r1", "r2"], {})
    keys, _, _ = made_of(ready, item(1), item(2), ready, ready, item(3))
    assert keys == [["r1", "r2"], ["k1", "k2"], ["r1", "r2"], ["r1", "r2"], ["k3"]]


def test_what_does_not_fit_is_rejected_with_its_bytes():
    keys, _, rejects = made_of(item(1, a=1), item(2, a="x"), item(3, z=1, y=2), item(4, a=4))
    assert keys == [["k1", "k4"]]
    assert [(bad.file, bad.row, bad.reason, bad.raw) for bad in rejects] == [
        ("f", 2, "'a' holds another type", b"raw2"),
        ("f", 3, "'y' is not in the schema", b"raw3"),
    ]


def test_an_item_may_say_itself_how_it_is_rejected():
    class Named(Item):
        def unfit(self, reason):
            return self.key, reason

    _, _, rejects = made_of(Named("k", "f", 1, {"z": 1}, 1))
    assert rejects == [("k", "'z' is not in the schema")]


def test_items_are_let_go_of_before_their_batch_is_taken():
    class Text(str):
        """A value that can be watched."""

    watched = []

    def items():
        value = Text("x" * 100)
        watched.append(weakref.ref(value))
        yield item(1, b=value)
        del value

    batches = batches_of(items(), SCHEMA, BY_FIELD, pytest.fail)
    assert next(batches).num_rows == 1
    assert watched[0]() is None


def test_columns_may_look_at_whole_items():
    def columns(items, fields):
        if any(one.row == 2 for one in items):
            raise Unfit("the second")
        return BY_FIELD(items, fields)

    keys, _, rejects = made_of(item(1), item(2), item(3), columns=columns)
    assert keys == [["k1", "k3"]]
    assert [(bad.row, bad.reason) for bad in rejects] == [(2, "the second")]


def test_nothing_gives_no_batch():
    assert made_of() == ([], [], [])
