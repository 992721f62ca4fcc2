"""Images verified, shrunk and written anew: upright, in their colours, or refused and said why."""

import io
import re
import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest
import simplejpeg
from pictures import (
    MAKERS,
    TURNS,
    chunk,
    corners,
    encoded,
    gif,
    jpeg,
    opened,
    png,
    profile,
    seen,
    stored_turned,
    webp,
)
from PIL import Image
from preparing import prepared, records

import geodata
from geodata.errors import ConfigError, TooManyBadRecords
from geodata.prepare import Preparing, pixels
from geodata.schema import media_field

UPRIGHT = ["red", "green", "blue", "white"]
IMAGE = [media_field("image", "image")]
SIZED = [*IMAGE, pa.field("width", pa.int32()), pa.field("height", pa.int32())]


def made_of(data, **asked):
    """Return what becomes of one image."""
    batch, rejects = prepared(records({"image": [data]}, IMAGE), **asked)
    assert rejects == []
    return batch.column("image")[0].as_py()


def reason_for(data, **asked):
    """Return why an image is refused; its bytes come with the refusal."""
    batch, rejects = prepared(records({"image": [data]}, IMAGE), **asked)
    ((row, reason, raw),) = rejects
    assert (batch.num_rows, row, raw) == (0, 0, data)
    return reason


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("asked", [{"encode": "png"}, {"max_side": 24}, {"encode": "jpeg"}])
def test_what_is_written_anew_is_upright_and_says_so(kind, orientation, asked):
    held = stored_turned(corners(48, 32), orientation)
    made = opened(made_of(MAKERS[kind](held, orientation=orientation), **asked))
    assert seen(made) == UPRIGHT
    assert made.size == ((24, 16) if "max_side" in asked else (48, 32))
    assert made.format == asked.get("encode", kind).upper()
    assert made.getexif()[0x0112] == 1
    assert made.getexif()[0x010F] == "Leica SECRET"
    assert made.info["icc_profile"] == profile()


@pytest.mark.parametrize("kind", MAKERS)
def test_written_anew_without_exif(kind):
    held = stored_turned(corners(), 6)
    data = made_of(MAKERS[kind](held, orientation=6), encode="jpeg", exif="strip")
    made = opened(data)
    assert seen(made) == UPRIGHT and not made.getexif()
    assert made.info["icc_profile"] == profile()
    assert b"SECRET" not in data


@pytest.mark.parametrize("kind", MAKERS)
def test_bytes_stay_unless_there_is_something_to_do(kind):
    data = MAKERS[kind](orientation=6)
    assert made_of(data, verify=True) == data
    assert made_of(data, max_side=48) == data
    assert made_of(data, max_side=48, verify=True) == data
    stripped = made_of(data, exif="strip")
    assert b"SECRET" not in stripped
    assert np.array_equal(np.asarray(opened(data)), np.asarray(opened(stripped)))


def test_dimensions_follow_what_is_written_anew():
    held = stored_turned(corners(48, 32), 6)
    columns = {
        "image": [jpeg(held, orientation=6), jpeg(), None, jpeg(corners(100, 10))],
        "width": [32, 48, None, 100],
        "height": [48, 32, None, 10],
    }
    batch, _ = prepared(records(columns, SIZED), max_side=48)
    assert batch.column("width").to_pylist() == [32, 48, None, 48]
    assert batch.column("height").to_pylist() == [48, 32, None, 5]
    batch, _ = prepared(records(columns, SIZED), encode="webp")
    assert batch.column("width").to_pylist() == [48, 48, None, 100]
    assert batch.column("height").to_pylist() == [32, 32, None, 10]
    assert batch.column("image").to_pylist()[2] is None


def test_shrunk_pictures_look_like_the_whole_one_filtered():
    rng = np.random.default_rng(3)
    coarse = Image.fromarray(rng.integers(0, 255, (9, 12, 3), np.uint8))
    picture = coarse.resize((1200, 900), Image.Resampling.BICUBIC)
    ideal = np.asarray(picture.resize((120, 90), Image.Resampling.LANCZOS), np.float64)
    for data in (encoded(picture, "JPEG", quality=95), encoded(picture, "PNG")):
        made = opened(made_of(data, max_side=120, quality=95))
        assert made.size == (120, 90)
        assert np.abs(np.asarray(made, np.float64) - ideal).mean() < 2


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (333, 7)])
def test_no_side_becomes_nothing(size):
    image = corners(*size)
    for data in (encoded(image, "JPEG"), encoded(image, "PNG")):
        made = opened(made_of(data, max_side=10))
        share = min(1, 10 / max(size))
        assert made.size == tuple(max(1, round(side * share)) for side in size)


def test_the_same_image_gives_the_same_bytes():
    for asked in ({"encode": "jpeg"}, {"encode": "webp"}, {"encode": "png"}, {"max_side": 20}):
        assert made_of(jpeg(), **asked) == made_of(jpeg(), **asked)
    assert len(made_of(jpeg(), encode="jpeg", quality=30)) < len(made_of(jpeg(), encode="jpeg"))


def see_through(mode):
    """Return a picture whose left half is opaque red and whose right half is not there."""
    layer = np.zeros((16, 16, 4), np.uint8)
    layer[:, :8] = (255, 0, 0, 255)
    return Image.fromarray(layer).convert(mode)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_is_kept_or_laid_over_white(mode):
    image = see_through(mode)
    if mode == "P":
        image = see_through("RGBA").quantize(4)
    data = encoded(image, "PNG")
    flat = opened(made_of(data, encode="jpeg", quality=95))
    assert flat.mode == "RGB"
    assert min(flat.getpixel((12, 8))) > 245 and flat.getpixel((3, 8))[1] < 90
    for target in ("png", "webp"):
        for side in (None, 8):
            made = opened(made_of(data, encode=target, max_side=side)).convert("RGBA")
            width = made.width
            assert made.getpixel((width - 2, 2))[3] < 8 and made.getpixel((1, 2))[3] > 247


def test_a_transparent_colour_of_a_png_is_transparency():
    plain = encoded(Image.new("RGB", (16, 16), (1, 2, 3)), "PNG")
    data = plain[:33] + chunk(b"tRNS", struct.pack(">HHH", 1, 2, 3)) + plain[33:]
    assert min(opened(made_of(data, encode="jpeg")).getpixel((8, 8))) > 250
    assert opened(made_of(data, encode="webp")).convert("RGBA").getpixel((8, 8))[3] == 0
    assert opened(made_of(data, encode="png")).convert("RGBA").getpixel((8, 8))[3] == 0
    assert opened(made_of(data, max_side=4)).convert("RGBA").getpixel((2, 2))[3] == 0


@pytest.mark.parametrize("mode", ["1", "L", "P"])
def test_kinds_of_pixels_that_a_png_holds_stay_in_one(mode):
    image = corners().convert(mode)
    made = opened(made_of(encoded(image, "BMP"), encode="png"))
    assert np.array_equal(np.asarray(made.convert("RGB")), np.asarray(image.convert("RGB")))
    assert opened(made_of(encoded(image, "PNG"), max_side=24)).size == (24, 16)
    assert opened(made_of(encoded(image, "PNG"), encode="jpeg")).mode in ("L", "RGB")
    assert opened(made_of(encoded(image, "PNG"), encode="webp")).mode == "RGB"


def test_gray_of_sixteen_bits_stays_so_in_a_png_and_loses_the_lower_half_elsewhere():
    values = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    data = encoded(Image.fromarray(values), "PNG")
    assert np.array_equal(np.asarray(opened(made_of(data, encode="png"))), values)
    eight = np.asarray(opened(made_of(data, encode="webp", quality=100)).convert("L"), np.int64)
    assert np.abs(eight - (values >> 8)).max() <= 6
    assert opened(made_of(data, encode="jpeg")).mode == "L"
    assert np.asarray(opened(made_of(data, max_side=4))).dtype == np.uint16


def deep_png():
    """Return a PNG of 16 bits a colour, which Pillow reads 8 of."""
    header = struct.pack(">IIBBBBB", 4, 4, 16, 2, 0, 0, 0)
    rows = b"".join(b"\0" + b"\x12\x34" * 12 for _ in range(4))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def test_sixteen_bits_a_colour_are_not_lost_silently():
    assert made_of(deep_png(), verify=True) == deep_png()
    assert "more than 8 bits a colour" in reason_for(deep_png(), encode="png")
    assert "more than 8 bits a colour" in reason_for(deep_png(), max_side=2)
    assert opened(made_of(deep_png(), encode="jpeg", max_side=2)).size == (2, 2)


def test_inks_become_colours_as_the_loader_sees_them():
    inks = np.zeros((16, 16, 4), np.uint8)
    inks[..., 0] = 255
    data = encoded(Image.fromarray(inks, "CMYK"), "JPEG", quality=95, icc_profile=b"x" * 128)
    made = opened(made_of(data, encode="png"))
    assert made.mode == "RGB" and "icc_profile" not in made.info
    assert np.array_equal(np.asarray(made), simplejpeg.decode_jpeg(data, "RGB"))
    assert made_of(data, verify=True) == data


def test_a_tiff_is_upright_and_floats_are_refused():
    tiff = encoded(stored_turned(corners(), 6), "TIFF", tiffinfo={274: 6})
    assert seen(opened(made_of(tiff, encode="png"))) == UPRIGHT
    floats = encoded(Image.fromarray(np.zeros((4, 4), np.float32)), "TIFF")
    assert reason_for(floats, encode="png") == "pixels of the kind F cannot be written as png"
    assert made_of(floats, verify=True) == floats


def test_several_pictures_do_not_become_one():
    pages = encoded(corners(), "TIFF", save_all=True, append_images=[corners()])
    for data in (gif(), pages):
        assert made_of(data, verify=True) == data
        assert "several pictures" in reason_for(data, encode="png")
        assert "several pictures" in reason_for(data, max_side=10)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (jpeg()[:-300], "the JPEG cannot be decoded"),
        (png()[:-300], "the PNG cannot be decoded"),
        (webp()[:-300], "damaged|cannot be decoded"),
        (b"no picture at all", "not an image of a known kind"),
        (b"\xff\xd8\xff\xe0junk", "the JPEG's header is damaged"),
        (b"", "not an image of a known kind"),
    ],
)
def test_what_cannot_be_decoded_is_refused(data, reason):
    for asked in ({"verify": True}, {"encode": "png"}, {"max_side": 5}):
        found = reason_for(data, **asked)
        assert re.search(reason, found) or "damaged" in found or "decoded" in found
        assert "\n" not in found and "0x" not in found


def test_a_wrong_sum_in_a_png_is_found():
    data = bytearray(png())
    at = data.index(b"tEXt") + 8
    data[at] ^= 1
    assert "damaged" in reason_for(bytes(data), verify=True)


def huge_jpeg(side, **options):
    """Return a JPEG whose header claims `side` squared, of one gray."""
    data = bytearray(encoded(Image.new("L", (64, 64), 90), "JPEG", **options))
    at = next(data.index(bytes([0xFF, m])) for m in (0xC0, 0xC2) if bytes([0xFF, m]) in data)
    data[at + 5 : at + 9] = struct.pack(">HH", side, side)
    return bytes(data)


def test_bombs_are_refused_before_they_are_decoded():
    header = struct.pack(">IIBBBBB", 12_000, 12_000, 1, 0, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IEND", b"")
    for asked in ({"verify": True}, {"encode": "jpeg"}, {"max_side": 100}):
        assert "megapixels would have to be decoded" in reason_for(bomb, **asked)
    assert "megapixels" in reason_for(huge_jpeg(20_000), verify=True)
    assert "megapixels" in reason_for(huge_jpeg(60_000), max_side=20_000)
    assert "megapixels" in reason_for(huge_jpeg(20_000, progressive=True), max_side=100)


def test_a_large_jpeg_can_be_shrunk_but_not_decoded_whole(monkeypatch):
    monkeypatch.setattr(pixels, "MOST_PIXELS", 200 * 200)
    data = encoded(corners(480, 320), "JPEG")
    assert "megapixels" in reason_for(data, verify=True)
    assert "megapixels" in reason_for(data, encode="jpeg")
    made = opened(made_of(data, max_side=60))
    assert made.size == (60, 40) and seen(made) == UPRIGHT
    assert "megapixels" in reason_for(
        encoded(corners(480, 320), "JPEG", progressive=True), max_side=60
    )


def test_an_endless_animation_is_refused(monkeypatch):
    monkeypatch.setattr(pixels, "MOST_DRAWN", 48 * 32)
    assert reason_for(gif(), verify=True) == "an animation claims too many pixels"


def test_however_small_frames_are_only_so_many_are_decoded(monkeypatch):
    monkeypatch.setattr(pixels, "MOST_DRAWN", 30 * pixels.LEAST_DRAWN)
    data = encoded(Image.new("P", (1, 1)), "GIF")
    at = data.index(b",")
    head, frame = data[:at], data[at:-1]
    assert prepared(records({"image": [head + 30 * frame + b";"]}, IMAGE), verify=True)[1] == []
    assert "animation" in reason_for(head + 31 * frame + b";", verify=True)


def test_a_later_page_is_bounded_as_the_first_is(monkeypatch):
    out = io.BytesIO()
    Image.new("L", (8, 8)).save(
        out, "TIFF", save_all=True, append_images=[Image.new("L", (99, 99))]
    )
    assert prepared(records({"image": [out.getvalue()]}, IMAGE), verify=True)[1] == []
    monkeypatch.setattr(pixels, "MOST_PIXELS", 64)
    assert "megapixels" in reason_for(out.getvalue(), verify=True)


def test_only_the_bad_rows_go_and_a_row_goes_once():
    fields = [media_field("front", "image"), media_field("back", "image")]
    columns = {"front": [png(), b"bad", None, png()], "back": [png(), b"bad", b"worse", None]}
    batch, rejects = prepared(records(columns, fields), verify=True)
    assert [(row, raw) for row, _, raw in rejects] == [(1, b"bad"), (2, b"worse")]
    assert batch.column("front").to_pylist() == [png(), png()]
    assert batch.column("back").to_pylist() == [png(), None]


def test_no_image_column_is_said_at_the_start():
    with pytest.raises(ConfigError, match="no column of images"):
        prepared(records({"text": ["a"]}, [media_field("text", "text")]), verify=True)


def test_a_folder_is_converted_and_its_bad_files_are_set_aside(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "turned.jpg").write_bytes(jpeg(stored_turned(corners(), 6), orientation=6))
    (folder / "small.png").write_bytes(encoded(corners(20, 10), "PNG"))
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))
    broken = encoded(noise, "JPEG")
    (folder / "broken.jpg").write_bytes(broken[:700] + broken[-300:])
    preparing = Preparing(verify=True, max_side=24, exif="strip")
    with pytest.raises(TooManyBadRecords, match="JPEG cannot be decoded"):
        geodata.convert(folder, tmp_path / "raw", preparing=preparing, workers=1)
    report = geodata.convert(
        folder, tmp_path / "raw", preparing=preparing, on_error="quarantine", workers=1
    )
    assert (report.records_out, report.rejected) == (2, 1)
    shown = {row["__key__"]: row for row in geodata.inspect(str(tmp_path / "raw"), head=9).head}
    assert {key.rpartition("/")[2] for key in shown} == {"turned.jpg", "small.png"}
    sizes = {key.rpartition("/")[2]: (r["width"], r["height"]) for key, r in shown.items()}
    assert sizes == {"turned.jpg": (24, 16), "small.png": (20, 10)}


def test_the_loaders_decoder_takes_what_was_verified():
    from geodata.loader.images import decode_image

    for data in (jpeg(), png(), webp(), gif(), encoded(corners(), "BMP")):
        assert made_of(data, verify=True) == data
        assert decode_image(data, 8).shape == (8, 8, 3)
    assert io.BytesIO(made_of(jpeg(), encode="webp")).read(4) == b"RIFF"
