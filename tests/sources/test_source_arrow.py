"""Arrow IPC: files, streams, Feather; what is cut off, hostile or of several schemas."""

import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather
from source_reading import read_all

from geodata.errors import SchemaError
from geodata.schema import dataset_schema, media_of, origin_field
from geodata.sources import open_source

CUT_OFF = "the file was cut off, or its end is damaged"


def _file(path, table, *, rows=100, **options):
    with pa.ipc.new_file(str(path), table.schema, options=pa.ipc.IpcWriteOptions(**options)) as out:
        for batch in table.to_batches(max_chunksize=rows):
            out.write_batch(batch)


def _stream(path, table, *, rows=100, **options):
    made = pa.ipc.IpcWriteOptions(**options)
    with pa.ipc.new_stream(str(path), table.schema, options=made) as out:
        for batch in table.to_batches(max_chunksize=rows):
            out.write_batch(batch)


def _table(count=1000):
    return pa.table({"n": range(count), "s": [f"word {i}" for i in range(count)]})


WRITERS = {
    "file": _file,
    "stream": _stream,
    "lz4": lambda path, table: _file(path, table, compression="lz4"),
    "zstd": lambda path, table: _stream(path, table, compression="zstd"),
    "feather": lambda path, table: feather.write_feather(table, str(path), chunksize=100),
}


@pytest.mark.parametrize("how", WRITERS)
def test_record_batches_are_the_pieces(tmp_path, how):
    WRITERS[how](tmp_path / "a.arrow", _table())
    source = open_source(tmp_path / "a.arrow")
    assert source.kind == "arrow"
    assert len(source.pieces(1)) == 10
    assert len(source.pieces(1 << 30)) == 1
    whole, cut = read_all(source), read_all(source, 1)
    assert whole.records == cut.records
    assert whole.records == {f"a.arrow#{i + 1}": {"n": i, "s": f"word {i}"} for i in range(1000)}


def test_the_files_of_a_folder_unite(tmp_path):
    _file(tmp_path / "a.arrow", pa.table({"v": pa.array([1, 2], pa.int8())}))
    _stream(tmp_path / "b.arrows", pa.table({"v": [0.5], "w": ["x"]}))
    feather.write_feather(pa.table({"v": [7]}), str(tmp_path / "c.feather"))
    read = read_all(open_source(tmp_path, source_id="s"))
    assert read.schema.field("v").type == pa.float64()
    assert list(read.records.values()) == [
        {"v": 1.0, "w": None},
        {"v": 2.0, "w": None},
        {"v": 0.5, "w": "x"},
        {"v": 7.0, "w": None},
    ]
    assert list(read.records) == ["s/a.arrow#1", "s/a.arrow#2", "s/b.arrows#1", "s/c.feather#1"]


def test_a_conflict_names_both_types_and_files(tmp_path):
    _file(tmp_path / "a.arrow", pa.table({"v": [2**53 + 1]}))
    _file(tmp_path / "b.arrow", pa.table({"v": [0.5]}))
    with pytest.raises(SchemaError) as caught:
        read_all(open_source(tmp_path))
    assert caught.value.message == (
        "the column holds int64 (first in a.arrow) and double (first in b.arrow)"
    )
    read = read_all(open_source(tmp_path, source_id="s"), first_wins=True)
    assert list(read.records) == ["s/a.arrow#1"]


@pytest.mark.parametrize("write", [_file, _stream])
def test_dictionaries_are_decoded(tmp_path, write):
    words = pa.array(["x", "y", None, "x"]).dictionary_encode()
    table = pa.table({"w": words, "n": pa.StructArray.from_arrays([words], ["w"])})
    write(tmp_path / "a.arrow", pa.concat_tables([table, table]), rows=2)
    read = read_all(open_source(tmp_path / "a.arrow"), 1)
    assert read.schema == pa.schema([("w", pa.string()), ("n", pa.struct([("w", pa.string())]))])
    assert read.column("w") == ["x", "y", None, "x"] * 2
    assert read.column("n") == [{"w": "x"}, {"w": "y"}, {"w": None}, {"w": "x"}] * 2


def test_replaced_dictionaries_of_a_stream_are_followed(tmp_path):
    kind = pa.dictionary(pa.int8(), pa.string())
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), pa.schema([("w", kind)])) as out:
        for words in (["a", "b"], ["c"], ["b", "a"]):
            out.write_batch(pa.RecordBatch.from_arrays([pa.array(words, kind)], ["w"]))
    assert read_all(open_source(tmp_path / "a.arrow"), 1).column("w") == ["a", "b", "c", "b", "a"]


def test_a_value_that_repeats_does_not_swell(tmp_path):
    long = "x" * (1 << 20)
    words = pa.DictionaryArray.from_arrays(pa.array(np.zeros(50, np.int8)), pa.array([long]))
    _file(tmp_path / "a.arrow", pa.table({"w": words}))
    read = read_all(open_source(tmp_path / "a.arrow"))
    assert read.column("w") == [long] * 50
    assert len(read.batches) >= 7


def test_views_become_plain(tmp_path):
    table = pa.table(
        {
            "s": pa.array(["a" * 20, None, "b"], pa.string_view()),
            "b": pa.array([b"a" * 20, None, b"b"], pa.binary_view()),
            "l": pa.array([[1], None, [2, 3]], pa.list_view(pa.int8())),
        }
    )
    _file(tmp_path / "a.arrow", table)
    read = read_all(open_source(tmp_path / "a.arrow"))
    assert read.schema == pa.schema(
        [("s", pa.string()), ("b", pa.binary()), ("l", pa.list_(pa.int8()))]
    )
    assert read.column("s") == ["a" * 20, None, "b"]
    assert read.column("l") == [[1], None, [2, 3]]


def test_what_cannot_be_stored_is_refused(tmp_path):
    ends = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array(["a"]))
    _file(tmp_path / "a.arrow", pa.table({"r": ends}))
    with pytest.raises(SchemaError, match="cannot be stored.*column r"):
        read_all(open_source(tmp_path / "a.arrow"))


@pytest.mark.parametrize("write", [_file, _stream])
def test_what_is_left_of_a_file_that_was_cut_off_is_read(tmp_path, write):
    path = tmp_path / "a.arrow"
    write(path, _table())
    whole = path.read_bytes()
    for size in (len(whole) - 20, len(whole) * 2 // 3, len(whole) // 3):
        path.write_bytes(whole[:size])
        for target in (1, 1 << 30):
            read = read_all(open_source(path, source_id="s"), target)
            count = len(read.records)
            assert count % 100 == 0
            assert count > 0
            assert size / len(whole) - 0.2 < count / 1000 <= 1
            assert read.column("n") == list(range(count))
            assert [(r.file, r.row, r.reason) for r in read.rejects] == [("a.arrow", None, CUT_OFF)]


def test_a_file_that_is_no_arrow_is_one_rejected_record(tmp_path):
    _file(tmp_path / "e.arrow", pa.table({"v": [1]}))
    (tmp_path / "a.arrow").write_bytes(b"")
    (tmp_path / "b.arrow").write_bytes(b"not arrow at all, whatever its name")
    (tmp_path / "c.arrow").write_bytes(b"FEA1" + bytes(100))
    (tmp_path / "d.arrow").write_bytes(b"ARROW1")
    read = read_all(open_source(tmp_path, source_id="s"))
    assert read.column("v") == [1]
    assert [(r.file, r.row, r.reason) for r in read.rejects] == [
        ("a.arrow", None, "the file is empty"),
        ("b.arrow", None, "the file is not Arrow IPC, or its schema is damaged"),
        ("c.arrow", None, "the file is Feather of version 1; write it as version 2"),
        ("d.arrow", None, "the file is not Arrow IPC, or its schema is damaged"),
    ]


def test_a_damaged_batch_is_lost_alone(tmp_path):
    path = tmp_path / "a.arrow"
    _file(path, _table(), compression="zstd")
    source = open_source(path)
    data = bytearray(path.read_bytes())
    magic = b"\x28\xb5\x2f\xfd"
    places = [i for i in range(len(data)) if data[i : i + 4] == magic]
    data[places[len(places) // 2]] ^= 0xFF
    path.write_bytes(data)
    read = read_all(source, 1)
    assert len(read.records) == 900
    assert read.reasons() == [(None, "a record batch cannot be read")]


def _hostile(kind, offsets, data=b"abc"):
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


HOSTILE = {
    "a string beyond its bytes": lambda: _hostile(pa.string(), [0, 1, 1 << 30, 3]),
    "offsets that fall": lambda: _hostile(pa.binary(), [0, 2, 1, 3]),
    "negative offsets": lambda: _hostile(pa.string(), [0, -5, 2, 3]),
    "no UTF-8": lambda: _hostile(pa.string(), [0, 1, 2, 3], b"a\xffc"),
    "an index beyond the dictionary": lambda: pa.DictionaryArray.from_arrays(
        pa.array([0, 100, 0], pa.int8()), pa.array(["a"]), safe=False
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("write", [_file, _stream])
def test_hostile_values_are_rejected_row_by_row(tmp_path, name, write):
    array = HOSTILE[name]()
    write(tmp_path / "a.arrow", pa.table({"n": [1, 2, 3], "v": array}))
    read = read_all(open_source(tmp_path / "a.arrow"))
    assert 1 <= len(read.rejects) <= 2
    assert {r.reason for r in read.rejects} == {"a string is not UTF-8, or a value is malformed"}
    assert len(read.records) + len(read.rejects) == 3
    assert [bool(r.raw) for r in read.rejects] == [name == "no UTF-8"] * len(read.rejects)


def test_a_rejected_row_is_kept_as_an_arrow_stream(tmp_path):
    _file(tmp_path / "a.arrow", pa.table({"n": [1, 2, 3], "v": HOSTILE["no UTF-8"]()}))
    (bad,) = read_all(open_source(tmp_path / "a.arrow")).rejects
    row = pa.ipc.open_stream(bad.raw).read_all()
    assert row.column("n").to_pylist() == [2]
    assert row.column("v").cast(pa.binary()).to_pylist() == [b"\xff"]


def test_garbage_anywhere_never_crashes(tmp_path):
    path = tmp_path / "a.arrow"
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "s": ["a", "bc", None, "d" * 40],
            "l": [[1], None, [2, 3], []],
            "d": pa.array(["x", "y", "x", None]).dictionary_encode(),
            "t": [{"a": ["x"]}, None, {"a": None}, {"a": ["y", "z"]}],
        }
    )
    for write in (_file, _stream):
        write(path, table, rows=2)
        whole = np.frombuffer(path.read_bytes(), np.uint8)
        for _ in range(150):
            data = whole.copy()
            places = rng.integers(0, len(data), rng.integers(1, 9))
            data[places] = rng.integers(0, 256, len(places))
            path.write_bytes(data.tobytes())
            try:
                read_all(open_source(path), 1, first_wins=True)
            except SchemaError:
                continue


def test_embedded_media_become_media(tmp_path):
    features = {
        "image": {"_type": "Image"},
        "sound": {"sampling_rate": 16000, "_type": "Audio"},
        "label": {"names": ["a", "b"], "_type": "ClassLabel"},
        "tags": [{"dtype": "string", "_type": "Value"}],
    }
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    held = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {
        "image": pa.array([{"bytes": b"i", "path": "a.png"}, None], held),
        "sound": pa.array([{"bytes": None, "path": "/etc/passwd"}, None], held),
        "plain": pa.array([{"bytes": b"p", "path": None}, None], held),
        "label": [0, 1],
        "tags": [["x"], []],
    }
    table = pa.table(columns).replace_schema_metadata(about)
    _stream(tmp_path / "a.arrow", table)
    read = read_all(open_source(tmp_path / "a.arrow"))
    kinds = {field.name: media_of(field) for field in read.schema}
    assert kinds == {
        "image": "image",
        "image_path": None,
        "sound": "audio",
        "sound_path": None,
        "plain": None,
        "label": None,
        "tags": None,
    }
    assert read.column("image") == [b"i", None]
    assert read.column("image_path") == ["a.png", None]
    assert read.column("sound") == [None, None]
    assert read.column("sound_path") == ["/etc/passwd", None]
    assert read.column("plain") == [{"bytes": b"p", "path": None}, None]


def test_keys_of_their_own_are_kept_and_a_duplicate_is_named(tmp_path):
    keys = ["k1", None, "k3", "k1", "k4"]
    _file(tmp_path / "a.arrow", pa.table({"__key__": keys, "v": range(5)}))
    read = read_all(open_source(tmp_path, source_id="s"))
    assert read.records == {
        "k1": {"v": 0},
        "s/a.arrow#2": {"v": 1},
        "k3": {"v": 2},
        "k4": {"v": 4},
    }
    assert read.reasons() == [(4, "its key stands in row 1 already")]


def test_subjects_are_refused_unless_all_are_null(tmp_path):
    path = tmp_path / "a.arrow"
    _file(path, pa.table({"__subject__": pa.nulls(2, pa.string()), "v": [1, 2]}))
    assert read_all(open_source(path)).column("v") == [1, 2]
    _file(path, pa.table({"__subject__": [None, "p"], "v": [1, 2]}))
    with pytest.raises(SchemaError, match="reserved.*column __subject__"):
        read_all(open_source(path))


def test_folders_name_columns(tmp_path):
    for year in (2023, 2024):
        (tmp_path / f"year={year}").mkdir()
        _file(tmp_path / f"year={year}" / "a.arrow", pa.table({"v": [year + 1]}))
    read = read_all(open_source(tmp_path, source_id="s"))
    assert read.schema == pa.schema([("v", pa.int64()), ("year", pa.int64())])
    assert list(read.records.values()) == [{"v": 2024, "year": 2023}, {"v": 2025, "year": 2024}]


def test_a_folder_that_differs_from_its_file_is_refused(tmp_path):
    (tmp_path / "year=2024").mkdir()
    _file(tmp_path / "year=2024" / "a.arrow", pa.table({"year": [2024, 2023]}))
    with pytest.raises(SchemaError, match=r"differs from the name of the file's folder .*row 2"):
        read_all(open_source(tmp_path))
    read = read_all(open_source(tmp_path), first_wins=True)
    assert read.column("year") == [2024]
    assert read.reasons() == [(2, "'year' differs from the name of the file's folder")]


def test_where_records_stood_is_kept(tmp_path):
    _stream(tmp_path / "a.arrow", pa.table({"v": range(4)}), rows=2)
    source = open_source(tmp_path, source_id="s")
    stored = dataset_schema(pa.schema([("v", pa.int64()), origin_field("at")]))
    read = read_all(source, 1, schema=stored)
    assert read.column("at") == [{"file": "a.arrow", "row": i} for i in (1, 2, 3, 4)]


def test_wide_rows_come_in_bounded_batches(tmp_path):
    blobs = [bytes([i]) * (3 << 20) for i in range(6)]
    _file(tmp_path / "a.arrow", pa.table({"v": blobs}))
    read = read_all(open_source(tmp_path))
    assert read.column("v") == blobs
    assert len(read.batches) == 3
