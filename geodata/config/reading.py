"""Reads the YAML file strictly, and explains the first mistake in one line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from geodata.config.whole import GeodataConfig
from geodata.errors import ConfigError

DEFAULT_FILE = "geodata.yaml"

Model = TypeVar("Model", bound=BaseModel)

_UNREADABLE = (ValueError, TypeError, AttributeError, OverflowError, RecursionError)
"""What PyYAML raises beside its own errors."""


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> GeodataConfig:
    """Read and validate a config file; `overrides` are `section.key=value`, values in YAML."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(
            "no config file", file=str(path), hint="geodata init writes one to start from"
        ) from error
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ConfigError(f"the config cannot be read: {why}", file=str(path)) from error
    data = parse_yaml(text, str(path)) or {}
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

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of a node; an error says where one stands that cannot be read."""
        try:
            return super().construct_object(node, deep)
        except _UNREADABLE as error:
            raise yaml.MarkedYAMLError(
                problem="a value that cannot be read", problem_mark=node.start_mark
            ) from error

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


def parse_yaml(text: str, name: str) -> Any:
    """Return what a YAML document says; ConfigError naming line and column, from 1, if it cannot.

    `name` is that of the file, or of the argument.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.reader.ReaderError as error:
        start = text.rfind("\n", 0, error.position) + 1
        place = text.count("\n", 0, start) + 1, error.position - start + 1
        raise _invalid("a character that YAML does not allow", name, *place) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = (mark.line + 1, mark.column + 1) if mark else (None, None)
        raise _invalid(error.problem or "it cannot be read", name, *at) from error
    except _UNREADABLE as error:
        raise _invalid("it cannot be read", name, None, None) from error


def _invalid(problem: str, name: str, line: int | None, column: int | None) -> ConfigError:
    return ConfigError(f"not valid YAML: {problem}", file=name, line=line, column=column)


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
    target[keys[-1]] = parse_yaml(value, override) if value else None


def validate(model: type[Model], data: Mapping[str, Any], where: str = "") -> Model:
    """Return `data` as a `model`; the first mistake is a ConfigError of one line."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_explain(model, error.errors()[0]), file=where or None) from error


def parse_flow(model: type[Model], text: str, where: str) -> Model:
    """Return the `model` that an argument of YAML, such as {field: lang, equals: de}, says."""
    data = parse_yaml(text, where)
    if not isinstance(data, dict):
        raise ConfigError(f"'{text}' is no mapping", file=where, hint="Write {name: value, …}")
    return validate(model, data, where)


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
