"""WebDataset tars: grouped as stock readers group them, and a reason for every lost sample."""

import bz2
import gc
import gzip
import io
import json
import lzma
import os
import subprocess
import tarfile
import warnings

import numpy as np
import pyarrow as pa
import pytest
import webdataset
from formats.records import PNG, assert_same, mixed
from formats.typematrix import COLUMNS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from own_shards import batches_of, typed, write_own
from source_reading import read_all
from webdataset.tariterators import base_plus_ext

from geodata.errors import SchemaError
from geodata.schema import KEY, dataset_schema, is_tensor, media_of
from geodata.sources import open_source, tars
from geodata.sources.tars import split_name

JPG = b"\xff\xd8\xff\xe0" + b"x" * 300


def tar_bytes(*members, form=tarfile.PAX_FORMAT):
    """Return a tar of (name, content) in order; a TarInfo stands for itself."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))
    return out.getvalue()


def write_tar(path, *members, **options):
    path.write_bytes(tar_bytes(*members, **options))
    return path


def special(name, kind, **more):
    info = tarfile.TarInfo(name)
    info.type = kind
    for attribute, value in more.items():
        setattr(info, attribute, value)
    return info


def zstd(data):
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as stream:
        stream.write(data)
    return out.getvalue().to_pybytes()


PACKERS = {".tar.gz": gzip.compress, ".tgz": gzip.compress, ".tar.bz2": bz2.compress}
PACKERS |= {".tar.zst": zstd, ".tar.xz": lzma.compress}


def read(path, target=1 << 30, **options):
    return read_all(open_source(path, kind="webdataset", source_id="s"), target, **options)


def stock(path, decode=False):
    """Return what webdataset's own reader reads; it leaves its file open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        dataset = webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False)
        found = list(dataset.decode() if decode else dataset)
        del dataset
        gc.collect()
    return found


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def tensor(array):
    return {"data": array.reshape(-1).tolist(), "shape": list(array.shape)}


# columns and values


def test_extensions_are_columns(tmp_path):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    path = write_tar(
        tmp_path / "a.tar",
        ("x/0001.jpg", JPG),
        ("x/0001.seg.PNG", PNG),
        ("x/0001.txt", "é\0".encode()),
        ("x/0001.cls", b"7\n"),
        ("x/0001.json", b'{"a": 1, "b": [0.5]}'),
        ("x/0001.npy", npy(array)),
        ("x/0001.wav", b"RIFF"),
        ("x/0001.bin", b""),
        ("y.json", b'{"a": -1}'),
    )
    found = read(path)
    assert found.rejects == []
    assert found.records["s/x/0001"] == {
        "jpg": JPG,
        "seg.png": PNG,
        "txt": "é\0",
        "cls": 7,
        "json": {"a": 1, "b": [0.5]},
        "npy": tensor(array),
        "wav": b"RIFF",
        "bin": b"",
    }
    assert found.records["s/y"]["json"] == {"a": -1, "b": None}
    assert found.records["s/y"]["jpg"] is None
    media = {field.name: media_of(field) for field in found.schema if media_of(field)}
    assert media == {"jpg": "image", "seg.png": "image", "txt": "text", "wav": "audio"}
    assert is_tensor(found.schema.field("npy"))
    assert found.schema.field("cls").type == pa.int64()
    assert found.schema.field("json").type == pa.struct(
        [("a", pa.int64()), ("b", pa.list_(pa.float64()))]
    )


def test_values_equal_those_of_the_stock_reader(tmp_path):
    rng = np.random.default_rng(0)
    pattern = str(tmp_path / "%03d.tar")
    with webdataset.ShardWriter(pattern, maxcount=7, verbose=0) as sink:
        for i in range(20):
            sample = {"__key__": f"d/{i:04}", "cls": i % 3, "txt": f"caption {i} ü"}
            sample |= {"json": {"i": i, "f": i / 3}, "npy": rng.random((i % 4, 2)), "raw": b"\0"}
            sink.write(sample)
    found = read(tmp_path)
    assert found.rejects == []
    samples = {}
    for shard in sorted(tmp_path.glob("*.tar")):
        for sample in stock(shard, decode=True):
            samples[f"s/{shard.name}/{sample['__key__']}"] = sample
    assert list(found.records) == list(samples) and len(samples) == 20
    for key, sample in samples.items():
        record = found.records[key]
        for name in ("cls", "txt", "json", "raw"):
            assert record[name] == sample[name], name
        assert record["npy"] == tensor(sample["npy"])


NAMES = [
    "a.jpg", "a.b.jpg", "d/a.jpg", "d.x/a.jpg", "d.x/a.b.C", "./a.jpg", "../a.jpg", "/a.jpg",
    "a", "d/a", "d.x/a", "a.", ".a", "__meta__.json", "__meta__/a.json", "d/__meta__/a.json",
    "__a.json", "a__.json", "ü.é.JPG", "a b.c d", "a..jpg", "__x__y/a.jpg", "____/a.jpg",
    "___/a.jpg",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_are_split_as_the_stock_reader_does(tmp_path, name):
    path = write_tar(tmp_path / "a.tar", (name, b"1"))
    names = ("__key__", "__url__", "__local_path__")
    expected = [(s["__key__"], [k for k in s if k not in names]) for s in stock(path)]
    split = split_name(name.encode())
    assert ([] if split is None else [(split[0].decode(), [split[1]])]) == expected


def test_hidden_members_are_passed_over_unlike_in_the_stock_reader():
    assert base_plus_ext("d/._a.jpg") == ("d/", "_a.jpg")
    assert split_name(b"d/._a.jpg") is None


def test_keys_that_count_anew_in_each_shard_stay_unique(tmp_path):
    for name in ("a.tar", "b.tar"):
        write_tar(tmp_path / name, ("0.txt", b"x"), ("1.txt", b"y"))
    assert list(read(tmp_path).records) == ["s/a.tar/0", "s/a.tar/1", "s/b.tar/0", "s/b.tar/1"]
    assert list(read(tmp_path / "a.tar").records) == ["s/0", "s/1"]


@pytest.mark.parametrize("suffix", [".tar", *PACKERS])
def test_compressed_tars(tmp_path, suffix):
    members = [(f"{i}.{e}", b"%d" % i) for i in range(50) for e in ("cls", "bin")]
    path = tmp_path / f"a{suffix}"
    path.write_bytes(PACKERS.get(suffix, bytes)(tar_bytes(*members)))
    found = read(path, 1)
    assert found.rejects == []
    assert list(found.records.values()) == [{"cls": i, "bin": b"%d" % i} for i in range(50)]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_members_out_of_order_are_one_record(tmp_path, pack):
    names = [f"{i}.txt" for i in range(9)] + [f"{i}.cls" for i in (4, 2, 0, 8, 6, 1, 3, 5, 7)]
    data = tar_bytes(*[(name, name[:1].encode()) for name in names], ("z.cls", b"9"))
    (tmp_path / "a.tar").write_bytes(pack(data))
    for target in (1, 1 << 30):
        found = read(tmp_path / "a.tar", target)
        assert found.rejects == []
        assert {k: tuple(r.values()) for k, r in found.records.items()} == {
            **{f"s/{i}": (str(i), i) for i in range(9)},
            "s/z": (None, 9),
        }


def test_members_too_far_apart_in_a_compressed_tar(tmp_path, monkeypatch):
    monkeypatch.setattr(tars, "HELD_BYTES", 1000)
    members = [(f"{i}.{e}", b"x" * 400) for e in ("one", "two") for i in range(4)]
    (tmp_path / "a.tar").write_bytes(gzip.compress(tar_bytes(*members)))
    found = read(tmp_path / "a.tar")
    assert list(found.records) == ["s/0", "s/1"]
    assert found.reasons() == [
        (3, "its members lie too far apart in a compressed tar"),
        (4, "its members lie too far apart in a compressed tar"),
    ]
    write_tar(tmp_path / "a.tar", *members)
    assert len(read(tmp_path / "a.tar").records) == 4


def test_plain_tars_are_cut_between_records(tmp_path):
    members = [(f"{i:03}.{e}", b"%d" % i) for i in range(100) for e in ("cls", "txt")]
    members[20], members[41] = members[41], members[20]
    path = write_tar(tmp_path / "a.tar", *members)
    source = open_source(path, source_id="s")
    pieces = source.pieces(2048)
    assert 80 < len(pieces) < 100
    assert [p.stop for p in pieces[:-1]] == [p.start for p in pieces[1:]]
    assert pieces[-1].stop == path.stat().st_size
    cut, whole = read_all(source, 2048), read_all(source)
    assert cut.records == whole.records and len(whole.records) == 100
    assert cut.column("cls") == [int(t) for t in cut.column("txt")]


# types over all records


def test_types_unite_over_pieces_and_files(tmp_path):
    write_tar(
        tmp_path / "a.tar", ("0.json", b'{"a": null}'), ("0.npy", npy(np.ones(2, "f4"))),
        ("1.json", b'{"a": 1}'), ("1.npy", npy(np.ones((1, 1), ">f8")))
    )  # fmt: skip
    write_tar(
        tmp_path / "b.tar", ("0.json", b'{"a": 2.5}'), ("0.npy", npy(np.arange(3, dtype="i2")))
    )
    found = read(tmp_path, 1)
    assert found.rejects == []
    assert found.column("json") == [{"a": None}, {"a": 1.0}, {"a": 2.5}]
    assert [t["data"] for t in found.column("npy")] == [[1.0, 1.0], [1.0], [0.0, 1.0, 2.0]]
    assert found.schema.field("npy").type.field("data").type == pa.list_(pa.float64())


def test_conflicts_name_types_file_and_row(tmp_path):
    write_tar(tmp_path / "a.tar", ("0.json", b'{"a": 1}'), ("1.json", b'{"a": 2}'))
    write_tar(tmp_path / "b.tar", ("0.txt", b""), ("1.json", b'{"a": "x"}'))
    with pytest.raises(SchemaError) as caught:
        read(tmp_path)
    assert str(caught.value).startswith(
        "the column holds int64 (first in a.tar row 1) and string (first in b.tar row 2)"
    )
    found = read(tmp_path, first_wins=True)
    assert len(found.records) == 3
    assert found.reasons() == [(2, "'json.a' is int64 here, this record holds string")]


def test_tensors_that_conflict(tmp_path):
    write_tar(tmp_path / "a.tar", ("0.npy", npy(np.ones(1, bool))), ("1.npy", npy(np.ones(1))))
    with pytest.raises(SchemaError, match=r"bool \(first in a.tar row 1\) and double"):
        read(tmp_path)
    found = read(tmp_path, first_wins=True)
    assert [t["data"] for t in found.column("npy")] == [[True]]
    assert len(found.rejects) == 1


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["b1", "i1", "<i8", ">i4", "u1", "<u8", "<f2", ">f4", "<f8"])
def test_arrays_of_all_numbers(tmp_path, kind, order):
    array = np.asarray(np.arange(24).reshape(2, 3, 4) % 2, kind, order=order)
    empty, single = np.zeros((0, 3), kind), np.array(1, kind)
    members = [("0.npy", npy(array)), ("1.npy", npy(empty)), ("2.npy", npy(single))]
    found = read(write_tar(tmp_path / "a.tar", *members))
    assert found.rejects == []
    assert found.column("npy") == [tensor(array), tensor(empty), tensor(single)]


def bad_shape():
    return npy(np.zeros(4, "f4")).replace(b"(4,)", b"(9,)")


def npy_of_shape(shape, by_column=False):
    """Return an .npy file whose header says a shape that NumPy itself may not take."""
    told = f"{{'descr': '<i4', 'fortran_order': {by_column}, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\0" + len(told).to_bytes(2, "little") + told


BAD_ARRAYS = [
    npy(np.array(["a"])),
    npy(np.zeros(1, "c8")),
    npy(np.zeros(1, [("a", "i4")])),
    npy(np.zeros(2))[:-1],
    npy(np.zeros(2)) + b"x",
    bad_shape(),
    npy_of_shape("(" + "9" * 5000 + ",)"),
    npy_of_shape("(" + "1, " * 100 + ")", by_column=True) + bytes(4),
    b"",
    b"\x93NUMPY",
    b"\x93NUMPY\x01\x00\xff\xff{",
    b"no array",
]


@pytest.mark.parametrize("data", BAD_ARRAYS)
def test_arrays_that_are_refused(tmp_path, data):
    found = read(write_tar(tmp_path / "a.tar", ("0.npy", data), ("1.npy", npy(np.zeros(1)))))
    assert list(found.records) == ["s/1"] and len(found.rejects) == 1


@pytest.mark.parametrize("by_column", [False, True])
def test_an_empty_array_may_be_long_in_other_dimensions(tmp_path, by_column):
    long = (1 << 31) - 1
    data = npy_of_shape(f"({long}, {long}, {long}, 0)", by_column)
    found = read(write_tar(tmp_path / "a.tar", ("0.npy", data)))
    assert found.column("npy") == [{"data": [], "shape": [long, long, long, 0]}]


def test_pickles_are_never_read(tmp_path):
    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "sprung"),))

    import pickle

    trapped = io.BytesIO()
    np.save(trapped, np.array([Trap()], object), allow_pickle=True)
    bad = [("0.pkl", pickle.dumps(Trap())), ("1.pyd", b""), ("2.x.pth", b""), ("3.pkl.gz", b"")]
    bad += [("4.pt", b""), ("5.npy", trapped.getvalue())]
    found = read(write_tar(tmp_path / "a.tar", *bad, ("6.txt", b"")))
    assert list(found.records) == ["s/6"]
    assert [row for row, _ in found.reasons()] == [1, 2, 3, 4, 5, 6]
    assert found.reasons()[0][1] == "the member is a pickle: reading it would run code"
    assert found.rejects[0].file == "a.tar/0.pkl"
    assert not (tmp_path / "sprung").exists()


# what is wrong with members and tars


def rejected(path):
    return [(bad.file, bad.row, bad.reason) for bad in read(path).rejects]


def test_a_duplicate_member_is_one_error_naming_shard_and_member(tmp_path):
    path = write_tar(
        tmp_path / "a.tar", ("0.txt", b"x"), ("0.cls", b"1"), ("0.TXT", b"y"), ("1.txt", b"z")
    )
    assert rejected(path) == [("a.tar/0.TXT", 1, "two members have this name")]
    with tarfile.open(fileobj=io.BytesIO(read(path).rejects[0].raw)) as raw:
        assert raw.getnames() == ["0.txt", "0.cls", "0.TXT"]
    assert list(read(path).records) == ["s/1"]


def test_members_that_are_no_files(tmp_path):
    path = write_tar(
        tmp_path / "a.tar",
        special("0.jpg", tarfile.SYMTYPE, linkname="/etc/passwd"),
        ("1.jpg", JPG),
        special("2.jpg", tarfile.LNKTYPE, linkname="1.jpg"),
        special("3.jpg", tarfile.CHRTYPE),
        special("4.jpg", tarfile.FIFOTYPE),
        special("5.jpg", tarfile.DIRTYPE),
        special("dir/", tarfile.DIRTYPE),
        special("link", tarfile.SYMTYPE, linkname="1.jpg"),
        ("README", b"x"),
    )
    assert rejected(path) == [
        ("a.tar/0.jpg", 1, "the member is a symbolic link"),
        ("a.tar/2.jpg", 3, "the member is a hard link"),
        ("a.tar/3.jpg", 4, "the member is a device"),
        ("a.tar/4.jpg", 5, "the member is a pipe"),
    ]
    assert list(read(path).records) == ["s/1"]


def gnu_tar():
    told = subprocess.run(["tar", "--version"], check=False, capture_output=True)
    return b"GNU" in told.stdout


@pytest.mark.skipif(not gnu_tar(), reason="only GNU tar writes sparse files")
@pytest.mark.parametrize("options", [["--format=gnu"], ["--format=posix"]])
def test_sparse_files_are_refused(tmp_path, options):
    with (tmp_path / "0.bin").open("wb") as file:
        for place in range(30):
            file.seek(place << 20)
            file.write(b"data" * 1024)
    (tmp_path / "1.bin").write_bytes(b"x")
    command = ["tar", "-C", tmp_path, *options, "--sparse", "-cf", tmp_path / "a.tar"]
    subprocess.run([*command, "0.bin", "1.bin"], check=True)
    found = read(tmp_path / "a.tar")
    assert found.reasons() == [(1, "the member is a sparse file")]
    assert list(found.records) == ["s/1"]


BAD_CONTENTS = [
    (
        "0.txt",
        b"\xff",
        "invalid UTF-8 at byte 0; if it is in another encoding, say which it is with --encoding",
    ),
    ("0.json", b'{"a":', "invalid JSON at line 1 column 6: Expecting value"),
    ("0.json", b'{"a": 1, "a": 2}', "an object has a key twice"),
    ("0.json", b'"\\ud800"', "a string holds half a surrogate pair"),
    ("0.json", b"1e999", "a number is too large for a float64"),
    ("0.json", b"[" * 40 + b"]" * 40, "nested deeper than 32 levels"),
    ("0.", b"", "the member's name ends with a dot"),
]


@pytest.mark.parametrize(("name", "content", "reason"), BAD_CONTENTS)
def test_contents_that_are_refused(tmp_path, name, content, reason):
    path = write_tar(tmp_path / "a.tar", (name, content), ("1.txt", b"x"))
    assert rejected(path) == [(f"a.tar/{name}", 1, reason)]
    assert list(read(path).records) == ["s/1"]


def test_names_that_are_not_utf8(tmp_path):
    path = tmp_path / "a.tar"
    data = tar_bytes(("0\udcff.txt", b"x"), ("1.txt", b"y"), form=tarfile.GNU_FORMAT)
    path.write_bytes(data)
    assert rejected(path) == [("a.tar/0\\xff.txt", 1, "the member's name is not UTF-8")]


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_long_names(tmp_path, form):
    names = ["a/" * 60 + "x.txt", "b/" * 100 + "y.txt", "ü" * 40 + ".txt"]
    if form != tarfile.USTAR_FORMAT:
        names.append("k" * 3000 + ".txt")
    path = write_tar(tmp_path / "a.tar", *[(name, b"v") for name in names], form=form)
    assert list(read(path).records) == [f"s/{name[:-4]}" for name in names]


def test_names_of_the_columns_are_checked(tmp_path):
    with pytest.raises(SchemaError, match="reserved"):
        read(write_tar(tmp_path / "a.tar", ("a.__url__", b"x")))


THREE = [(f"{i}.{e}", b"%d" % i * 300) for i in range(3) for e in ("txt", "bin")]


def test_a_tar_cut_at_any_byte_loses_no_record_silently(tmp_path):
    data, path = tar_bytes(*THREE), tmp_path / "a.tar"
    whole = [f"s/{i}" for i in range(3)]
    for size in [*range(0, 6 * 1024 + 1024, 256), 6 * 1024 + 1, 5 * 1024 - 1]:
        path.write_bytes(data[:size])
        found = read(path)
        assert list(found.records) == whole[: len(found.records)]
        assert all(len(r["txt"]) == len(r["bin"]) == 300 for r in found.records.values())
        ended = size >= 6 * 1024 + 512
        assert len(found.rejects) == (0 if ended else 1), size
        assert len(found.records) >= size // 2048 - (0 if ended else 1)


def test_a_cut_compressed_tar(tmp_path):
    for name, pack in PACKERS.items():
        path = tmp_path / f"a{name}"
        data = pack(tar_bytes(*[(f"{i:03}.bin", os.urandom(5000)) for i in range(100)]))
        path.write_bytes(data[: len(data) // 2])
        found = read(path)
        assert len(found.rejects) == 1 and len(found.records) < 60
        assert list(found.records) == [f"s/{i:03}" for i in range(len(found.records))]
        path.write_bytes(data[:-6])
        assert len(read(path).rejects) == 1


def test_garbage_in_the_middle_ends_the_tar_with_one_reason(tmp_path):
    data = bytearray(tar_bytes(*THREE))
    data[2048:2060] = b"?" * 12
    (tmp_path / "a.tar").write_bytes(data)
    assert rejected(tmp_path / "a.tar") == [("a.tar/0", 1, "no tar header at byte 2048")]
    (tmp_path / "a.tar").write_bytes(b"no tar at all " * 100)
    assert rejected(tmp_path / "a.tar") == [("a.tar", None, "no tar header at byte 0")]


def test_tars_that_are_empty(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"")
    write_tar(tmp_path / "b.tar")
    write_tar(tmp_path / "c.tar", ("0.txt", b"x"))
    found = read(tmp_path)
    assert list(found.records) == ["s/c.tar/0"]
    assert rejected(tmp_path) == [
        ("a.tar", None, "the tar ends at byte 0 without an end mark: it may be cut off")
    ]


def test_what_follows_the_end_mark_is_told(tmp_path):
    one = tar_bytes(("0.txt", b"x"))
    (tmp_path / "a.tar").write_bytes(one + one)
    found = read(tmp_path / "a.tar")
    assert list(found.records) == ["s/0"]
    assert found.reasons() == [(None, f"other bytes follow the end mark, at byte {len(one)}")]


def test_a_member_of_over_2_gib_is_refused_unread(tmp_path):
    size = (1 << 31) + 5
    info = tarfile.TarInfo("0.bin")
    info.size = size
    path = tmp_path / "a.tar"
    with path.open("wb") as file:
        file.write(info.tobuf())
        file.seek(size + -size % 512, os.SEEK_CUR)
        file.write(tar_bytes(("1.bin", b"x")))
    found = read(path)
    assert found.reasons() == [(1, "the record holds 2 GiB or more")]
    assert list(found.records) == ["s/1"]


def test_headers_without_end_are_refused_before_they_fill_the_memory(tmp_path):
    record = b"999999 comment=".ljust(999_998, b"x") + b"\n"
    pax = special("h", tarfile.XHDTYPE, size=len(record)).tobuf(tarfile.USTAR_FORMAT)
    endless = (pax + record + bytes(-len(record) % 512)) * 6
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(endless + tar_bytes(("0.txt", b"x")), 1))
    assert rejected(path) == [("a.tar.gz", None, "the headers at byte 0 are too long")]


def test_a_size_beyond_the_file_is_refused(tmp_path):
    info = tarfile.TarInfo("0.bin")
    info.size = 1 << 60
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b"x" * 4096)
    assert rejected(tmp_path / "a.tar") == [
        ("a.tar/0", 1, "the tar is cut off within the member at byte 0")
    ]


def test_unreadable_files_are_one_reject(tmp_path):
    write_tar(tmp_path / "a.tar", ("0.txt", b"x"))
    (tmp_path / "b.tar").symlink_to(tmp_path / "gone.tar")
    found = read(tmp_path)
    assert list(found.records) == ["s/a.tar/0"]
    assert [bad.file for bad in found.rejects] == ["b.tar"]


@given(st.data())
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_damaged_bytes_never_crash(tmp_path, data):
    form = data.draw(st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]))
    whole = bytearray(tar_bytes(*THREE, ("k" * 200 + ".txt", b"x"), form=form))
    places = st.integers(0, len(whole) // 2)
    for place in data.draw(st.lists(places, min_size=1, max_size=4)):
        whole[place] = data.draw(st.integers(0, 255))
    packed = data.draw(st.booleans())
    (tmp_path / "a.tar").write_bytes(gzip.compress(whole, 1) if packed else whole)
    found = read(tmp_path / "a.tar", data.draw(st.sampled_from([1, 1 << 30])))
    assert len(found.records) + len(found.rejects) <= 8


@given(st.lists(st.sampled_from([f"{k}.{e}" for k in "abc" for e in ("x", "y", "z")]), unique=True))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_order_of_members_gives_the_same_records(tmp_path, names):
    members = [(name, name.encode()) for name in names]
    expected = {}
    for name in names:
        expected.setdefault(f"s/{name[0]}", {})[name[2]] = name.encode()
    for pack in (bytes, gzip.compress):
        (tmp_path / "a.tar").write_bytes(pack(tar_bytes(*members)))
        for target in (1, 1 << 30):
            found = read(tmp_path / "a.tar", target).records
            given = {k: {n: v for n, v in r.items() if v is not None} for k, r in found.items()}
            assert given == expected


# our own shards


@pytest.mark.parametrize("name", COLUMNS)
def test_every_type_of_our_own_shards(tmp_path, name):
    batch = typed(name)
    path = write_own("webdataset", tmp_path / "a.tar", batch)
    assert_same(batches_of(open_source(path, source_id="s")), batch)


def test_our_own_shards_without_tombstones(tmp_path):
    batch = mixed(60)
    batch = batch.set_column(1, batch.schema.field(1), pa.nulls(60, pa.string()))
    write_own("webdataset", tmp_path / "a.tar", batch)
    found = read(tmp_path / "a.tar")
    live = {row.pop(KEY): row for row in batch.to_pylist() if row[KEY] is not None}
    assert {k: {**v, "__subject__": None} for k, v in found.records.items()} == live
    columns = pa.schema(list(batch.schema)[2:])
    columns = columns.set(2, columns.field(2).remove_metadata())  # its label map is not in a shard
    assert found.schema.equals(columns, check_metadata=True)


def test_pseudonyms_do_not_travel(tmp_path):
    write_own("webdataset", tmp_path / "a.tar", mixed(10))
    with pytest.raises(SchemaError, match="pseudonyms"):
        read(tmp_path / "a.tar")


def test_a_damaged_shard_of_our_own_is_one_reject(tmp_path):
    path = write_own("webdataset", tmp_path / "a.tar", typed("int64"))
    path.write_bytes(path.read_bytes()[:-1024])
    found = read(path)
    assert found.records == {} and len(found.rejects) == 1


def test_a_shard_of_our_own_with_a_damaged_schema_is_one_reject(tmp_path):
    path = write_own("webdataset", tmp_path / "a.tar", typed("int64"))
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"int64"', b'"int32"', 1))
    assert path.read_bytes() != whole
    ((file, row, reason),) = rejected(path)
    assert (file, row) == ("a.tar", None) and "schema" in reason


def test_a_compressed_shard_of_our_own_is_one_reject(tmp_path):
    path = write_own("webdataset", tmp_path / "a.tar", typed("int64"))
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert rejected(path) == [("a.tar", None, "a compressed shard of geodata: decompress it first")]


def test_own_and_foreign_tars_in_one_folder(tmp_path):
    write_own("webdataset", tmp_path / "a.tar", typed("int32"))
    write_tar(tmp_path / "b.tar", ("0.txt", b"x"))
    found = read(tmp_path)
    assert found.schema.names == ["value", "txt"]
    assert len(found.records) == len(COLUMNS["int32"]) + 1


# origins, real files


def test_origins_are_file_and_row(tmp_path):
    from geodata.schema import origin_field

    for name in ("a.tar", "b.tar"):
        write_tar(tmp_path / name, *[(f"{i}.txt", b"x" * 600) for i in range(40)])
    columns = read(tmp_path).schema
    schema = dataset_schema(columns.append(origin_field("origin")))
    found = read(tmp_path, 1024, schema=schema)
    assert found.column("origin") == [
        {"file": name, "row": i + 1} for name in ("a.tar", "b.tar") for i in range(40)
    ]


def test_a_tree_tarred_by_tarfile(tmp_path):
    tree = tmp_path / "tree" / "de"
    tree.mkdir(parents=True)
    for i in range(300):
        (tree / f"{i:05}.wav").write_bytes(b"RIFF%d" % i)
        (tree / f"{i:05}.json").write_text(json.dumps({"i": i}))
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tmp_path / "tree", "tree")
    found = read(tmp_path / "a.tar", 8192)
    assert found.rejects == []
    assert {k: (r["wav"], r["json"]["i"]) for k, r in found.records.items()} == {
        f"s/tree/de/{i:05}": (b"RIFF%d" % i, i) for i in range(300)
    }


def test_batches_stay_small(tmp_path):
    members = [(f"{i}.bin", bytes((1 << 20) - 1024)) for i in range(20)]
    found = read(write_tar(tmp_path / "a.tar", *members))
    assert [batch.num_rows for batch in found.batches] == [7, 7, 6]


@pytest.mark.parametrize("suffix", [".tar", *PACKERS])
def test_folders_are_recognised_by_suffix(tmp_path, suffix):
    pack = PACKERS.get(suffix, bytes)
    (tmp_path / f"a{suffix}").write_bytes(pack(tar_bytes(("0.txt", b"x"))))
    assert open_source(tmp_path).kind == "webdataset"
    assert list(read(tmp_path).records) == [f"s/a{suffix}/0"]
