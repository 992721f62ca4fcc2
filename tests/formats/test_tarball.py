"""Tar headers and names, beside the standard library's."""

import io
import re
import tarfile

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import ODD_KEYS

from geodata.errors import CorruptShard
from geodata.formats.webdataset.tarball import (
    END,
    entries,
    header,
    header_nbytes,
    key_of,
    padded,
    stem_nbytes,
    stems,
)

NAMES = st.text("abc%_-.", min_size=1, max_size=300)


@pytest.mark.parametrize("size", [0, 1, 511, 512, 2**31])
@pytest.mark.parametrize("length", [1, 99, 100])
def test_short_names_have_the_header_of_the_standard_library(length, size):
    info = tarfile.TarInfo("n" * length)
    info.size = size
    assert header(b"n" * length, size) == info.tobuf(tarfile.USTAR_FORMAT)


@settings(deadline=None)
@given(st.lists(st.tuples(NAMES, st.binary(max_size=1100)), max_size=6))
def test_the_standard_library_and_entries_read_what_is_written(members):
    parts = [header(name.encode(), len(data)) + padded(data) for name, data in members]
    whole = b"".join(parts) + END
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        assert [(m.name, tar.extractfile(m).read()) for m in tar] == members
    found = list(entries(memoryview(whole), "shard"))
    contents = [whole[entry.offset : entry.offset + entry.size] for entry in found]
    assert [(e.name.decode(), data) for e, data in zip(found, contents, strict=True)] == members
    assert [e.start for e in found] == np.cumsum([0, *map(len, parts)])[:-1].tolist()


@pytest.mark.parametrize("length", [1, 100, 101, 960, 999, 1010, 5000])
def test_header_bytes_are_known_ahead(length):
    said = int(header_nbytes(np.array([length]))[0])
    assert len(header(b"n" * length, 5)) in (said, said - 512)


@settings(deadline=None)
@given(st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]))))
def test_stems_are_safe_and_mean_one_key(keys):
    array = pa.array([*keys, "x"], pa.string())[: len(keys)]
    found = stems(array)
    assert [None if stem is None else key_of(stem) for stem in found] == keys
    for stem, nbytes in zip(found, stem_nbytes(array), strict=True):
        assert stem is None or re.fullmatch(rb"[A-Za-z0-9_%-]+", stem)
        assert stem is None or len(stem) == nbytes


def test_stems_of_a_slice():
    whole = stems(pa.array(ODD_KEYS))
    assert stems(pa.array(ODD_KEYS)[3:9]) == whole[3:9]
    assert whole[1:3] == [b"with%20space", b"dots%2Ein%2Eit%2Etar%2Egz"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:700],
        lambda data: data[:1024],
        lambda data: data[:-512],
        lambda data: data + bytes(512),
        lambda data: data.replace(b"ustar", b"USTAR"),
        lambda data: data[:156] + b"2" + data[157:],
        lambda data: data[:124] + b"99999999999" + data[135:],
        lambda data: data[:124] + b"77777777777" + data[135:],
        lambda data: data.replace(b" path=", b" hack="),
    ],
)
def test_broken_tars_are_refused(damage):
    long = header(b"n" * 200, 3) + padded(b"abc")
    data = header(b"short", 3) + padded(b"abc") + long + END
    assert len(list(entries(memoryview(data), "shard"))) == 2
    with pytest.raises(CorruptShard) as caught:
        list(entries(memoryview(damage(data)), "shard"))
    assert caught.value.fields["shard"] == "shard"
