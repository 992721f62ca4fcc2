"""Sizes read from plain headers are Pillow's; whatever Pillow refuses is not plain."""

import io
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from geodata.sources.batches import Unfit
from geodata.sources.media.headers import image_size, plain_jpeg

MANY = settings(max_examples=400, deadline=None)


def _jpeg(mode="RGB", size=(31, 17), **options):
    width, height = size
    layers = {"L": (), "RGB": (3,), "CMYK": (4,)}[mode]
    pixels = np.random.default_rng(7).integers(0, 255, (height, width, *layers), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels, mode).save(out, "JPEG", **options)
    return out.getvalue()


PLAIN = [
    _jpeg(),
    _jpeg("L", (1, 300)),
    _jpeg(size=(257, 3), quality=30, subsampling=0),
    _jpeg(progressive=True),
    _jpeg(optimize=True, comment=b"a comment"),
    _jpeg(restart_marker_rows=1),
    _jpeg(dpi=(72, 72)),
]
ODD = [_jpeg("CMYK"), _jpeg(exif=Image.Exif().tobytes()), _jpeg(icc_profile=b"profile" * 40)]


def _by_pillow(data):
    """Return what Pillow says, with no help of ours."""
    with mock.patch("geodata.sources.media.headers.plain_jpeg", return_value=None):
        try:
            return image_size(data)
        except Unfit as error:
            return str(error)


def _sized(data):
    try:
        return image_size(data)
    except Unfit as error:
        return str(error)


@pytest.mark.parametrize("data", PLAIN)
def test_plain_jpegs_are_sized_without_pillow(data):
    size, scan = plain_jpeg(data)
    with Image.open(io.BytesIO(data)) as image:
        assert size == image.size
        assert data[:scan].rfind(b"\xff\xda") > 0
    assert image_size(data) == size
    for length in range(scan, len(data) - 1, 7):
        with pytest.raises(Unfit, match="the JPEG is truncated"):
            image_size(data[:length])


@pytest.mark.parametrize("data", ODD)
def test_other_jpegs_are_left_to_pillow(data):
    assert plain_jpeg(data) is None
    assert image_size(data) == (31, 17)


@MANY
@given(
    data=st.sampled_from(PLAIN + ODD),
    changes=st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), max_size=3),
    moved=st.tuples(st.integers(0, 700), st.integers(0, 700), st.integers(0, 20)),
    length=st.none() | st.integers(0, 800),
)
def test_damaged_headers_are_judged_as_by_pillow(data, changes, moved, length):
    damaged = bytearray(data)
    for place, value in changes:
        damaged[min(place, len(data) - 1)] = value
    start, goal, size = moved
    damaged[goal:goal] = damaged[start : start + size]
    whole = bytes(damaged[:length])
    assert _sized(whole) == _by_pillow(whole)


@MANY
@given(
    st.lists(st.sampled_from("c0 c1 c2 c3 c4 db dd fe e0 e1 da d8 01 ff".split()), max_size=6),
    st.lists(st.integers(0, 70), min_size=6, max_size=6),
    st.binary(min_size=1, max_size=80),
)
def test_any_segments_are_judged_as_by_pillow(markers, lengths, filling):
    data = b"\xff\xd8"
    for marker, length in zip(markers, lengths, strict=False):
        content = (b"\x08\x00\x05\x00\x07\x03" + filling * length)[:length]
        data += b"\xff" + bytes.fromhex(marker) + (length + 2).to_bytes(2, "big") + content
    data += b"\xff\xda\x00\x04\x00\x00\xff\xd9"
    assert _sized(data) == _by_pillow(data)


def test_a_huge_plain_jpeg_is_left_to_pillow():
    data = bytearray(PLAIN[0])
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = b"\xff\xff\xff\xff"
    assert plain_jpeg(bytes(data)) is None
    with pytest.raises(Unfit, match="too many pixels"):
        image_size(bytes(data))
