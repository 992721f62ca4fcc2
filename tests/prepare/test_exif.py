"""What cameras and editors add goes, every pixel stays, and no file leads astray."""

import io
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pictures import (
    MAKERS,
    SECRETS,
    TURNS,
    corners,
    encoded,
    exif,
    gif,
    jpeg,
    opened,
    png,
    profile,
    segment,
    webp,
)
from PIL import Image, ImageSequence

from geodata.prepare.exif import (
    CannotStrip,
    exif_of,
    jpeg_frame,
    jpeg_profile,
    orientation_of,
    stripped,
    upright,
)


def frames(data):
    return [
        np.asarray(f.convert("RGBA")) for f in ImageSequence.Iterator(Image.open(io.BytesIO(data)))
    ]


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("orientation", TURNS)
def test_all_goes_but_pixels_profile_and_orientation(kind, orientation):
    data = MAKERS[kind](orientation=orientation)
    assert all(secret in data for secret in SECRETS[:2])
    made = stripped(data)
    assert not any(secret in made for secret in SECRETS)
    before, after = opened(data), opened(made)
    assert np.array_equal(np.asarray(before), np.asarray(after))
    assert after.info["icc_profile"] == profile()
    assert dict(after.getexif()) == ({} if orientation == 1 else {0x0112: orientation})
    assert orientation_of(data) == orientation_of(made) == orientation
    assert not {"xmp", "comment", "photoshop", "mp"} & after.info.keys()
    assert stripped(made) is made


def test_a_webp_without_exif_says_so_in_its_header():
    made = stripped(webp())
    flags = made[made.index(b"VP8X") + 8]
    assert flags & 0x0C == 0 and flags & 0x20
    assert len(made) == 8 + int.from_bytes(made[4:8], "little")
    turned = stripped(webp(orientation=6))
    assert turned[turned.index(b"VP8X") + 8] & 0x0C == 0x08


def test_an_animated_gif_keeps_its_frames_loop_and_times():
    data = gif()
    made = stripped(data)
    assert b"SECRET" in data and b"SECRET" not in made
    assert b"NETSCAPE2.0" in made
    assert all(np.array_equal(a, b) for a, b in zip(frames(data), frames(made), strict=True))
    assert len(frames(made)) == 2 and stripped(made) is made


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 1}])
def test_scans_of_all_sorts_are_kept_whole(options):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 80, 3), np.uint8))
    data = jpeg(noise, **options)
    made = stripped(data)
    assert np.array_equal(np.asarray(opened(data)), np.asarray(opened(made)))
    assert jpeg_frame(data) == jpeg_frame(made) == (0xC2 if "progressive" in options else 0xC0)


def test_an_adobe_marker_is_kept_since_it_says_what_the_colours_are():
    inks = Image.fromarray(np.random.default_rng(1).integers(0, 255, (16, 16, 4), np.uint8), "CMYK")
    data = encoded(inks, "JPEG", exif=exif())
    made = stripped(data)
    assert b"Adobe" in made and len(made) < len(data)
    assert np.array_equal(np.asarray(opened(data)), np.asarray(opened(made)))


def test_a_thumbnail_in_a_jfif_header_goes():
    plain = encoded(corners(), "JPEG")
    start = plain.index(b"JFIF")
    head = plain[start : start + 12] + b"\x02\x01" + b"SECRET"
    data = plain[:2] + segment(0xE0, head) + segment(0xE0, b"JFXX\0\x10SECRET") + plain[20:]
    made = stripped(data)
    assert made == plain


@pytest.mark.parametrize(
    "data",
    [
        b"",
        encoded(corners(), "JPEG"),
        encoded(corners(), "PNG"),
        encoded(corners(), "WEBP"),
        encoded(corners().quantize(4), "GIF"),
        encoded(corners(), "BMP"),
        encoded(corners(), "TIFF"),
    ],
    ids=["nothing", "jpeg", "png", "webp", "gif", "bmp", "tiff"],
)
def test_a_file_of_nothing_but_its_picture_is_the_same_object(data):
    assert stripped(data) is data


def test_a_tiff_with_more_than_its_picture_is_refused():
    data = encoded(corners(), "TIFF", software="SECRET")
    with pytest.raises(CannotStrip, match="a TIFF holds beside its picture"):
        stripped(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"hello world", "not an image of a known kind"),
        (b"MM is no TIFF", "not an image of a known kind"),
        (jpeg()[:200], "the JPEG is truncated"),
        (b"\xff\xd8\xff\xe1\x00\x01", "no length"),
        (png()[:100], "the PNG is truncated"),
        (b"\x89PNG\r\n\x1a\n" + bytes(30), "has no name"),
        (webp()[:-30], "the WEBP is truncated"),
        (b"RIFF\x18\0\0\0WEBPVP8 \xff\xff\xff\x7f" + bytes(20), "behind its end"),
        (b"GIF89a", "the GIF is truncated"),
        (gif()[:60], "the GIF is truncated"),
        (b"GIF89a" + bytes(7) + b"\x99", "of no known kind"),
        (b"II*\0\x08\0\0\0\xff\xff", "directories overlap"),
        (b"II*\0\x08\0\0\0" + b"\0\0\x08\0\0\0" * 2, "directories overlap"),
    ],
)
def test_a_damaged_file_is_refused_with_its_reason(data, reason):
    with pytest.raises(CannotStrip, match=reason):
        stripped(data)
    assert orientation_of(data[:20]) == 1


def test_exif_blocks_of_all_byte_orders_and_places():
    for order, magic in (("little", b"II*\0"), ("big", b"MM\0*")):
        entry = b"".join(
            n.to_bytes(size, order) for n, size in ((0x0112, 2), (3, 2), (1, 4), (6, 2))
        )
        block = magic + (8).to_bytes(4, order) + (1).to_bytes(2, order) + entry + bytes(6)
        data = b"\xff\xd8" + segment(0xE1, b"Exif\0\0" + block) + encoded(corners(), "JPEG")[2:]
        assert exif_of(data) == block and orientation_of(data) == 6
        assert orientation_of(b"\xff\xd8" + segment(0xE1, b"Exif\0\0" + upright(block))) == 1
        assert len(upright(block)) == len(block)
    assert upright(b"no block") == b"no block"
    assert [orientation_of(jpeg(orientation=n)) for n in (0, 9)] == [1, 1]


def test_the_parts_of_a_profile_are_joined_in_their_order():
    body = bytes(range(256)) * 2
    parts = [
        segment(0xE2, b"ICC_PROFILE\0" + bytes([n, 2]) + body[a:b])
        for n, a, b in ((2, 300, 512), (1, 0, 300))
    ]
    data = b"\xff\xd8" + b"".join(parts) + encoded(corners(), "JPEG")[2:]
    assert jpeg_profile(data) == body
    assert jpeg_profile(stripped(data)) == body


SEEDS = [
    jpeg(),
    jpeg(orientation=8, progressive=True),
    png(orientation=3),
    webp(orientation=5),
    gif(),
    encoded(corners(), "TIFF", software="SECRET"),
]


@st.composite
def mutated(draw):
    """Return a real file with bytes changed, cut out, or put in, most often in its headers."""
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, min(len(data) - 1, draw(st.sampled_from([64, 700, 1 << 20])))))
        change = draw(st.sampled_from(["set", "cut", "put"]))
        if change == "set":
            data[at] = draw(st.sampled_from([0, 1, 0x7F, 0xD8, 0xD9, 0xDA, 0xE1, 0xFF]))
        elif change == "cut" and len(data) > 200:
            del data[at : at + draw(st.integers(1, 100))]
        else:
            data[at:at] = draw(st.binary(min_size=1, max_size=20))
    return bytes(data)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutated())
def test_whatever_a_file_is_made_of_it_is_stripped_or_refused(data):
    assert 1 <= orientation_of(data) <= 8
    assert exif_of(data) == b"" or exif_of(data) in data
    try:
        made = stripped(data)
    except CannotStrip as error:
        assert "\n" not in str(error)
        return
    assert len(made) <= len(data) + 64
    assert stripped(made) is made
    assert orientation_of(made) in (1, orientation_of(data))
    assert len(exif_of(made)) <= 26


def test_hostile_sizes_take_no_time():
    many = b"\xff\xd8" + b"\xff" * 2_000_000 + b"\x00" * 10
    with pytest.raises(CannotStrip):
        stripped(many)
    tiny = b"\xff\xd8" + segment(0xFE, b"") * 200_000 + b"\xff\xd9"
    assert stripped(tiny) == b"\xff\xd8\xff\xd9"


def test_a_directory_of_a_tiff_that_leads_to_itself_is_refused_at_once():
    head = b"II*\0" + struct.pack("<I", 8)
    empty = head + struct.pack("<HI", 0, 8)
    entry = struct.pack("<HHII", 256, 3, 1, 1)
    full = head + struct.pack("<H", 1) + entry + struct.pack("<I", 8)
    for data in (empty + bytes(8 << 20), full + bytes(1000)):
        with pytest.raises(CannotStrip, match="directories overlap"):
            stripped(data)


def test_segments_of_a_jpeg_that_no_decoder_needs_go():
    plain = encoded(corners(), "JPEG")
    for marker in (0x02, 0xBF, 0xF0, 0xFD, 0xFE):
        assert stripped(plain[:2] + segment(marker, b"SECRET") + plain[2:]) == plain
