"""Petastorm datasets as a source, read by an interpreter of its own.

`petastorm_by_spark` was written by Spark 3.5.1 with petastorm 0.13.1's `materialize_dataset`,
partitioned by `part`; `_wanted` says what its records hold.
"""

import datetime as dt
import io
import os
import pickle
import signal
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

import numpy as np
import petastorm_interpreter
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from source_reading import read_all

import geodata
from geodata.errors import SchemaError, StoreError
from geodata.schema import dataset_schema, media_of, origin_field
from geodata.sources import open_source, recognise
from geodata.sources.petastorm import client, environment

BY_SPARK = Path(__file__).parent / "petastorm_by_spark"
KEY = "dataset-toolkit.unischema.v1"


@pytest.fixture
def petastorm():
    """Need the environment."""
    return petastorm_interpreter.ready()


def _wanted(i):
    """Return the record `id` = i that Spark wrote, without its images."""
    if i % 4 == 3:
        names = ("small", "score", "flag", "name", "price", "when", "matrix", "points", "words")
        return {"id": i, "part": f"p {i % 2}", **dict.fromkeys(names)}
    return {
        "id": i,
        "part": f"p {i % 2}",
        "small": 250 + i % 6,
        "score": i / 7,
        "flag": bool(i % 3),
        "name": f"naïve {i}",
        "price": Decimal(i * 125).scaleb(-2),
        "when": dt.datetime(2024, 1, 1, 0, 0, i, i),
        "matrix": [float(n + i) for n in range(6)],
        "points": {"data": list(range(2 * (i % 3))), "shape": [i % 3, 2]},
        "words": ["é", "b" * i],
    }


def test_a_dataset_that_spark_wrote_is_read_exactly(petastorm):
    assert recognise(BY_SPARK) == "petastorm"
    for target in (1, 1 << 30):
        read = read_all(open_source(BY_SPARK, source_id="spark"), target)
        assert read.rejects == []
        assert read.schema.field("small").type == pa.uint8()
        assert read.schema.field("price").type == pa.decimal128(10, 2)
        assert read.schema.field("matrix").type == pa.fixed_shape_tensor(pa.float32(), [2, 3])
        assert media_of(read.schema.field("png")) == media_of(read.schema.field("jpeg")) == "image"
        by_id = sorted(read.records.values(), key=lambda record: record["id"])
        images = [(record.pop("png"), record.pop("jpeg")) for record in by_id]
        assert by_id == [_wanted(i) for i in range(11)]
    for i, (png, jpeg) in enumerate(images):
        pixels = np.random.default_rng(i).integers(0, 255, (4, 6, 3), dtype=np.uint8)
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(png))), pixels)
        assert (jpeg is None) == (i % 4 == 3)
        assert jpeg is None or Image.open(io.BytesIO(jpeg)).size == (8 + i, 8)


def test_images_are_the_bytes_that_were_stored(petastorm):
    read = read_all(open_source(BY_SPARK))
    stored = pq.read_table(BY_SPARK, columns=["png", "jpeg"]).to_pydict()
    for name in ("png", "jpeg"):
        assert sorted(map(str, read.column(name))) == sorted(map(str, stored[name]))


def test_keys_are_files_and_rows(petastorm):
    keys = list(read_all(open_source(BY_SPARK, source_id="x")).records)
    files = sorted(p.relative_to(BY_SPARK).as_posix() for p in BY_SPARK.rglob("*.parquet"))
    counts = [pq.read_metadata(BY_SPARK / name).num_rows for name in files]
    assert keys == [
        f"x/{name}#{row}"
        for name, count in zip(files, counts, strict=True)
        for row in range(1, count + 1)
    ]


def test_the_origin_of_a_record_is_told(petastorm):
    source = open_source(BY_SPARK)
    columns = source.merge([source.scan(piece) for piece in source.pieces(1)])
    schema = dataset_schema(columns.append(origin_field("origin")))
    for key, record in read_all(source, schema=schema).records.items():
        assert key == f"petastorm_by_spark/{record['origin']['file']}#{record['origin']['row']}"


def test_a_conversion_is_the_same_with_one_worker_and_with_several(petastorm, tmp_path):
    found = []
    for workers in (1, 2):
        out = tmp_path / f"out{workers}"
        report = geodata.convert(BY_SPARK, out, workers=workers)
        assert (report.kind, report.records_in, report.records_out) == ("petastorm", 11, 11)
        found.append(sorted(file.name for file in (out / "data").rglob("*.parquet")))
    assert found[0] == found[1]


def _npy(value):
    file = io.BytesIO()
    np.save(file, value, allow_pickle=True)
    return file.getvalue()


def _write(folder, table, pickled, row_group_size=1 << 20):
    folder.mkdir(exist_ok=True)
    pq.write_table(table, folder / "part-0.parquet", row_group_size=row_group_size)
    metadata = {KEY: pickled, "dataset-toolkit.num_row_groups_per_file.v1": b"{}"}
    pq.write_metadata(table.schema.with_metadata(metadata), folder / "_common_metadata")
    return open_source(folder, source_id="made")


def test_arrays_that_are_others_than_the_schema_says_are_rejected(petastorm, tmp_path):
    stored = [
        _npy(np.ones((2, 2), np.float32)),
        b"\x93NUMPY garbage",
        _npy(np.ones((2, 3), np.float32)),
        _npy(np.ones((2, 2), np.float64)),
        _npy(np.array([[object()] * 2] * 2)),
        None,
        _npy(np.full((2, 2), 7, np.int16)),
    ]
    table = pa.table({"n": list(range(7)), "x": pa.array(stored, pa.binary())})
    pickled = petastorm_interpreter.unischema(
        "F('n', np.int64, ())", "F('x', np.float32, (2, 2), NdarrayCodec(), True)"
    )
    for size in (7, 2):
        read = read_all(_write(tmp_path / f"made{size}", table, pickled, size), 1)
        assert read.column("n") == [0, 5, 6]
        assert read.column("x") == [[1.0] * 4, None, [7.0] * 4]
        assert read.reasons() == [
            (2, "'x' cannot be decoded: ValueError"),
            (3, "'x' has shape (2, 2) here, not (2, 3)"),
            (4, "'x' is float32 here, this record holds float64"),
            (5, "'x' cannot be decoded: ValueError"),
        ]


def test_scalars_have_the_type_of_the_schema(petastorm, tmp_path):
    table = pa.table(
        {
            "small": pa.array([1, 255, 256, None], pa.int32()),
            "half": pa.array([0.5, None, 1.0, 2.0], pa.float64()),
            "list": pa.array([[1], [], None, [2, 3]], pa.list_(pa.int32())),
        }
    )
    pickled = petastorm_interpreter.unischema(
        "F('half', np.float32, (), None, True)",
        "F('small', np.uint8, (), None, True)",
        "F('list', np.int32, (None,), None, True)",
    )
    read = read_all(_write(tmp_path / "made", table, pickled))
    assert read.schema == pa.schema(
        [("half", pa.float32()), ("small", pa.uint8()), ("list", pa.list_(pa.int32()))]
    )
    assert read.column("small") == [1, 255, None]
    assert read.column("list") == [[1], [], [2, 3]]
    assert read.reasons() == [(3, "'small' is uint8 here, this record's does not fit")]


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_pickles_of_every_age_are_opened(petastorm, tmp_path, protocol):
    table = pa.table({"a": [1]})
    pickled = petastorm_interpreter.unischema("F('a', np.int64, ())", protocol=protocol)
    assert read_all(_write(tmp_path / "made", table, pickled)).column("a") == [1]


def test_column_names_that_are_reserved_are_refused(petastorm, tmp_path):
    pickled = petastorm_interpreter.unischema("F('__key__', np.int64, ())")
    with pytest.raises(SchemaError, match="reserved"):
        read_all(_write(tmp_path / "made", pa.table({"__key__": [1]}), pickled))


class Evil:
    """Runs a command where it is unpickled."""

    def __init__(self, command):
        self._command = command

    def __reduce__(self):
        return os.system, (self._command,)


def test_a_pickle_that_names_anything_else_is_not_opened(petastorm, tmp_path):
    trace = tmp_path / "trace"
    source = _write(tmp_path / "made", pa.table({"a": [1]}), pickle.dumps(Evil(f"touch {trace}")))
    with pytest.raises(
        SchemaError, match=r"names posix.system, which is not opened \(file .*_comm"
    ):
        read_all(source)
    assert not trace.exists()


DAMAGED = [
    (b"", "cannot be opened: EOFError"),
    (b"garbage", "cannot be opened: UnpicklingError"),
    (pickle.dumps([1]), "cannot be opened: AttributeError"),
]


@pytest.mark.parametrize(("pickled", "message"), DAMAGED)
def test_a_damaged_pickle_is_named(petastorm, tmp_path, pickled, message):
    with pytest.raises(SchemaError, match=message):
        read_all(_write(tmp_path / "made", pa.table({"a": [1]}), pickled))


def test_a_damaged_data_file_is_rejected(petastorm, tmp_path):
    pickled = petastorm_interpreter.unischema("F('a', np.int64, ())")
    table = pa.table({"a": list(range(1000))})
    _write(tmp_path / "made", table, pickled)
    (tmp_path / "made" / "part-1.parquet").write_bytes(b"PAR1 no more")
    whole = (tmp_path / "made" / "part-0.parquet").read_bytes()
    (tmp_path / "made" / "part-2.parquet").write_bytes(b"PAR1" + bytes(200) + whole[204:])
    read = read_all(open_source(tmp_path / "made"))
    assert read.column("a") == list(range(1000))
    assert [reject.file for reject in read.rejects] == [
        "part-1.parquet",
        *["part-2.parquet"] * 1000,
    ]
    assert read.rejects[-1].reason == "its row group cannot be read"


@pytest.fixture
def large(petastorm, tmp_path):
    """Return a source of 60 tensors of 1 MiB, zeros that compress to nothing."""
    file = io.BytesIO()
    np.savez_compressed(file, arr=np.zeros((1 << 18,), np.float32))
    table = pa.table({"x": pa.array([file.getvalue()] * 60, pa.binary())})
    field = "F('x', np.float32, (None,), CompressedNdarrayCodec())"
    return _write(tmp_path / "large", table, petastorm_interpreter.unischema(field))


def test_batches_are_bounded_by_what_they_hold_decoded(large):
    read = read_all(large)
    assert [value["shape"] for value in read.column("x")] == [[1 << 18]] * 60
    assert len(read.batches) >= 8


def _reading(source):
    """Start to read a source; return what goes on, and the worker's process id."""
    (piece,) = source.pieces(1 << 40)
    schema = dataset_schema(source.merge([source.scan(piece)]))
    batches = source.read(piece, 0, schema, {}, lambda reject: None)
    next(batches)
    return batches, client.worker_here(environment.needed().interpreter)._process.pid


def test_another_process_goes_on_where_one_was_killed(large):
    batches, pid = _reading(large)
    first = next(batches)
    os.kill(pid, signal.SIGKILL)
    keys = [key for batch in [first, *batches] for key in batch.column("__key__").to_pylist()]
    assert keys == [f"made/part-0.parquet#{row}" for row in range(60 - len(keys) + 1, 61)]
    assert client.worker_here(environment.needed().interpreter)._process.pid != pid


def test_the_row_that_a_process_dies_of_is_rejected(large, monkeypatch):
    ask, asked = client.Worker.ask, []

    def dying(self, request, place):
        for frame in ask(self, request, place):
            if request["do"] == "read" and isinstance(frame, pa.RecordBatch):
                rows = frame.column("__row__").to_pylist()
                if 7 in rows:
                    asked.append(rows)
                    os.kill(self._process.pid, signal.SIGKILL)
                    raise client.Died(self._end())
            yield frame

    monkeypatch.setattr(client.Worker, "ask", dying)
    read = read_all(large)
    reason = "the process that reads Petastorm was ended by SIGKILL"
    assert [(r.file, r.row, r.reason) for r in read.rejects] == [("part-0.parquet", 8, reason)]
    assert len(read.records) == 59
    assert asked[-1] == [7]


def test_a_process_that_hangs_is_ended(large, monkeypatch):
    batches, pid = _reading(large)
    monkeypatch.setattr(client, "PATIENCE", 0.2)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(StoreError, match=r"said nothing for 0 seconds \(file part-0.parquet"):
        list(batches)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_reader_that_stops_early_ends_the_process(large):
    batches, pid = _reading(large)
    batches.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


PARENT = """
import sys, time
from geodata.sources import open_source
from geodata.sources.petastorm import client, environment
print(client.worker_here(environment.needed().interpreter)._process.pid, flush=True)
time.sleep(600)
"""


def test_the_process_ends_with_its_parent(petastorm):
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        os.kill(pid, 0)
        parent.kill()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}/cmdline").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
