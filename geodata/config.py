"""The YAML file: one typed model per section, no behaviour beyond reading it.

Paths in the file are relative to the file's folder. `train:` passes through as an opaque mapping
that the trainer validates. An unknown key is refused with the nearest valid name.
"""

from __future__ import annotations

import datetime as dt
import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from geodata.errors import ConfigError
from geodata.tags import Category, check_jurisdiction, check_legal_basis, check_region

DEFAULT_FILE = "geodata.yaml"

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([KMGTP]i?)?B?\s*$", re.IGNORECASE)
_UNITS = {"K": 1, "M": 2, "G": 3, "T": 4, "P": 5}

Model = TypeVar("Model", bound=BaseModel)


def parse_size(text: str | int) -> int:
    """Return bytes of a size such as 256MiB, 2TB or 1048576; ValueError for anything else."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    if not isinstance(text, str):
        raise ValueError(f"{text} is no size; write it like 256MiB")
    match = _SIZE.match(text)
    if not match:
        raise ValueError(f"'{text}' is no size; write it like 256MiB")
    number, unit = match.groups()
    if not unit:
        return int(float(number))
    base = 1024 if unit.lower().endswith("i") else 1000
    return int(float(number) * base ** _UNITS[unit[0].upper()])


Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0)]


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DatasetSection(Section):
    """The dataset's name and its index root."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    root: str


class CacheSection(Section):
    """Tiers of a region's cache."""

    nvme: Path | None = Field(None, description="A folder on a fast local disk.")
    size: Size = Field(64 << 30, description="Upper bound of the folder, such as 2TiB.")


class RegionSection(Section):
    """A region: the country whose law holds there, and where its bytes lie."""

    jurisdiction: Annotated[
        str,
        BeforeValidator(check_jurisdiction),
        Field(pattern=r"^[A-Z]{2}$", description="ISO 3166-1 alpha-2 code."),
    ]
    store: str | None = Field(None, description="Where `push` sends the region's shards.")
    cache: CacheSection | None = None
    subject_key: Path | None = Field(None, description="The secret for pseudonyms of subjects.")


class Condition(Section):
    """A test of one record; all parts that are given must hold.

    `field` names a column (`__key__` too) to which `present`, `equals`, `in` and `matches` apply;
    `region: known | unknown` asks whether the record's region was found.
    """

    field: str | None = None
    present: bool | None = None
    equals: str | int | bool | None = None
    in_: list[str | int] | None = Field(None, alias="in")
    matches: str | None = Field(None, description="A regular expression found anywhere.")
    region: Literal["known", "unknown"] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Condition:
        tests = (self.present, self.equals, self.in_, self.matches)
        given = any(test is not None for test in tests)
        if given != (self.field is not None):
            raise ValueError("`field` goes with one of present, equals, in, matches")
        if not given and self.region is None:
            raise ValueError("an empty condition; give `field` or `region`")
        if self.matches is not None:
            _check_pattern(self.matches)
        return self


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"'{pattern}' is no regular expression: {error}") from error


def _retention(text: str) -> str:
    number, _, unit = text.partition(" ")
    if not unit:
        dt.date.fromisoformat(text)
    elif int(number) > {"d": 365_000, "m": 12_000, "y": 1_000}[unit[0]]:
        raise ValueError(f"'{text}' is over a thousand years")
    return text


class TagValues(Section):
    """What a rule says of the records it matches, in the vocabulary of the W3C DPV."""

    data_category: Category = "PersonalData"
    special_categories: list[str] = []
    purposes: list[str] = []
    legal_basis: Annotated[str, BeforeValidator(check_legal_basis)] | None = None
    controller: str | None = Field(None, min_length=1)
    retention: Annotated[str, AfterValidator(_retention)] | None = Field(
        None,
        pattern=r"^(\d{1,6} (days?|months?|years?)|\d{4}-\d{2}-\d{2})$",
        description="24 months from the sharding, or a date; rounded to the earliest quarter.",
    )


class TagRule(Section):
    """Records for which `when` holds get `tag`; the first rule that matches decides."""

    when: Condition
    tag: TagValues


class RegionRule(Section):
    """Where a record's region comes from: a field, a pattern on the key, or a constant.

    `pattern` is a regular expression on `__key__`; its first group (or the whole match) is the
    value. `map` names for each region the values that belong to it; without it the value itself
    must be a region's name.
    """

    field: str | None = None
    pattern: str | None = None
    constant: str | None = None
    map: dict[str, list[str]] | None = None

    @model_validator(mode="after")
    def _one(self) -> RegionRule:
        if sum(x is not None for x in (self.field, self.pattern, self.constant)) != 1:
            raise ValueError("give exactly one of field, pattern, constant")
        if self.pattern is not None:
            _check_pattern(self.pattern)
        owner: dict[str, str] = {}
        for region, values in (self.map or {}).items():
            for value in values:
                if owner.setdefault(value, region) != region:
                    raise ValueError(f"'{value}' belongs to both {owner[value]} and {region}")
        return self


def _long_form(subject: Any) -> Any:
    return {"field": subject} if isinstance(subject, str) else subject


class SubjectRule(Section):
    """The field that identifies the data subject; it becomes a keyed pseudonym.

    The field itself is dropped from the shards unless `keep` is set.
    """

    field: str = Field(pattern=r"^(_?[^_].*|_)$", description="Not a system column.")
    keep: bool = False


class TaggingSection(Section):
    """How records get their region and their tag."""

    region: RegionRule
    unknown: str | None = Field(None, description="Region of records whose own is not found.")
    rules: list[TagRule] = []
    subject: Annotated[SubjectRule, BeforeValidator(_long_form)] | None = None


class SplitSection(Section):
    """The held-out part: records chosen by a hash of their key."""

    heldout: float = Field(0.0, ge=0, lt=1, description="Share of the records held out.")
    seed: int = 0


class TextSection(Section):
    """Text to tokens."""

    column: str = "text"
    tokenizer: str = Field("bytes", description="`bytes`, or a tokenizers JSON file.")
    length: int = Field(512, ge=8, description="Longest sequence in tokens; the rest is cropped.")
    crop: Literal["random", "head"] = Field(
        "random", description="Which part of a longer record: seeded by seed, epoch and sample."
    )


class ImageSection(Section):
    """Images to uint8 tensors of shape [3, size, size]."""

    column: str = "image"
    size: int = Field(224, ge=8)


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


class AuditSection(Section):
    """Where the audit log lies."""

    dir: Path = Path("audit")


class GeodataConfig(Section):
    """The whole file."""

    dataset: DatasetSection | None = None
    here: str | None = Field(None, description="The region this machine stands in.")
    regions: dict[str, RegionSection] = {}
    tagging: TaggingSection | None = None
    loader: LoaderSection = LoaderSection()
    audit: AuditSection = AuditSection()
    train: dict[str, Any] = Field({}, description="Read by the trainer.")
    _base: Path = PrivateAttr(Path())

    @model_validator(mode="after")
    def _regions_exist(self) -> GeodataConfig:
        for name in self.regions:
            check_region(name)
        named: list[tuple[str, str | None]] = [("here", self.here)]
        if self.tagging:
            named.append(("tagging.unknown", self.tagging.unknown))
            named.append(("tagging.region.constant", self.tagging.region.constant))
            named.extend(("tagging.region.map", name) for name in self.tagging.region.map or ())
        for where, region in named:
            if region is not None and region not in self.regions:
                raise ValueError(f"{where}: '{region}' is not one of the regions")
        return self

    def resolve(self, path: str | Path) -> Path:
        """Return a path of the file as an absolute path."""
        return (self._base / Path(path).expanduser()).absolute()


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> GeodataConfig:
    """Read and validate a config file; `overrides` are `section.key=value`, values in YAML."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(
            "no config file", file=str(path), hint="geodata init writes one to start from"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot be read: {error}", file=repr(str(path))) from error
    data = _parse(text, str(path)) or {}
    if not isinstance(data, dict):
        raise ConfigError("the config must be a mapping of sections", file=str(path))
    for override in overrides:
        _override(data, override)
    config = validate(GeodataConfig, data, where=str(path))
    config._base = Path(path).absolute().parent
    return config


class _Loader(yaml.SafeLoader):
    """YAML whose only booleans are true and false (NO is Norway), and whose dates stay text.

    A key that stands twice in a mapping is an error: the second would silently replace the first.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of a node whose keys are all different."""
        seen: set[Any] = set()
        for key_node, _value in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"'{key}' stands twice", problem_mark=key_node.start_mark
                )
            seen.add(key if isinstance(key, str) else id(key_node))
        return super().construct_mapping(node, deep)


_BOOL, _TIME = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag not in (_BOOL, _TIME)]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile("^([Tt]rue|[Ff]alse|TRUE|FALSE)$"), list("tTfF"))


def _parse(text: str, name: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError("not valid YAML: a value that cannot be read", file=name) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        row = mark.line + 1 if mark else None
        problem = getattr(error, "problem", None) or "not valid YAML"
        raise ConfigError(f"not valid YAML: {problem}", file=name, row=row) from error


def _override(data: dict[str, Any], override: str) -> None:
    path, equals, value = override.partition("=")
    keys = path.split(".")
    if not equals or not all(keys):
        raise ConfigError(f"'{override}' is no override", hint="Write section.key=value")
    target = data
    for key in keys[:-1]:
        inner = target.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"'{override}': {key} is no section")
        target = inner
    target[keys[-1]] = _parse(value, override) if value else None


def validate(model: type[Model], data: Mapping[str, Any], where: str = "") -> Model:
    """Return `data` as a `model`; the first mistake is a ConfigError of one line."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_explain(model, error.errors()[0]), file=where or None) from error


def _explain(model: type[BaseModel], error: Any) -> str:
    path = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(error["loc"][-1]), _keys_at(model, error["loc"]), 1)
        return f"{path}: no such key" + (f"; did you mean '{near[0]}'?" if near else "")
    message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return f"{path}: {message}" if path else message


def _keys_at(model: type[BaseModel], loc: tuple[str | int, ...]) -> list[str]:
    """Return the valid keys beside the last element of `loc`, following the nested models."""
    here: Any = model
    for part in loc[:-1]:
        if isinstance(here, type) and issubclass(here, BaseModel) and part in here.model_fields:
            here = _model_in(here.model_fields[part].annotation)
    if not (isinstance(here, type) and issubclass(here, BaseModel)):
        return []
    return [field.alias or name for name, field in here.model_fields.items()]


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = [_model_in(arg) for arg in getattr(annotation, "__args__", ())]
    return next((model for model in found if model is not None), None)
