"""Tar shards that contradict themselves or their index are refused."""

import tarfile

import pyarrow as pa
import pytest
import webdataset
from records import PNG, mixed, rows

from geodata.errors import CorruptShard, FormatVersionError, GeodataError, SchemaError
from geodata.formats import get_format
from geodata.formats.mapping import map_file
from geodata.formats.webdataset import index as tarindex
from geodata.formats.webdataset.scan import scan
from geodata.formats.webdataset.tarball import END, header, padded
from geodata.schema import KEY, dataset_schema, media_field

FORM = get_format("webdataset")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "shard.tar"


def write(path, batch):
    writer = FORM.create(path, batch.schema, unit_bytes=1 << 20, metadata={})
    writer.write(batch)
    writer.close()
    FORM.write_index(path, path.with_suffix(".index"))
    return path


def retar(path, change):
    """Write the tar anew with other members; `change` maps a list of (name, content)."""
    with tarfile.open(path) as tar:
        members = [(m.name, tar.extractfile(m).read()) for m in tar]
    parts = [header(n.encode(), len(c)) + padded(c) for n, c in change(members)]
    path.write_bytes(b"".join(parts) + END)


@pytest.mark.parametrize(
    ("change", "member"),
    [
        (lambda m: [*m[:3], m[2], *m[3:]], "k0.png"),
        (lambda m: [*m[:3], m[1], *m[3:]], "k0.json"),
        (lambda m: [*m[:2], *m[3:4], m[2], *m[4:]], "k0.png"),
        (lambda m: [*m[:3], ("k0.exe", b""), *m[3:]], "k0.exe"),
        (lambda m: [*m[:3], ("k0.pkl", b""), *m[3:]], "k0.pkl"),
        (lambda m: [*m[:3], ("k2.png", b""), *m[3:]], "k2.png"),
        (lambda m: [m[0], *m[2:]], "k0.png"),
    ],
)
def test_a_repeated_or_stray_member_is_named(path, change, member):
    write(path, shard_of(["k0", "k1"]))
    retar(path, change)
    with pytest.raises(CorruptShard) as caught:
        FORM.open(path)
    assert caught.value.fields == {"shard": path.name, "file": member}


def shard_of(keys):
    schema = dataset_schema(pa.schema([media_field("image", "image")]))
    arrays = [pa.array(keys), pa.nulls(len(keys), pa.string()), pa.array([PNG] * len(keys))]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m[:3] + m[5:],
        lambda m: [*m[:3], ("x1.json", m[3][1]), ("x1.png", m[4][1]), *m[5:]],
        lambda m: m[:2] + m[3:],
        lambda m: m[:-1],
        lambda m: m[1:],
        lambda m: [(m[0][0], m[0][1] + b" "), *m[1:]],
        lambda m: [*m, ("after.json", b"{}")],
        lambda m: [],
    ],
)
def test_lost_and_renamed_members_are_noticed(path, change):
    write(path, shard_of(["k0", "k1"]))
    retar(path, lambda members: members)
    assert FORM.open(path).num_rows == 2
    retar(path, change)
    with pytest.raises(CorruptShard) as caught:
        FORM.open(path)
    assert caught.value.fields["shard"] == path.name


def test_a_foreign_tar_is_no_shard(path):
    with webdataset.TarWriter(str(path)) as sink:
        sink.write({"__key__": "k", "txt": "text"})
    with pytest.raises(CorruptShard, match="no shard of geodata"):
        FORM.open(path)


def test_a_repeated_key_is_refused(path):
    writer = FORM.create(path, rows(pa.array([1])).schema, unit_bytes=100, metadata={})
    with pytest.raises(SchemaError, match="one key") as caught:
        for _ in range(3):
            writer.write(rows(pa.array([1])))
    assert caught.value.fields == {"key": "dir/row 0.x"}


# the index


def test_an_index_of_another_shard_is_refused(path, tmp_path):
    write(path, shard_of(["k0", "k1"]))
    other = write(tmp_path / "other.tar", shard_of(["k0", "k2"]))
    assert other.stat().st_size == path.stat().st_size
    with pytest.raises(CorruptShard, match=r"not the shard of other\.index") as caught:
        FORM.open(path, other.with_suffix(".index"))
    assert caught.value.fields == {"shard": path.name}


@pytest.mark.parametrize("left", [0, 1, 100, 1000, -100, -1])
def test_a_truncated_index_is_refused_and_can_be_rebuilt(path, left):
    index = write(path, mixed(20)).with_suffix(".index")
    whole = index.read_bytes()
    index.write_bytes(whole[:left])
    with pytest.raises(CorruptShard) as caught:
        FORM.open(path, index)
    assert caught.value.fields == {"shard": index.name}
    FORM.write_index(path, index)
    assert index.read_bytes() == whole


def test_an_index_of_a_newer_version_is_refused(path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(tarindex, "FORMAT_VERSION", 2)
        write(path, mixed(3))
    with pytest.raises(FormatVersionError, match="version 2"):
        FORM.open(path, path.with_suffix(".index"))


def test_an_index_that_points_outside_the_tar_is_refused(path):
    write(path, shard_of(["k0", "k1"]))
    index = scan(map_file(path), path.name)
    far = pa.StructArray.from_arrays(
        [pa.array([0, 1 << 40]), pa.array([4, 4])], fields=list(index.places[1].type)
    )
    index.places[1] = far
    tarindex.save(index, path.with_suffix(".index"))
    with pytest.raises(CorruptShard, match="outside"):
        FORM.open(path, path.with_suffix(".index")).read_unit(0, ["image"])


def test_the_index_is_a_plain_arrow_file(path):
    write(path, mixed(20))
    table = pa.ipc.open_file(path.with_suffix(".index")).read_all()
    assert table["key"].to_pylist() == mixed(20)[KEY].to_pylist()
    data, images = path.read_bytes(), mixed(20)["image"].to_pylist()
    for place, image in zip(table["image"].to_pylist(), images, strict=True):
        start, size = place["offset"], place["size"]
        assert (data[start : start + size] if size >= 0 else None) == image


def test_a_changed_byte_of_an_index_gives_values_or_is_refused(path):
    index = write(path, mixed(20)).with_suffix(".index")
    whole = index.read_bytes()
    for at in range(0, len(whole), 5):
        index.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        try:
            reader = FORM.open(path, index)
            batches = [reader.read_unit(unit) for unit in range(len(reader.unit_slots))]
        except GeodataError:
            continue
        assert sum(batch.num_rows for batch in batches) == 20
        for batch in batches:
            batch.validate(full=True)
