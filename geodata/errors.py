"""The error tree. Every error a user can meet is one of these.

    GeodataError                     exit 1: the data is wrong
    ├ ConfigError(ValueError)             2: the user's mistake
    ├ SchemaError(ValueError)             1
    ├ CorruptShard                        1
    ├ FormatVersionError                  1
    ├ ManifestError                       1
    ├ CommitConflict                      4: a retry may help
    ├ OrderMismatch                       2
    ├ MissingExtra(ImportError)           2
    ├ TooManyBadRecords                   1
    ├ StoreError                          4
    │ ├ ObjectNotFound(FileNotFoundError) 1
    │ └ TransferError                     4 when retryable, else 1
    └ PolicyError                         3: refused by policy
      ├ PolicyDenied(PermissionError)     3
      └ AuditError                        4

Beside them: 75 stopped on notice and resumable, 130 interrupted. An error names what went wrong,
where (file, shard, row, key, region: never a record's content), and what to do (`hint`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

STOPPED = 75
INTERRUPTED = 130

_FIELDS = ("file", "line", "shard", "unit", "row", "key", "region", "column")
_BREAK = re.compile(r"\s*[\r\n]\s*")


class GeodataError(Exception):
    """Base of all errors that a user can cause or meet."""

    exit_code: int = 1

    def __init__(self, message: str, *, hint: str | None = None, **fields: str | int | None):
        unknown = set(fields) - set(_FIELDS)
        if unknown:
            raise TypeError(f"unknown error fields {sorted(unknown)}")
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.fields: dict[str, str | int] = {k: v for k, v in fields.items() if v is not None}

    def __str__(self) -> str:
        where = ", ".join(f"{name} {self.fields[name]}" for name in _FIELDS if name in self.fields)
        text = self.message.rstrip(" .:;,")
        text = _printable(f"{text} ({where})" if where else text)
        joint = " " if text.endswith(("?", "!", "…")) else ". "
        return f"{text}{joint}{_printable(self.hint)}" if self.hint else text

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.hint, self.fields, self._extra()))

    def _extra(self) -> dict[str, Any]:
        return {}

    def to_json(self) -> dict[str, Any]:
        """Return the error as one JSON object: `error`, `message`, `hint` and the fields."""
        kind = type(self).__name__
        return {"error": kind, "message": self.message, "hint": self.hint, **self.fields}


def _printable(text: str) -> str:
    """Return a text as one line that leaves a terminal as it is."""
    line = _BREAK.sub(" ", text)
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def _rebuild(
    kind: type[GeodataError], message: str, hint: str | None, fields: Any, extra: Any
) -> GeodataError:
    return kind(message, hint=hint, **fields, **extra)


class ConfigError(GeodataError, ValueError):
    """A config value or an argument is wrong."""

    exit_code = 2

    @classmethod
    def not_for(cls, option: str, given: str, known: Sequence[str]) -> ConfigError:
        """Return the error of an option that nothing of the `given` kind uses, only the `known`."""
        return cls(f"{option} is not for {given}", hint=f"It is for {', '.join(known)}")


class SchemaError(GeodataError, ValueError):
    """Values do not fit the schema, or the schema cannot be stored."""


class CorruptShard(GeodataError):
    """A shard, its index or its sidecar does not hold what its manifest promises."""


class FormatVersionError(GeodataError):
    """A file was written by a newer release."""


class ManifestError(GeodataError):
    """An index or list is missing, malformed or contradicts itself."""


class CommitConflict(GeodataError):
    """Another writer committed this version first."""

    exit_code = 4


class OrderMismatch(GeodataError):
    """A saved state belongs to another order; `message` names the field that differs."""

    exit_code = 2


class MissingExtra(GeodataError, ImportError):
    """A package behind an extra is not installed."""

    exit_code = 2

    @classmethod
    def of(cls, package: str, extra: str) -> MissingExtra:
        """Return the error that names the command which installs `package`."""
        return cls(f"{package} is not installed", hint=f'pip install "geodata-train[{extra}]"')


class TooManyBadRecords(GeodataError):
    """More records were rejected than `--max-errors` or `--on-error fail` allows."""


class StoreError(GeodataError):
    """A store could not do what was asked."""

    exit_code = 4


class ObjectNotFound(StoreError, FileNotFoundError):
    """There is no object under this key."""

    exit_code = 1


class TransferError(StoreError):
    """A copy failed; `retryable` says whether a later try may succeed."""

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = True,
        hint: str | None = None,
        **fields: str | int | None,
    ):
        super().__init__(message, hint=hint, **fields)
        self.retryable = retryable
        self.exit_code = 4 if retryable else 1

    def _extra(self) -> dict[str, Any]:
        return {"retryable": self.retryable}


class PolicyError(GeodataError):
    """The policy, or the log that must witness it, stopped an action."""

    exit_code = 3


class PolicyDenied(PolicyError, PermissionError):
    """The gate refused a movement."""


class AuditError(PolicyError):
    """The audit log cannot be written or does not verify; nothing moves."""

    exit_code = 4
