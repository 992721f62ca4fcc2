"""The section `loader`: order, batch, processes, and what becomes a tensor."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from geodata.config.base import Section, Size
from geodata.config.tagging import Condition


class SplitSection(Section):
    """The held-out part: records chosen by a hash of their key."""

    heldout: float = Field(0.0, ge=0, lt=1, description="Share of the records held out.")
    seed: int = 0


def _ascending(bounds: tuple[float, float]) -> tuple[float, float]:
    if not 0 < bounds[0] <= bounds[1]:
        raise ValueError("give two positive numbers, the smaller first")
    return bounds


class TextSection(Section):
    """Text to tokens."""

    column: str = "text"
    tokenizer: str = Field("bytes", description="`bytes`, or a tokenizers JSON file.")
    length: int = Field(512, ge=8, description="Longest sequence in tokens; the rest is cropped.")
    crop: Literal["random", "head"] = Field(
        "random", description="Which part of a longer record: seeded by seed, epoch and sample."
    )
    masked: float = Field(
        0.0, ge=0, lt=1, description="Share of tokens to predict in place (BERT); 0: the next one."
    )


Range = Annotated[tuple[float, float], AfterValidator(_ascending)]


class ImageSection(Section):
    """Images to uint8 tensors of shape [3, size, size].

    Random crops and flips are of the training split only, seeded by seed, epoch and sample.
    """

    column: str = "image"
    size: int = Field(224, ge=8)
    crop: Literal["center", "random"] = Field(
        "center", description="random: a part of random area and shape, scaled to `size`."
    )
    area: Range = Field((0.08, 1.0), description="Share of the image that a random crop takes.")
    aspect: Range = Field((3 / 4, 4 / 3), description="Width by height of a random crop.")
    flip: bool = Field(False, description="Mirror every other image, left to right.")

    @model_validator(mode="after")
    def _area_is_a_share(self) -> ImageSection:
        if self.area[1] > 1:
            raise ValueError("area: a crop cannot take more than the whole image, 1")
        return self


class LoaderSection(Section):
    """Order, batch and processes of the loader."""

    global_batch: int = Field(32, ge=1, description="Slots of one step over all ranks.")
    seed: int = 0
    lanes: int | None = Field(None, ge=1, description="Default: largest divisor of the batch ≤ 64.")
    workers: int = Field(0, ge=0)
    prefetch: int = Field(2, ge=1, description="Batches in flight per worker.")
    start_method: Literal["fork", "spawn", "forkserver"] | None = None
    memory_budget: Size = Field(1 << 30, description="Bytes of decoded units a process may keep.")
    columns: list[str] | None = None
    on_error: Literal["fail", "skip"] = Field("fail", description="skip: weight 0, and counted.")
    where: Condition | None = Field(None, description="Only records for which this holds.")
    split: SplitSection = SplitSection()
    text: TextSection | None = None
    image: ImageSection | None = None
    version: str | None = Field(
        None, pattern=r"^v?\d+(\.r\d+)?$", description="Pin a version, such as v000003."
    )

    @model_validator(mode="after")
    def _lanes_divide(self) -> LoaderSection:
        if self.lanes and self.global_batch % self.lanes:
            raise ValueError(f"{self.lanes} lanes do not divide a batch of {self.global_batch}")
        return self
