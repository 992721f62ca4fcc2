"""Where a sample tells the schema, the dataset is that of a schema told by all records."""

import json
import shutil
from unittest import mock

import pyarrow as pa
import pytest
from pipeline import kill_everywhere

import geodata
from geodata.catalog import Catalog, locate
from geodata.errors import SchemaError, TooManyBadRecords
from geodata.jobs import planning
from geodata.jobs.planning import Planner
from geodata.schema import data_fields, from_json
from geodata.tags import STAGING

RECORDS = 20_000
LATE = 12_345
"""A record in a piece that is only counted."""


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Line JSON of 40 pieces, of which 3 are the sample."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(planning, "PIECE_BYTES", 64 << 10)
    return tmp_path


def record(n):
    return {"n": n, "ratio": n / 7, "text": f"record {n} " * 8, "deep": {"a": [n]}, "no": None}


def write(root, *changes):
    """Write the records, but lines that are given as (number, line)."""
    lines = [json.dumps(record(n)) for n in range(RECORDS)]
    for number, line in changes:
        lines[number] = line if isinstance(line, str) else json.dumps({**record(number), **line})
    (root / "in.jsonl").write_text("\n".join(lines), newline="")


def convert(root, dest, **options):
    """Convert; return the report, the lines of the shards, and how often it was planned."""
    with mock.patch.object(Planner, "plan", autospec=True, side_effect=Planner.plan) as plan:
        options = {"workers": 1, "shard_size": 400_000, **options}
        report = geodata.convert(root / "in.jsonl", root / dest, **options)
    catalog = Catalog.at(locate(str(root / dest), None), "test")
    shards = [shard.to_line() for shard in catalog.shards(catalog.index(), STAGING)]
    return report, catalog.index().schema_, shards, [c.kwargs["sampled"] for c in plan.mock_calls]


def whole(root, **options):
    """Return what a conversion makes that looks at every record before."""
    with mock.patch.object(Planner, "samples", False):
        *made, planned = convert(root, "whole", **options)
    assert planned == [False]
    return made


def test_a_schema_that_holds_all_is_found_in_a_sample(corpus):
    write(corpus, (LATE, ""), (LATE + 1, " \t"), (LATE + 2, "{broken"), (700, "[1]\r"))
    report, *made, planned = convert(corpus, "out", on_error="skip")
    assert planned == [True]
    expected, *others = whole(corpus, on_error="skip")
    assert made == others
    assert (report.records_in, report.rejected) == (RECORDS - 2, 2)
    assert report.reasons == expected.reasons


@pytest.mark.parametrize(
    ("late", "column"),
    [
        ({"more": True}, pa.field("more", pa.bool_())),
        ({"n": 1 << 63}, pa.field("n", pa.uint64())),
        ({"n": 0.5}, pa.field("n", pa.float64())),
        ({"no": "text"}, pa.field("no", pa.string())),
        ({"deep": {"a": [1], "b": 2}}, None),
        ({"deep": {"a": [[]]}, "no": []}, None),
        ({"text": None}, pa.field("text", pa.string())),
        ({"ratio": 3}, pa.field("ratio", pa.float64())),
        ({"ratio": -3}, pa.field("ratio", pa.float64())),
    ],
    ids=str,
)
def test_what_the_sample_did_not_show_is_found(corpus, late, column):
    write(corpus, (LATE, late), (LATE + 3000, "{broken"))
    options = {"on_error": "skip"}
    report, *made, planned = convert(corpus, "out", **options)
    expected, *others = whole(corpus, **options)
    assert made == others
    assert (report.records_out, report.reasons) == (expected.records_out, expected.reasons)
    if column is not None:
        assert column in data_fields(from_json(made[0]))
        held = column.name in ("text", "ratio")
        assert planned == ([True] if held else [True, False])


@pytest.mark.parametrize("late", [{"text": 5}, {"n": {}}, {"ratio": (1 << 53) + 1}], ids=str)
def test_a_conflict_is_told_as_if_all_had_been_seen(corpus, late):
    write(corpus, (LATE, late))
    with pytest.raises(SchemaError) as caught:
        convert(corpus, "out")
    with pytest.raises(SchemaError) as expected:
        whole(corpus)
    assert str(caught.value) == str(expected.value)
    assert caught.value.fields["row"] == LATE + 1


def test_the_first_bad_line_ends_a_conversion_that_may_not_skip(corpus):
    write(corpus, (LATE, "{broken"))
    with pytest.raises(TooManyBadRecords, match=f"in.jsonl, row {LATE + 1}"):
        convert(corpus, "out")


@pytest.mark.parametrize("options", [{"dedupe": True}, {"workers": 2}], ids=str)
def test_workers_and_repeats_change_nothing(corpus, options):
    write(corpus, (LATE, {"more": 1}))
    _, *made, planned = convert(corpus, "out", **options)
    assert planned == ([False] if "dedupe" in options else [True, False])
    assert made == whole(corpus)[1:]


def test_a_conversion_that_was_killed_after_a_misfit_goes_on(corpus):
    write(corpus, (LATE, {"more": 1}))
    expected = whole(corpus)[1:]

    def converted(root):
        return convert(root, "out")[1:3]

    def check():
        assert list(converted(corpus)) == expected
        shutil.rmtree(corpus / "out")

    assert kill_everywhere(corpus, converted, check, step=11) > 20
