"""Makes the corpora that are read: JPEGs of 224×224 in ten classes, and documents of about 1.2 KB.

The material is real, the samples are drawn from it: crops of photos or drawings at random places
and sizes, runs of consecutive lines. Samples of little material overlap. The same material, count
and library versions give the same files.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from benchmarks.workloads import DOCUMENTS, SIDE, WORKLOADS, Corpus, Workload
from train.demo.corpus import messages

Pixels = npt.NDArray[np.uint8]

SEED = 20_260
CLASSES = 10
IMAGE_NBYTES = 26_700
"""Median size of the JPEGs."""
DOCUMENT_NBYTES = (600, 1_800)
"""Documents are evenly spread between these."""

PROBES = 100
"""Images that are encoded to find the quality."""
QUALITIES = (60, 97)
GRAIN_QUALITY = 90
MOST_GRAIN = 60.0
SMALLEST_SIDE = 128
MOST_PIXELS = 16_000_000
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp"})


@dataclass(frozen=True, slots=True)
class Encoding:
    """JPEG quality, and the standard deviation of the noise that is laid over flat drawings."""

    quality: int
    grain: float = 0.0


class Photos:
    """Pictures to crop: files of a folder, or the two photos that scikit-learn carries."""

    def __init__(self, source: Path | None):
        self._found: Sequence[Any] = _samples() if source is None else _pictures(source)
        self._noise = np.random.default_rng(SEED).standard_normal(1 << 20, np.float32)

    def __len__(self) -> int:
        return len(self._found)

    def deal(self, count: int) -> Iterator[tuple[int, Any]]:
        """Yield (number of a sample, its picture) for `count` samples, each picture opened once."""
        order = np.random.default_rng(SEED).permutation(len(self._found))[:count]
        for turn, number in enumerate(order):
            picture = _opened(self._found[number])
            for sample in range(turn, count, len(order)):
                yield sample, picture

    def crop(self, sample: int, picture: Any) -> npt.NDArray[np.float32]:
        """Return a random part of a picture, perhaps mirrored, in random light."""
        from PIL import Image

        rng = np.random.default_rng([SEED, sample])
        width, height = picture.size
        side = min(width, height) * rng.uniform(0.4, 1.0)
        left, top = rng.uniform(0, width - side), rng.uniform(0, height - side)
        box = (left, top, left + side, top + side)
        part = picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=box, reducing_gap=2.0)
        pixels = np.asarray(part, np.float32)[:, :: rng.choice([-1, 1])]
        return pixels * rng.uniform(0.8, 1.2, 3).astype(np.float32)

    def encode(self, sample: int, cropped: npt.NDArray[np.float32], encoding: Encoding) -> bytes:
        """Return a crop as a JPEG."""
        import simplejpeg

        if encoding.grain:
            start = sample * 7919 % (len(self._noise) - cropped.size)
            noise = self._noise[start : start + cropped.size].reshape(cropped.shape)
            cropped = cropped + noise * np.float32(encoding.grain)
        pixels = np.ascontiguousarray(np.clip(cropped, 0, 255).astype(np.uint8))
        return bytes(simplejpeg.encode_jpeg(pixels, encoding.quality, colorsubsampling="420"))

    def calibrate(self, nbytes: int, count: int) -> Encoding:
        """Return the encoding whose median size over some samples comes nearest to `nbytes`."""
        dealt = self.deal(min(PROBES, count))
        probes = [(sample, self.crop(sample, picture)) for sample, picture in dealt]

        def size(encoding: Encoding) -> float:
            return median(len(self.encode(*probe, encoding)) for probe in probes)

        low, high = QUALITIES
        if size(Encoding(high)) < nbytes:
            return self._grained(size, nbytes)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if size(Encoding(middle)) > nbytes else (middle, high)
        return min(Encoding(low), Encoding(high), key=lambda found: abs(size(found) - nbytes))

    def _grained(self, size: Any, nbytes: int) -> Encoding:
        low, high = 0.0, MOST_GRAIN
        while high - low > 0.05:
            middle = (low + high) / 2
            smaller = size(Encoding(GRAIN_QUALITY, middle)) < nbytes
            low, high = (middle, high) if smaller else (low, middle)
        return Encoding(GRAIN_QUALITY, round(high, 2))


def _samples() -> list[Pixels]:
    if find_spec("sklearn") is None:
        raise click.ClickException('pip install "geodata-train[demo]", or give pictures by --from')
    from sklearn.datasets import load_sample_images

    return list(load_sample_images().images)


def _pictures(source: Path) -> list[Path]:
    """Return the pictures below a folder that are neither tiny nor huge."""
    from PIL import Image

    found = []
    for path in sorted(source.rglob("*")):
        if path.suffix.lower() in IMAGE_SUFFIXES:
            try:
                with warnings.catch_warnings(action="ignore"), Image.open(path) as image:
                    width, height = image.size
            except (OSError, Image.DecompressionBombError):
                continue
            if min(width, height) >= SMALLEST_SIDE and width * height <= MOST_PIXELS:
                found.append(path)
    if not found:
        raise click.ClickException(f"{source} holds no picture of at least {SMALLEST_SIDE} pixels")
    return found


def _opened(picture: Any) -> Any:
    """Return a picture as RGB, transparency laid over white."""
    from PIL import Image

    if not isinstance(picture, Path):
        return Image.fromarray(picture)
    image = Image.open(picture)
    if image.mode != "RGB":
        layer = image.convert("RGBA")
        image = Image.new("RGBA", layer.size, "white")
        image.alpha_composite(layer)
    return image.convert("RGB")


def write_images(folder: Path, count: int, source: Path | None) -> str:
    """Write JPEGs into ten folders; return how they were encoded."""
    photos = Photos(source)
    encoding = photos.calibrate(IMAGE_NBYTES, count)
    for number in range(min(CLASSES, count)):
        (folder / f"class{number}").mkdir(parents=True)
    for sample, picture in photos.deal(count):
        data = photos.encode(sample, photos.crop(sample, picture), encoding)
        (folder / f"class{sample % CLASSES}" / f"{sample:06}.jpg").write_bytes(data)
    grain = f" with grain of {encoding.grain}" if encoding.grain else ""
    return f"{len(photos)} pictures, JPEG quality {encoding.quality}{grain}"


def write_documents(folder: Path, count: int, source: Path | None) -> str:
    """Write documents as JSON lines {id, text}; return what they were cut from."""
    lines = list(_translations() if source is None else _lines(source))
    ends = np.cumsum([len(line.encode()) + 1 for line in lines])
    rng = np.random.default_rng(SEED)
    nbytes = rng.integers(*DOCUMENT_NBYTES, count, endpoint=True)
    room = int(np.searchsorted(ends, ends[-1] - DOCUMENT_NBYTES[1]))
    if room < 1:
        raise click.ClickException("less text than one document needs")
    starts = rng.integers(0, room, count)
    stops = np.searchsorted(ends, (ends[starts] + nbytes)) + 1
    folder.mkdir(parents=True)
    with (folder / DOCUMENTS).open("w", encoding="utf-8") as out:
        for number, (start, stop, size) in enumerate(zip(starts, stops, nbytes, strict=True)):
            text = "\n".join(lines[start + 1 : stop]).encode()[:size].decode(errors="ignore")
            record = {"id": f"doc-{number:06}", "text": text}
            out.write(json.dumps(record, ensure_ascii=False) + "\n")
    return f"{len(lines):,} lines, {ends[-1] / 1e6:,.1f} MB"


def _translations() -> Iterator[str]:
    spec = find_spec("django")
    if spec is None or not spec.submodule_search_locations:
        raise click.ClickException('pip install "geodata-train[demo]", or give text by --from')
    for file in sorted(Path(spec.submodule_search_locations[0]).glob("**/LC_MESSAGES/*.po")):
        yield from list(messages(file))[1:]


def _lines(source: Path) -> Iterator[str]:
    for file in sorted(source.rglob("*.txt")):
        yield from filter(None, file.read_text(encoding="utf-8", errors="replace").splitlines())


def make(workload: Workload, dest: Path, count: int, source: Path | None) -> tuple[Corpus, str]:
    """Write a corpus below `dest`, whole or not at all; return it and what it was made of."""
    corpus = Corpus(workload, dest / workload.name)
    if corpus.folder.exists():
        raise click.ClickException(
            f"{corpus.folder} is there already; remove it, or choose another"
        )
    fresh = corpus.folder.with_name(f"{workload.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    write = write_images if workload.name == "img" else write_documents
    about = write(fresh, count, source)
    fresh.rename(corpus.folder)
    return corpus, about


@click.command()
@click.argument("workload", type=click.Choice(list(WORKLOADS)))
@click.argument("dest", type=click.Path(file_okay=False, path_type=Path))
@click.option("--count", type=click.IntRange(min=1), help="Samples; default: 20,000 or 200,000.")
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder of pictures, or of .txt files; default: what installed packages carry.",
)
def corpus(workload: str, dest: Path, count: int | None, source: Path | None) -> None:
    """Make the images or the documents that `io` reads, in DEST/img or DEST/txt."""
    kind = WORKLOADS[workload]
    made, about = make(kind, dest, count or kind.count, source)
    sizes = [len(p.encode() if isinstance(p, str) else p) for p, _label in made.samples()]
    click.echo(
        f"{len(sizes):,} {kind.samples}, median {median(sizes) / 1e3:.1f} KB, "
        f"{sum(sizes) / 1e6:,.0f} MB (from {about}) → {made.folder}"
    )


__all__ = ["corpus", "make"]
