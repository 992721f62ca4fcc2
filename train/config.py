"""The `train:` section of the config file, typed and frozen."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    """Base of all parts: unknown keys are errors, values cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelSection(Section):
    """A model by its transformers config: the keys themselves, or the path of a config.json.

    What the loader knows (the vocabulary, the special tokens, the classes, the size of the images)
    comes from it unless it is given.
    """

    kind: Literal["gpt2", "bert", "resnet", "vit"] = Field(
        "gpt2",
        description="gpt2 predicts next tokens, bert masked ones; resnet and vit classify images.",
    )
    config: dict[str, Any] | str = {}
    label: str | None = Field(
        None, description="The column of the classes, where there are several such columns."
    )
    norm: Literal["batch", "frozen", "group"] = Field(
        "batch",
        description="Batch normalisation as it is, with fixed statistics and factors, or replaced "
        "by groups of channels. With `batch`, losses depend on how a batch is split over processes "
        "and micro-batches.",
    )


Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSection(Section):
    """AdamW; biases, norms and other vectors are not decayed."""

    lr: float = Field(3e-4, gt=0)
    weight_decay: float = Field(0.1, ge=0)
    betas: tuple[Decay, Decay] = (0.9, 0.95)


class ScheduleSection(Section):
    """Linear warm-up, then half a cosine down to `min_lr_ratio` of the rate."""

    warmup_steps: int = Field(100, ge=0)
    min_lr_ratio: float = Field(0.1, ge=0, le=1)


Triple = tuple[float, float, float]
Positive = Annotated[float, Field(gt=0)]


class ImageSection(Section):
    """Means and deviations of red, green and blue, of values in 0…1, by which images are scaled.

    The defaults are those of ImageNet's training images as fb.resnet.torch computed them (Gross
    and Wilber 2016), which most published image models use.
    """

    mean: Triple = (0.485, 0.456, 0.406)
    std: tuple[Positive, Positive, Positive] = (0.229, 0.224, 0.225)


class EvalSection(Section):
    """Evaluation on the held-out split: before the first step, every `every` steps, at the end."""

    every: int | None = Field(None, ge=1)
    steps: int | None = Field(None, ge=1, description="At most this many batches.")


class CheckpointSection(Section):
    """When to save beside the end and a stop on notice, and how many to keep."""

    every: int | None = Field(None, ge=1, description="Steps.")
    minutes: float | None = Field(120.0, gt=0)
    keep: int = Field(3, ge=1)


class TrainConfig(Section):
    """Everything the trainer is told."""

    run_dir: str | None = Field(None, description="Default: runs/ and the dataset's name.")
    steps: int | None = Field(None, ge=1, description="Optimizer steps of the whole run.")
    epochs: int | None = Field(None, ge=1, description="In place of `steps`; default 1.")
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="auto: bf16 on a GPU that has it, else fp16 there; fp32 elsewhere."
    )
    max_skips: int = Field(
        20, ge=1, description="End the run after so many steps in a row that overflow fp16."
    )
    model: ModelSection = ModelSection()
    image: ImageSection = ImageSection()
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="Share of a target spread over all classes, in training only."
    )
    optimizer: OptimizerSection = OptimizerSection()
    schedule: ScheduleSection = ScheduleSection()
    clip: float | None = Field(1.0, gt=0, description="Largest global norm of the gradients.")
    accumulation: int = Field(1, ge=1, description="Micro-batches that a rank's batch is cut into.")
    eval: EvalSection = EvalSection()
    checkpoint: CheckpointSection = CheckpointSection()
    log_every: int = Field(10, ge=1)
    timeout: float = Field(600.0, gt=0, description="Seconds a collective may wait.")

    @model_validator(mode="after")
    def _one_length(self) -> TrainConfig:
        if self.steps is not None and self.epochs is not None:
            raise ValueError("give steps or epochs, not both")
        return self


MEANING = (
    "seed",
    "precision",
    "model",
    "image",
    "label_smoothing",
    "optimizer",
    "schedule",
    "clip",
)
"""Parts that a run cannot change on resume without becoming another run."""
