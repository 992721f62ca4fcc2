"""Random crops, flips and masks: seeded by seed, epoch and sample, at any layout."""

import io
import math

import numpy as np
import pytest
import torch
from loading import build
from PIL import Image

import geodata
from geodata.config import ImageSection, load_config
from geodata.errors import ConfigError
from geodata.loader.images import CENTRE, View, decode_image, draw_views
from geodata.loader.seeds import Seeds

CONFIG = """
dataset: {name: pictures, root: data/pictures}
here: eu
regions: {eu: {jurisdiction: DE}}
tagging:
  region: {constant: eu}
  rules: [{when: {region: known}, tag: {data_category: NonPersonalData}}]
loader: {global_batch: 8, split: {heldout: 0.3}, image: {size: 16, crop: random, flip: true}}
"""
GRADIENT = np.stack(
    [
        np.broadcast_to(np.arange(0, 256, 4, np.uint8), (48, 64)),  # red grows to the right
        np.broadcast_to(np.arange(0, 240, 5, np.uint8)[:, None], (48, 64)),  # green downwards
        np.zeros((48, 64), np.uint8),
    ],
    axis=2,
)


def seeds(count, seed=3, epoch=0):
    return Seeds(np.arange(count, dtype=np.int64) * 7919, seed, epoch)


def png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


def jpeg(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "jpeg", quality=100, subsampling=0)
    return buffer.getvalue()


@pytest.fixture
def pictures(tmp_path):
    (tmp_path / "raw/one").mkdir(parents=True)
    for number in range(30):
        rolled = np.roll(GRADIENT, number, axis=1)
        (tmp_path / f"raw/one/{number}.png").write_bytes(png(rolled))
    (tmp_path / "geodata.yaml").write_text(CONFIG)
    geodata.convert(tmp_path / "raw", tmp_path / "data/raw", workers=1)
    config = load_config(tmp_path / "geodata.yaml")
    geodata.shard(str(tmp_path / "data/raw"), config=config, workers=1)
    return tmp_path / "geodata.yaml"


def by_sample(batches, column):
    return {
        sample: values
        for batch in batches
        for sample, values in zip(batch["sample"].tolist(), batch[column], strict=True)
        if sample >= 0
    }


def test_a_layout_changes_no_pixel_and_an_epoch_does(pictures):
    loader = build(pictures, split="train")
    first, second = by_sample(loader, "image"), by_sample(loader, "image")
    ranks = [
        build(pictures, "loader.workers=2", dp_rank=r, dp_size=2, split="train") for r in (0, 1)
    ]
    elsewhere = by_sample([batch for rank in ranks for batch in rank], "image")
    assert first.keys() == elsewhere.keys() == second.keys()
    assert all(torch.equal(first[sample], elsewhere[sample]) for sample in first)
    assert not any(torch.equal(first[sample], second[sample]) for sample in first)


def test_held_out_images_are_whole(pictures):
    held_out = by_sample(build(pictures, split="heldout"), "image")
    plain = build(pictures, "loader.image={size: 16}", split="heldout")
    assert len(held_out) > 2
    for sample, image in by_sample(plain, "image").items():
        assert torch.equal(image, held_out[sample])


def test_another_seed_gives_other_crops(pictures):
    one = by_sample(build(pictures, split="train"), "image")
    other = by_sample(build(pictures, "loader.seed=9", split="train"), "image")
    assert one.keys() == other.keys()
    assert not any(torch.equal(one[sample], other[sample]) for sample in one)


def test_views_are_distributed_as_said():
    section = ImageSection(crop="random", area=(0.2, 0.6), aspect=(0.5, 2.0), flip=True)
    views = draw_views(section, seeds(20_000))
    areas = np.array([view.area for view in views])
    aspects = np.log([view.aspect for view in views])
    assert 0.2 <= areas.min() < 0.201 and 0.599 < areas.max() < 0.6
    assert abs(areas.mean() - 0.4) < 0.003
    assert abs(aspects.mean()) < 0.01 and math.isclose(aspects.max(), math.log(2), abs_tol=1e-3)
    assert abs(np.mean([view.mirrored for view in views]) - 0.5) < 0.02
    assert abs(np.corrcoef([v.x for v in views], [v.y for v in views])[0, 1]) < 0.03
    assert abs(np.corrcoef(areas, [v.mirrored for v in views])[0, 1]) < 0.03


@pytest.mark.parametrize("shape", [(64, 48), (10, 1000), (1000, 10), (1, 1)], ids=str)
def test_a_box_lies_inside_the_image(shape):
    for view in [CENTRE, *draw_views(ImageSection(crop="random"), seeds(500))]:
        left, top, right, bottom = view.box(*shape)
        assert 0 <= left < right <= 1 and 0 <= top < bottom <= 1


def test_a_box_has_the_area_and_shape_drawn():
    left, top, right, bottom = View(0.25, 2.0, 0.0, 1.0).box(400, 300)
    wide, high = (right - left) * 400, (bottom - top) * 300
    assert math.isclose(wide * high, 0.25 * 400 * 300)
    assert math.isclose(wide / high, 2.0)
    assert (left, round(bottom, 9)) == (0.0, 1.0)


@pytest.mark.parametrize("encode", [png, jpeg])
def test_a_crop_shows_its_part_and_a_mirror_turns_it(encode):
    corner = View(1 / 16, 4 / 3, x=1.0, y=0.0)  # the upper right sixteenth: x 48-64, y 0-12
    seen = decode_image(encode(GRADIENT), 12, corner).astype(int)
    assert abs(seen[0, 0, 0] - 48 * 4) <= 6 and abs(seen[0, -1, 0] - 63 * 4) <= 6
    assert abs(seen[0, 0, 1]) <= 6 and abs(seen[-1, 0, 1] - 11 * 5) <= 6
    turned = decode_image(encode(GRADIENT), 12, View(1 / 16, 4 / 3, 1.0, 0.0, mirrored=True))
    assert np.array_equal(turned, seen[:, ::-1])


def test_a_crop_of_a_jpeg_keeps_its_resolution():
    fine = np.kron(np.indices((64, 64)).sum(0) % 2 * 255, np.ones((4, 4)))
    pixels = np.repeat(fine.astype(np.uint8)[:, :, None], 3, axis=2)
    seen = decode_image(jpeg(pixels), 32, View(1 / 16, 1.0, 0.0, 0.0))  # 64 pixels of 256
    assert seen.std() > 90  # the board's squares, two pixels wide; a reduced scale shows grey


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("loader.image={area: [0.5, 1.5]}", "more than the whole image"),
        ("loader.image={area: [0.5, 0.1]}", "the smaller first"),
        ("loader.image={aspect: [0, 1]}", "the smaller first"),
        ("loader.text={masked: 1}", "less than 1"),
    ],
)
def test_mistakes_are_told(pictures, override, told):
    with pytest.raises(ConfigError, match=told):
        load_config(pictures, [override])


# masks


def masked(path, *overrides, **options):
    return build(path, "loader.text={masked: 0.15, length: 64, crop: head}", *overrides, **options)


def test_a_mask_hides_the_share_it_says(posts_dataset):
    plain = build(posts_dataset, "loader.text={length: 64, crop: head}")
    truth = by_sample(plain, "labels")
    loader = masked(posts_dataset)
    assert (loader.vocab_size, loader.mask_id) == (258, 257)
    assert (plain.vocab_size, plain.mask_id) == (257, -1)
    counted = np.zeros(4, np.int64)
    for batch in loader:
        for sample, tokens, labels, attention in zip(
            batch["sample"].tolist(),
            batch["tokens"],
            batch["labels"],
            batch["attention_mask"],
            strict=True,
        ):
            chosen = labels >= 0
            assert attention.dtype == torch.bool and attention[0]
            if sample < 0:
                assert not chosen.any() and attention.sum() == 1
                continue
            before = truth[sample][: len(labels)]
            assert torch.equal(labels[chosen], before[chosen])
            rest = ~chosen & (before >= 0)
            assert torch.equal(tokens[rest], before[rest])
            assert not (before[chosen] == loader.eos_id).any()
            assert torch.equal(attention[1:], (before >= 0)[1:])
            text = int(((before >= 0) & (before != loader.eos_id)).sum())
            hidden, kept = tokens[chosen] == 257, tokens[chosen] == before[chosen]
            counted += [text, int(chosen.sum()), int(hidden.sum()), int(kept.sum())]
    share, hidden, kept = counted[1] / counted[0], counted[2] / counted[1], counted[3] / counted[1]
    assert abs(share - 0.15) < 0.01
    assert abs(hidden - 0.8) < 0.03 and abs(kept - 0.1) < 0.03


def test_masks_follow_the_sample_at_any_layout(posts_dataset):
    loader = masked(posts_dataset)
    first, second = by_sample(loader, "labels"), by_sample(loader, "labels")
    ranks = [masked(posts_dataset, dp_rank=rank, dp_size=3) for rank in range(3)]
    elsewhere = by_sample([batch for rank in ranks for batch in rank], "labels")
    assert first.keys() == elsewhere.keys()
    same = [torch.equal(first[sample], elsewhere[sample]) for sample in first]
    assert all(same)
    assert not all(torch.equal(first[sample], second[sample]) for sample in first)


def test_label_names_are_told(pictures):
    assert build(pictures).labels == {"label": ["one"]}
