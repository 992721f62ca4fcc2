"""A user's function as a source: its keys and parts, what it raises, and its code."""

import sys

import pyarrow as pa
import pytest
from function_modules import module_here
from source_reading import read_all

from geodata.errors import ConfigError, GeodataError, SchemaError
from geodata.schema import dataset_schema, origin_field
from geodata.sources import Reading, open_source


@pytest.fixture
def source(tmp_path, monkeypatch):
    with module_here(tmp_path, monkeypatch) as make:
        yield make


def test_records_may_name_themselves(source):
    code = "def rows():\n    yield {'__key__': 'ö/1', 'a': 1}\n    yield {'a': 2, '__key__': None}"
    assert list(read_all(source(code, source_id="mine")).records) == ["ö/1", "mine#2"]


@pytest.mark.parametrize("key", ["7", "''", "b'x'"])
def test_a_key_is_a_string(source, key):
    read = read_all(source(f"def rows():\n    yield {{'__key__': {key}}}"))
    assert read.reasons() == [(1, "'__key__' is not a string, or empty")]


def test_a_key_given_twice_is_named(source):
    code = "def rows():\n    for key in 'aba':\n        yield {'__key__': key}"
    with pytest.raises(SchemaError, match=r"two records have one key \(.*row 3, key a\)"):
        read_all(source(code))


PARTED = """
def rows(part, parts):
    for n in range(part, 10, parts):
        yield {"n": n, "part": part if part != 2 else 0.5}
"""


def test_parts_are_read_apart(source):
    read = read_all(source(PARTED, reading=Reading(parts=3)))
    assert list(read.records)[:5] == ["rows/0#1", "rows/0#2", "rows/0#3", "rows/0#4", "rows/1#1"]
    assert sorted(read.column("n")) == list(range(10))
    assert read.schema.field("part").type == pa.float64()
    whole = read_all(source(PARTED))
    assert list(whole.records) == [f"rows#{n}" for n in range(1, 11)]


def test_only_a_function_with_parts_is_cut(source):
    with pytest.raises(ConfigError, match="does not take `part` and `parts`"):
        source("def rows():\n    yield {}", reading=Reading(parts=2))


def test_where_a_record_stood_is_told(source):
    opened = source(PARTED, reading=Reading(parts=5))
    columns = opened.merge([opened.scan(piece) for piece in opened.pieces(1)])
    read = read_all(opened, schema=dataset_schema(columns.append(origin_field("origin"))))
    assert read.records["rows/4#2"]["origin"] == {"file": f"{opened.name} part 4", "row": 2}


COUNTING = "import itertools\nseen = itertools.count()\ndef rows():\n    "
TWICE = [
    COUNTING + "yield {'a': next(seen)}",
    "found = iter([{'a': 1}])\ndef rows():\n    return found",
    "import numpy as np\ndef rows():\n    yield {'a': np.random.default_rng().random(3)}",
    COUNTING + "yield {'a': bytes([next(seen)])}",
    COUNTING + "yield {'__key__': str(next(seen))}",
]


@pytest.mark.parametrize("code", TWICE)
def test_other_records_at_the_second_call_are_an_error(source, code):
    with pytest.raises(GeodataError, match=r"did not yield the same records twice .* Sort what"):
        read_all(source(code))


def test_what_the_function_raises_is_told_in_one_line(source):
    code = "def rows():\n    yield {'a': 1}\n    raise KeyError('two\\nlines')"
    with pytest.raises(GeodataError) as caught:
        read_all(source(code))
    assert caught.value.message == "the function raised KeyError: 'two\\nlines'"
    assert caught.value.fields["row"] == 2
    assert caught.value.exit_code == 1
    assert isinstance(caught.value.__cause__, KeyError)


MISTAKES = [
    ("rows = 3", "the module has no function 'rows'"),
    ("def rows(x):\n    yield {}", "cannot be called: missing a required argument: 'x'"),
    ("def rows(part):\n    yield {}", "cannot be called: missing a required argument: 'part'"),
    ("1 / 0", "the module cannot be imported: ZeroDivisionError: division by zero"),
    ("import sys\nsys.exit(3)", "the module cannot be imported: SystemExit: 3"),
    ("import no_such_module", "the module cannot be imported: ModuleNotFoundError"),
    ("def rows(:", "the module cannot be imported: SyntaxError"),
]


@pytest.mark.parametrize(("code", "message"), MISTAKES)
def test_a_function_that_cannot_be_called_is_the_users_mistake(source, code, message):
    with pytest.raises(ConfigError) as caught:
        source(code)
    assert message in caught.value.message


def test_a_function_that_gives_nothing_to_iterate_over(source):
    with pytest.raises(ConfigError, match="returned NoneType, nothing to iterate over"):
        read_all(source("def rows():\n    pass"))


def test_a_name_that_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("rows", "mod:", ":rows", "no_such_module_here:rows"):
        with pytest.raises(ConfigError, match=r"names no function|cannot be imported"):
            open_source(name, kind="function")


def test_no_records_are_an_empty_corpus(source):
    read = read_all(source("def rows():\n    return []"))
    assert (read.records, list(read.schema)) == ({}, [])


def test_the_code_is_listed_and_an_edit_takes_effect(source, tmp_path):
    first = source("def rows():\n    yield {'a': 1}")
    assert [file.name for file in first.files] == [f"{first.name.partition(':')[0]}.py"]
    second = source("def rows():\n    yield {'a': 22}")
    assert second.files != first.files
    assert read_all(second).column("a") == [22]


def test_all_code_of_a_package_is_listed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    package = tmp_path / "listed_package"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "deep" / "helper.py").write_text("N = 1")
    (package / "corpus.py").write_text("def rows():\n    yield {'a': 1}")
    files = open_source("listed_package.corpus:rows").files
    assert [file.name for file in files] == [
        "listed_package/__init__.py",
        "listed_package/corpus.py",
        "listed_package/deep/helper.py",
    ]


def test_batches_are_bounded(source):
    code = "def rows():\n    for n in range(30):\n        yield {'a': bytes([n]) * (1 << 20)}"
    read = read_all(source(code))
    assert [len(value) for value in read.column("a")] == [1 << 20] * 30
    assert len(read.batches) > 5
