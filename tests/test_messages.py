"""Errors as people read them: one clear line of what, where and what to do."""

import ast
import inspect
import pickle
from pathlib import Path

import pytest

import geodata
from geodata import errors
from geodata.errors import ConfigError, GeodataError, StoreError


@pytest.mark.parametrize(
    ("message", "fields", "hint", "told"),
    [
        ("no shard", {}, None, "no shard"),
        ("no shard", {"file": "a"}, "List them", "no shard (file a). List them"),
        ("no shard.", {}, "List them", "no shard. List them"),
        ("it has no dataset:", {"file": "a"}, "Name it", "it has no dataset (file a). Name it"),
        ("which one?", {}, "Name it", "which one? Name it"),
        ("one, two, …", {}, "Name it", "one, two, … Name it"),
        ("a\n  b\r\n", {"file": "x\ny\x1b[2J"}, "c\nd", "a b (file x y\\x1b[2J). c d"),
        ("bad", {"row": 3, "file": "a", "column": 4, "line": 2}, None, None),
    ],
)
def test_an_error_is_one_line(message, fields, hint, told):
    error = ConfigError(message, hint=hint, **fields)
    told = told or "bad (file a, line 2, row 3, column 4)"
    assert str(error) == str(pickle.loads(pickle.dumps(error))) == told


def test_an_option_that_is_not_for_something_names_what_it_is_for():
    error = ConfigError.not_for("--parts", "csv", ["function"])
    assert str(error) == "--parts is not for csv. It is for function"
    assert error.exit_code == 2


KINDS = {
    name
    for name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, GeodataError)
}


def texts(node):
    """Yield the texts that an expression may be, those of values left out."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(p.value if isinstance(p, ast.Constant) else "X" for p in node.values)
    elif isinstance(node, ast.IfExp):
        yield from texts(node.body)
        yield from texts(node.orelse)


def raised():
    """Yield file and line, message and hint of each error that is made in the package."""
    root = Path(geodata.__file__).parent
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) in KINDS and node.args:
                hints = [word.value for word in node.keywords if word.arg == "hint"]
                place = f"{path.relative_to(root)}:{node.lineno}"
                yield place, list(texts(node.args[0])), [t for hint in hints for t in texts(hint)]


def test_no_message_ends_or_breaks_so_that_a_hint_cannot_follow():
    found = list(raised())
    assert len(found) > 300
    bad = []
    for place, messages, hints in found:
        bad += [(place, text) for text in messages if text.endswith((".", ":", ",", " ", "!"))]
        bad += [(place, text) for text in hints if text.endswith((".", ":", ",", " "))]
        bad += [(place, text) for text in [*messages, *hints] if "\n" in text or ".." in text]
    assert bad == []


def test_an_error_of_the_store_says_the_same_through_processes():
    error = pickle.loads(pickle.dumps(StoreError("cannot write:", file="a", hint="Make room")))
    assert str(error) == "cannot write (file a). Make room"
