"""Images: from folders to uint8 tensors, whatever their kind, and bad ones handled by choice."""

import io

import numpy as np
import pyarrow as pa
import pytest
import simplejpeg
import torch
from PIL import Image

import geodata
from geodata.config import ImageSection, load_config
from geodata.errors import CorruptShard
from geodata.loader import build_loader
from geodata.loader.images import ImageDecoder, View, decode_image
from geodata.loader.seeds import Seeds

CONFIG = """
dataset: {name: pictures, root: data/pictures}
here: eu
regions: {eu: {jurisdiction: DE}}
tagging:
  region: {constant: eu}
  rules: [{when: {region: known}, tag: {data_category: NonPersonalData}}]
loader: {global_batch: 8, image: {size: 16}}
"""

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}


def encoded(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.fixture(params=["parquet", "webdataset"])
def pictures(tmp_path, request):
    """Nine pictures of each colour, as PNG, JPEG and WebP."""
    for name, colour in COLOURS.items():
        (tmp_path / "raw" / name).mkdir(parents=True)
        for number, kind in enumerate(["png", "jpeg", "webp"] * 3):
            image = Image.new("RGB", (20 + number, 24), colour)
            data = encoded(image, kind, **({"lossless": True} if kind == "webp" else {}))
            (tmp_path / "raw" / name / f"{number}.{kind}").write_bytes(data)
    (tmp_path / "geodata.yaml").write_text(CONFIG)
    return tmp_path, request.param


def sharded(pictures):
    root, form = pictures
    geodata.convert(root / "raw", root / "data/raw", format=form, workers=1)
    config = load_config(root / "geodata.yaml")
    geodata.shard(str(root / "data/raw"), config=config, workers=1)
    return root / "geodata.yaml"


def test_labels_and_pixels_arrive(pictures):
    loader = build_loader(sharded(pictures))
    shown = geodata.inspect("pictures", config=load_config(pictures[0] / "geodata.yaml"))
    assert shown.labels == {"label": ["blue", "green", "red"]}
    seen = 0
    for batch in loader:
        assert batch["image"].shape == (8, 3, 16, 16)
        assert batch["image"].dtype == torch.uint8
        for image, label, weight in zip(
            batch["image"], batch["label"].tolist(), batch["weight"].tolist(), strict=True
        ):
            if not weight:
                assert image.sum() == 0
                continue
            colour = torch.tensor(COLOURS[shown.labels["label"][label]])
            assert (image.float().mean((1, 2)) - colour).abs().max() < 4
            seen += 1
    assert seen == 27


def test_workers_and_layouts_give_the_same_pixels(pictures):
    path = sharded(pictures)
    alone = list(build_loader(path))
    config = load_config(path, ["loader.workers=2"])
    for one, other in zip(alone, build_loader(config), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_bad_image_fails_or_gives_an_empty_slot(pictures):
    root, _form = pictures
    victim = root / "raw/red/0.png"
    data = bytearray(victim.read_bytes())
    data[60:64] = b"\0\0\0\0"  # inside the compressed pixels
    victim.write_bytes(data)
    path = sharded(pictures)
    with pytest.raises(CorruptShard, match=r"cannot be decoded.*shard \w+, row \d+"):
        list(build_loader(path))
    batches = list(build_loader(load_config(path, ["loader.on_error=skip"])))
    assert sum(int(batch["weight"].sum()) for batch in batches) == 26


def test_every_kind_of_pixel_becomes_rgb():
    ramp = np.linspace(0, 255, 32 * 32).reshape(32, 32)
    modes = {
        "L": Image.fromarray(ramp.astype(np.uint8)),
        "1": Image.fromarray(ramp.astype(np.uint8)).convert("1"),
        "P": Image.new("RGB", (32, 32), "navy").convert("P"),
        "I;16": Image.fromarray((ramp * 257).astype(np.uint16)),
        "RGBA": Image.new("RGBA", (32, 32), (255, 0, 0, 0)),
    }
    for mode, image in modes.items():
        pixels = decode_image(encoded(image, "png"), 16)
        assert pixels.shape == (16, 16, 3) and pixels.dtype == np.uint8, mode
    assert decode_image(encoded(modes["RGBA"], "png"), 16).min() == 255  # clear is white
    sixteen = decode_image(encoded(modes["I;16"], "png"), 32)[..., 0].astype(int)
    assert np.abs(sixteen - ramp).max() < 3


def test_a_jpeg_is_scaled_while_decoding_and_cropped_in_the_middle():
    image = Image.new("RGB", (400, 200), "white")
    image.paste("black", (0, 0, 100, 200))
    pixels = decode_image(encoded(image, "jpeg"), 50)
    assert pixels.shape == (50, 50, 3)
    assert pixels.min() > 240  # the black strip lies outside of the centre


def noise(side):
    pixels = np.random.default_rng(side).integers(0, 256, (side, side, 3), np.uint8)
    return encoded(Image.fromarray(pixels), "jpeg")


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("side", [32, 64, 33, 65, 20])
def test_what_needs_no_scaling_is_what_scaling_would_give(side, mirrored):
    data = noise(side)
    pixels = simplejpeg.decode_jpeg(data, "RGB", min_height=32, min_width=32, min_factor=1)
    box, bilinear = (0, 0, len(pixels), len(pixels)), Image.Resampling.BILINEAR
    seen = Image.fromarray(pixels).resize((32, 32), bilinear, box=box, reducing_gap=2.0)
    expected = np.asarray(seen)[:, ::-1] if mirrored else np.asarray(seen)
    assert (decode_image(data, 32, View(mirrored=mirrored)) == expected).all()


@pytest.mark.parametrize("side", [32, 48])
def test_images_stand_at_their_places_and_a_bad_one_leaves_nothing(side):
    good, told = noise(side), []
    column = pa.array([good, good[: len(good) // 2], None, good])
    decoder = ImageDecoder(ImageSection(column="image", size=32), augmented=False)
    seeds = Seeds(np.arange(4, dtype=np.int64), 0, 0)

    def bad(row, reason):
        told.append((row, reason.partition(":")[0]))

    images = decoder(column, [True, True, False, True], seeds, bad, [4, 3, 1, 0], 6)
    assert told == [(1, "an image cannot be decoded")]
    assert images.shape == (6, 3, 32, 32)
    assert images.is_contiguous(memory_format=torch.channels_last)
    expected = torch.from_numpy(decode_image(good, 32)).permute(2, 0, 1)
    for place, image in enumerate(images):
        assert torch.equal(image, expected if place in (0, 4) else torch.zeros_like(expected))
