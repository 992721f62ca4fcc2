"""Real corpora as people have them: zipped, in tars, compressed, in other libraries' files.

`pytest -m soak -n 0 -s tests/soak/test_wrappings.py --corpora DIR`. Every record of a corpus comes
out once, its bytes equal, or is rejected with a reason.
"""

import gzip
import json
import subprocess
import tarfile
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import geodata
from geodata.catalog import Catalog, locate
from geodata.formats import get_format
from geodata.partition.opening import open_in_place
from geodata.schema import from_json
from geodata.sources import Reading
from geodata.tags import STAGING

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]


@pytest.fixture
def corpora(request, tmp_path, monkeypatch):
    """The folder of real corpora; the working directory is empty."""
    given = request.config.getoption("--corpora")
    if given is None:
        pytest.fail("say where the corpora are: --corpora DIR")
    monkeypatch.chdir(tmp_path)
    return Path(given)


def converted(source, **options):
    """Convert a corpus, verify the result, and say what came of it."""
    root = f"data/{len(list(Path('data').iterdir())) if Path('data').is_dir() else 0}"
    done = geodata.convert(source, root, on_error="quarantine", **options)
    assert (
        done.records_in
        == done.records_out + done.rejected
        == done.records_out + sum(done.reasons.values())
    )
    assert geodata.verify(root).problems == []
    print(
        f"\n{Path(str(source)).name}: {done.kind}, {done.records_in} in, {done.records_out} out, "
        f"{done.rejected} rejected {done.reasons}, {done.bytes_in} -> {done.bytes_out} bytes, "
        f"{done.records_in / max(done.seconds, 1e-9):,.0f}/s"
    )
    return done, root


def records(root, *columns):
    """Yield (key, values) of all records of a staging dataset."""
    catalog = Catalog.at(locate(root, None), "test")
    index = catalog.index()
    store, form = catalog.store(index, STAGING), get_format(index.format)
    for shard in catalog.shards(index, STAGING):
        reader = open_in_place(form, store, shard, from_json(index.schema_))
        for unit in range(len(reader.unit_slots)):
            batch = reader.read_unit(unit, ["__key__", *columns]).select(["__key__", *columns])
            yield from zip(*(c.to_pylist() for c in batch.columns), strict=True)
        reader.close()


def files_below(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def zipped(folder, to, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(to, "w", method, compresslevel=1) as archive:
        for path in files_below(folder):
            archive.write(path, path.relative_to(folder))
    return Path(to)


@pytest.mark.parametrize("name", ["text", "images", "audio"])
def test_a_folder_and_its_zip_hold_the_same(corpora, name):
    column = {"text": "text", "images": "image", "audio": "audio"}[name]
    plain, root = converted(corpora / name, source_id="s")
    expected = dict(records(root, column))
    for key, value in expected.items():
        data = value.encode() if isinstance(value, str) else value
        assert data == (corpora / name / key.removeprefix("s/")).read_bytes(), key
    archived, other = converted(zipped(corpora / name, "a.zip"), source_id="s")
    assert (archived.records_out, archived.rejected) == (plain.records_out, plain.rejected)
    assert archived.reasons == plain.reasons
    assert dict(records(other, column)) == expected


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tar.zst"])
@pytest.mark.parametrize("name", ["images", "audio"])
def test_tars_that_are_not_ours(corpora, name, suffix):
    files = [p for p in files_below(corpora / name) if p.suffix in (".png", ".ogg", ".wav")]
    with tarfile.open("a.tar", "w") as archive:
        for number, path in enumerate(files):
            archive.add(path, f"{number:08}{path.suffix}")
    if suffix == "tar.gz":
        Path("a.tar.gz").write_bytes(gzip.compress(Path("a.tar").read_bytes(), 1))
    if suffix == "tar.zst":
        codec = pa.Codec("zstd")
        Path("a.tar.zst").write_bytes(codec.compress(Path("a.tar").read_bytes(), asbytes=True))
    done, root = converted(f"a.{suffix}")
    assert done.rejected == 0 and done.records_out == len(files)
    columns = [c["name"] for c in done.schema if not c["name"].startswith("__")]
    seen = 0
    for key, *values in records(root, *columns):
        (data,) = [value for value in values if value is not None]
        assert data == files[int(key.rpartition("/")[2])].read_bytes()
        seen += 1
    assert seen == len(files)


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".bz2", ".xz"])
def test_compressed_lines(corpora, suffix):
    source = corpora / "tabular/postcodes.jsonl"
    data = b"".join(source.read_bytes().splitlines(keepends=True)[:200_000])
    Path("plain.jsonl").write_bytes(data)
    if suffix in (".gz", ".bz2", ".xz"):
        tool = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz"}[suffix]
        subprocess.run([tool, "-1", "-k", "plain.jsonl"], check=True)
    else:
        Path("plain.jsonl.zst").write_bytes(pa.Codec("zstd").compress(data, asbytes=True))
    _, root = converted("plain.jsonl", source_id="p")
    done, other = converted(f"plain.jsonl{suffix}", source_id="p")
    assert (done.records_out, done.rejected) == (200_000, 0)
    columns = [c["name"] for c in done.schema if not c["name"].startswith("__")]
    assert list(records(other, *columns)) == list(records(root, *columns))


def test_captions_and_their_pictures(corpora):
    done, root = converted(
        corpora / "captions",
        reading=Reading(header=False, quotes=False, columns=("picture", "caption")),
    )
    lines = [
        line
        for path in files_below(corpora / "captions")
        for line in path.read_bytes().splitlines()
    ]
    assert (done.records_out, done.rejected) == (len(lines), 0)
    for (_, picture, caption), line in zip(records(root, "picture", "caption"), lines, strict=True):
        assert f"{picture or ''}\t{caption or ''}".encode() == line


def test_one_object_of_all_cities(corpora):
    source = corpora / "tabular/cities500.json"
    cities = json.loads(source.read_bytes())
    done, root = converted(source)
    assert (done.records_out, done.rejected) == (len(cities), 0)
    columns = [c["name"] for c in done.schema if not c["name"].startswith("__")]
    for (_key, *values), (name, city) in zip(records(root, *columns), cities.items(), strict=True):
        found = dict(zip(columns, values, strict=True))
        assert found.pop(columns[0]) == name
        assert {k: v for k, v in found.items() if v is not None} == {
            k: v for k, v in city.items() if v is not None
        }


def test_digits_without_a_header(corpora):
    source = corpora / "tabular/digits_8x8.csv.gz"
    rows = [line.split(b",") for line in gzip.decompress(source.read_bytes()).splitlines()]
    done, root = converted(source, reading=Reading(header=False))
    columns = [c["name"] for c in done.schema if not c["name"].startswith("__")]
    assert (done.records_out, len(columns)) == (len(rows), len(rows[0]))
    for (_key, *values), row in zip(records(root, *columns), rows, strict=True):
        assert values == list(map(float, row))


def test_a_table_in_other_libraries_files(corpora):
    table = pq.read_table(corpora / "tabular/People.parquet")
    names = table.schema.names
    expected = [tuple(row.values()) for row in table.to_pylist()]
    with pa.OSFile("t.arrow", "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, 1000)
    with pa.OSFile("t.arrows", "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, 1000)
    for source in ("t.arrow", "t.arrows", corpora / "tabular/People.parquet"):
        done, root = converted(source)
        assert (done.records_out, done.rejected) == (table.num_rows, 0)
        assert [tuple(row[1:]) for row in records(root, *names)] == expected


def test_pictures_in_an_hdf5_file(corpora):
    files = [p for p in files_below(corpora / "images") if p.suffix == ".png"][:1000]
    with h5py.File("a.h5", "w") as file:
        column = file.create_dataset("picture", len(files), h5py.vlen_dtype(np.uint8))
        for number, path in enumerate(files):
            column[number] = np.frombuffer(path.read_bytes(), np.uint8)
        file["number"] = np.arange(len(files), dtype=np.uint16)
    done, root = converted("a.h5")
    assert (done.records_out, done.rejected) == (len(files), 0)
    for number, (_key, data, value) in enumerate(records(root, "picture", "number")):
        assert data == files[number].read_bytes() and value == number
