"""Images: bytes exactly, classes from folders, and nothing broken let through."""

import io
import warnings
import zlib

import pytest
from PIL import Image
from source_reading import read_all

from geodata.errors import ConfigError, MissingExtra
from geodata.schema import is_label, media_of
from geodata.sources import open_source
from geodata.sources.batches import Unfit
from geodata.sources.media.headers import image_size

FORMATS = ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"]


def _image(kind="PNG", size=(7, 5), colour=(200, 30, 40), **options):
    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, kind, **options)
    return out.getvalue()


def _put(root, **files):
    for name, data in files.items():
        path = root / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def test_the_first_folder_is_the_class(tmp_path):
    _put(tmp_path, ape__a_png=_image(), cat__b_png=_image(size=(3, 9)), cat__deep__c_jpg=_image())
    (tmp_path / "empty").mkdir()
    for target in (1 << 20, 1):
        read = read_all(open_source(tmp_path, source_id="s"), target)
        assert read.schema.names == ["image", "label", "width", "height"]
        assert media_of(read.schema.field("image")) == "image"
        assert is_label(read.schema.field("label"))
        assert list(read.records) == ["s/ape/a.png", "s/cat/b.png", "s/cat/deep/c.jpg"]
        assert read.column("label") == [0, 1, 1]
        assert list(zip(read.column("width"), read.column("height"), strict=True)) == [
            (7, 5),
            (3, 9),
            (7, 5),
        ]
        assert read.records["s/cat/b.png"]["image"] == (tmp_path / "cat/b.png").read_bytes()


def test_classes_are_those_of_images_in_the_order_of_their_bytes(tmp_path):
    _put(tmp_path, é__a_png=_image(), Z__a_png=_image(), a__a_png=_image(), notes__a_txt=b"x")
    (tmp_path / "a" / "readme.md").write_text("x")
    source = open_source(tmp_path, kind="images")
    assert source.ignored == {".txt": 1, ".md": 1}
    assert source.scan(source.pieces(1 << 20)[0]).labels == {"label": {"Z", "a", "é"}}
    assert read_all(source).column("label") == [0, 1, 2]


def test_flat_images_have_no_label(tmp_path):
    _put(tmp_path, a_png=_image(), b_webp=_image("WEBP"))
    read = read_all(open_source(tmp_path, source_id="s"))
    assert read.schema.names == ["image", "width", "height"]
    assert list(read.records) == ["s/a.png", "s/b.webp"]
    assert list(read_all(open_source(tmp_path / "a.png")).records) == ["a.png"]


def test_flat_images_beside_classes_are_refused(tmp_path):
    _put(tmp_path, stray_png=_image(), cat__b_png=_image())
    with pytest.raises(ConfigError, match=r"'stray\.png'.*'cat'"):
        open_source(tmp_path)


def test_an_unknown_class_is_rejected(tmp_path):
    _put(tmp_path, ape__a_png=_image(), cat__b_png=_image())
    source = open_source(tmp_path)
    from geodata.schema import dataset_schema

    schema = dataset_schema(source.merge([]))
    rejects = []
    piece = source.pieces(1 << 20)[0]
    (batch,) = source.read(piece, 0, schema, {"label": ["ape"]}, rejects.append)
    assert batch.num_rows == 1
    assert [(r.file, r.reason) for r in rejects] == [
        ("cat/b.png", "its class is not among the dataset's labels")
    ]


@pytest.mark.parametrize("kind", FORMATS)
def test_sizes_come_from_the_header(kind):
    assert image_size(_image(kind, size=(31, 17))) == (31, 17)


def test_the_content_decides_not_the_suffix(tmp_path):
    _put(tmp_path, a_jpg=_image("PNG"))
    assert read_all(open_source(tmp_path)).column("width") == [7]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_an_image_cut_anywhere_is_rejected(kind):
    data = _image(kind, size=(40, 40))
    for length in range(len(data)):
        with pytest.raises(Unfit):
            image_size(data[:length])
    assert image_size(data + b"trailer\0") == (40, 40)


def test_a_jpeg_preview_in_the_header_is_not_the_end():
    preview = _image("JPEG", size=(4, 4))
    exif = b"Exif\0\0" + preview
    data = _image("JPEG", size=(40, 40))
    app1 = b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif
    whole = data[:2] + app1 + data[2:]
    assert image_size(whole) == (40, 40)
    with pytest.raises(Unfit, match="the JPEG is truncated"):
        image_size(whole[:-2])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"<svg/>", "not an image of a known kind"),
        (b"\x89PNG\r\n\x1a\n", "not an image of a known kind, or its header is damaged"),
        (b"II*\0" + b"\xff" * 40, "not an image of a known kind, or its header is damaged"),
    ],
)
def test_what_is_no_image_is_rejected(tmp_path, data, reason):
    _put(tmp_path, a_png=data, b_png=_image())
    read = read_all(open_source(tmp_path, source_id="s"))
    assert list(read.records) == ["s/b.png"]
    ((_, why),) = read.reasons()
    assert reason in why
    assert read.rejects[0].raw == data


def _png_header(width, height):
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\0\0\0"
    chunk = b"IHDR" + header
    end = b"\0\0\0\0IEND\xaeB`\x82"
    crc = zlib.crc32(chunk).to_bytes(4, "big")
    return b"\x89PNG\r\n\x1a\n" + len(header).to_bytes(4, "big") + chunk + crc + end


def test_a_decompression_bomb_is_rejected_and_a_large_image_is_not_a_warning():
    with pytest.raises(Unfit, match="the image claims too many pixels"):
        image_size(_png_header(100_000, 100_000))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert image_size(_png_header(10_000, 10_000)) == (10_000, 10_000)


def test_without_pillow_the_extra_is_named(tmp_path, monkeypatch):
    _put(tmp_path, a_png=_image())
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"geodata-train\[images\]"):
        open_source(tmp_path)


def test_batches_are_bounded(tmp_path):
    data = _image("BMP", size=(1200, 900))
    assert 3 << 20 < len(data) < 4 << 20
    _put(tmp_path, **{f"{i}_bmp": data for i in range(5)})
    assert [batch.num_rows for batch in read_all(open_source(tmp_path)).batches] == [2, 2, 1]
