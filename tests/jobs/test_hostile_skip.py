"""A fault of one file or record costs that alone: the others are converted, it is counted."""

import io
import json
import shutil
import tarfile
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import geodata
from geodata.errors import SchemaError, TooManyBadRecords

GOOD = pa.table({"n": [1, 2, 3], "t": ["a", "b", "c"]})
UNION = pa.UnionArray.from_sparse(
    pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]
)
ENDS = pa.RunEndEncodedArray.from_arrays([1, 2], [5, 6])

ODD = {
    "reserved": (pa.table({"n": [4, 5], "__mine__": [1, 2]}), "reserved"),
    "nameless": (pa.table([[4, 5], [1, 2]], ["n", ""]), "not in the schema"),
    "twice": (pa.table([[4, 5], [1, 2]], ["n", "n"]), "two columns have the name 'n'"),
    "key": (pa.table({"n": [4, 5], "__key__": [1, 2]}), "__key__"),
    "subject": (pa.table({"n": [4, 5], "__subject__": ["x", "y"]}), "the name is reserved"),
    "union": (pa.table({"n": pa.array([4, 5]), "u": UNION}), "not in the schema"),
    "union known": (pa.table({"n": UNION}), "cannot be stored"),
    "run ends": (pa.table({"n": pa.array([4, 5]), "t": ENDS}), "cannot be stored"),
}


def write(path: Path, table: pa.Table) -> None:
    if path.suffix == ".parquet":
        pq.write_table(table, path)
        return
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)


SUFFIXES = (".parquet", ".arrow")
CASES = [
    (suffix, name)
    for suffix in SUFFIXES
    for name in ODD
    if suffix == ".arrow" or name not in ("union", "union known", "run ends")
]


def converted(root: Path, **options):
    """Convert `in`; return the report, and the records."""
    report = geodata.convert(root / "in", root / "out", **{"workers": 1, **options})
    tables = [pq.read_table(shard.file) for shard in geodata.list_files(str(root / "out")).shards]
    rows = [row for table in tables for row in table.to_pylist()]
    assert report.records_in == report.records_out + report.rejected
    assert report.records_out == len(rows)
    return report, rows


def refused(root: Path, error=SchemaError, **options):
    """Convert as if nothing may be skipped; return the one line."""
    with pytest.raises(error) as caught:
        geodata.convert(root / "in", root / "failed", workers=1, **options)
    return str(caught.value)


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize(("suffix", "name"), CASES)
def test_one_odd_table_among_others(tmp_path, suffix, name, place):
    (tmp_path / "in").mkdir()
    table, reason = ODD[name]
    odd = {"first": "a", "last": "z"}[place]
    for stem, content in (("m", GOOD), (odd, table)):
        write(tmp_path / "in" / f"{stem}{suffix}", content)
    assert f"{odd}{suffix}" in refused(tmp_path)
    report, rows = converted(tmp_path, on_error="quarantine")
    assert [(row["n"], row["t"]) for row in rows] == [(1, "a"), (2, "b"), (3, "c")]
    assert (report.records_in, report.rejected) == (5, 2)
    assert all(reason in told for told in report.reasons), report.reasons
    kept = Path(report.quarantine).rglob("*.jsonl")
    told = [json.loads(line) for path in kept for line in path.read_text().splitlines()]
    assert {(entry["file"], entry["row"]) for entry in told} == {
        (f"{odd}{suffix}", 1),
        (f"{odd}{suffix}", 2),
    }


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (ODD["reserved"][0].select([1]), "reserved"),
        (ODD["twice"][0], "two columns have one name"),
    ],
)
def test_tables_that_are_all_odd_are_refused(tmp_path, table, reason):
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        pq.write_table(table, tmp_path / "in" / f"{name}.parquet")
    line = refused(tmp_path, on_error="skip")
    assert reason in line
    assert "a.parquet" in line


def test_a_json_record_of_very_many_fields(tmp_path):
    (tmp_path / "in").mkdir()
    wide = {f"field{n}": n for n in range(10_001)}
    deep = {"n": 4, "deep": [{f"field{n}": n} for n in range(10_000)]}
    many = {"n": 5, "deep": [{"a": n} for n in range(20_000)]}
    lines = [{"n": 1}, wide, {"n": 2}, deep, many]
    (tmp_path / "in/a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    line = refused(tmp_path, TooManyBadRecords)
    assert "a.jsonl" in line
    assert "row 2" in line
    report, rows = converted(tmp_path, on_error="skip")
    assert [row["n"] for row in rows] == [1, 2, 5]
    assert report.reasons == {"it has more than 10,000 fields": 2}


def tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))


def test_a_member_of_a_reserved_extension(tmp_path):
    (tmp_path / "in").mkdir()
    members = {"a.txt": b"one", "b.txt": b"two", "b.__mine__": b"x", "c.txt": b"three"}
    tar(tmp_path / "in/a.tar", members)
    assert "reserved" in refused(tmp_path)
    report, rows = converted(tmp_path, on_error="skip")
    assert [row["txt"] for row in rows] == ["one", "three"]
    assert report.rejected == 1
    assert "'__mine__'" in next(iter(report.reasons))


def test_hdf5_of_another_layout(tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("b", "c"):
        with h5py.File(tmp_path / "in" / f"{name}.h5", "w") as file:
            file["n"] = np.arange(3)
    with h5py.File(tmp_path / "in/a.h5", "w") as file:
        for sample in ("s1", "s2"):
            group = file.create_group(sample)
            group["pixels"] = np.arange(4)
            group["label"] = 7
    assert "several ways" in refused(tmp_path)
    report, rows = converted(tmp_path, on_error="skip")
    assert [row["n"] for row in rows] == [0, 1, 2, 0, 1, 2]
    assert report.rejected == 2


def test_it_is_the_same_with_workers_and_again(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(6):
        table = ODD["reserved"][0] if number % 3 == 0 else GOOD
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet")
    report, rows = converted(tmp_path, on_error="skip")
    assert (report.records_out, report.rejected) == (12, 4)
    again, _ = converted(tmp_path, on_error="skip")
    assert again.unchanged
    shutil.rmtree(tmp_path / "out")
    other, same = converted(tmp_path, on_error="skip", workers=2)
    assert (other.records_out, other.reasons) == (report.records_out, report.reasons)
    assert same == rows
