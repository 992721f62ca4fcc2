"""The way of the data from raw records to shards: complete and exact."""

import base64
import gc
import json
import os
import shutil
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import webdataset
from pipeline import BAD, convert, digests, read_posts, rows_of, shard

import geodata
from geodata.config import load_config
from geodata.errors import ConfigError, SchemaError, TooManyBadRecords
from geodata.manifest import Version
from geodata.tags import STAGING


@pytest.mark.parametrize("form", ["parquet", "webdataset"])
def test_every_record_arrives_exactly_once_and_unchanged(workspace, form):
    posts = read_posts(workspace)
    done = convert(workspace, format=form)
    assert (done.records_in, done.records_out, done.rejected) == (300, 300, 0)
    assert done.shards > 1
    report = shard(workspace)
    assert report.records_in == report.records_out == 300
    assert geodata.verify("posts", config=load_config(workspace / "geodata.yaml"), workers=1).ok
    if form == "webdataset":
        return
    rows = rows_of(workspace)
    by_key = {row["__key__"]: row for row in rows}
    assert len(by_key) == 300
    for number, post in enumerate(posts, 1):
        row = by_key[f"posts.jsonl#{number}"]
        assert "author_email" not in row
        assert (row["__subject__"] is None) == (post["author_email"] is None)
        for name in ("text", "country", "score", "likes", "tags"):
            assert row[name] == post[name]


def test_regions_tags_and_pseudonyms_follow_the_rules(workspace):
    posts = read_posts(workspace)
    convert(workspace)
    report = shard(workspace)
    homes = {
        "DE": "eu-central",
        "FR": "eu-central",
        "NO": "eu-central",
        "US": "us-east",
        "CA": "us-east",
        "JP": "ap-northeast",
        "KR": "ap-northeast",
    }
    expected = Counter(homes.get(post["country"], "eu-central") for post in posts)
    assert {name: t.records for name, t in report.regions.items()} == expected
    assert report.unknown_region == sum(post["country"] not in homes for post in posts)
    personal = sum(p["author_email"] is not None or p["country"] not in homes for p in posts)
    assert sum(t.personal for t in report.regions.values()) == personal

    shown = geodata.inspect("posts", config=load_config(workspace / "geodata.yaml"))
    tags = [t["tag"] for region in shown.regions.values() for t in region["tags"]]
    with_basis = [tag for tag in tags if tag.get("legal_basis")]
    assert len(with_basis) == 3
    assert {tag["retention_until"] for tag in with_basis} == {"2031-07-01"}
    assert {tuple(tag.get("applicable_law", ())) for tag in tags} == {
        ("eu-gdpr",),
        (),
        ("jp-appi",),
    }

    subjects = {}
    for row in rows_of(workspace):
        number = int(row["__key__"].partition("#")[2]) - 1
        home = homes.get(posts[number]["country"], "eu-central")
        if row["__subject__"]:
            subjects.setdefault((home, posts[number]["author_email"]), set()).add(
                row["__subject__"]
            )
    assert all(len(found) == 1 for found in subjects.values())
    assert len(set().union(*subjects.values())) == len(subjects)  # other regions, other pseudonyms
    keys = sorted((workspace / "keys").iterdir())
    assert [key.name for key in keys] == [f"{r}.subject.key" for r in sorted(report.regions)]
    assert all(key.stat().st_mode & 0o777 == 0o600 for key in keys)


def test_shards_are_bounded_and_shuffled(workspace):
    convert(workspace)
    report = shard(workspace, format="parquet", shard_size=6_000)
    assert report.shards > len(report.regions) * 2
    order = [row["__key__"] for row in rows_of(workspace)]
    numbers = [int(key.partition("#")[2]) for key in order]
    ascending = sum(a < b for a, b in zip(numbers, numbers[1:], strict=False))
    assert 0.3 < ascending / len(numbers) < 0.7
    shard(workspace, seed=1)
    assert [row["__key__"] for row in rows_of(workspace)] != order


def test_the_outcome_does_not_depend_on_workers(workspace):
    convert(workspace, workers=2)
    shard(workspace, workers=2)
    both = digests(workspace, STAGING), digests(workspace)
    for folder in ("data/raw", "data/posts"):
        (workspace / folder).rename(workspace / f"{folder}-2")
    convert(workspace, workers=1)
    shard(workspace, workers=1)
    assert (digests(workspace, STAGING), digests(workspace)) == both


def test_a_rerun_does_nothing_and_a_changed_source_makes_a_version(workspace):
    first = convert(workspace)
    again = convert(workspace)
    assert not first.unchanged and again.unchanged
    assert again.version == first.version == "v000001"
    assert shard(workspace).version == "v000001"
    assert shard(workspace).unchanged
    with (workspace / "posts.jsonl").open("a") as file:
        file.write('{"text": "one more", "country": "DE"}\n')
    assert convert(workspace).records_out == 301
    report = shard(workspace)
    assert (report.version, report.records_out) == ("v000002", 301)
    assert len(rows_of(workspace, "posts@v1")) == 300
    assert len(rows_of(workspace, "posts@v2")) == 301


def test_bad_records_fail_are_skipped_or_set_aside(workspace):
    (workspace / "posts.jsonl").write_text(BAD)
    with pytest.raises(TooManyBadRecords) as caught:
        convert(workspace)
    assert caught.value.fields["row"] == 2
    assert not list((workspace / "data/raw/metadata").glob("*")) or caught
    done = convert(workspace, on_error="skip")
    assert (done.records_in, done.records_out, done.rejected) == (3, 2, 1)
    done = convert(workspace, on_error="quarantine")
    assert done.rejected == 1
    (kept,) = (workspace / "data/raw/quarantine").rglob("*.jsonl")
    line = json.loads(kept.read_text())
    assert line["row"] == 2
    assert b"broken" in base64.b64decode(line["raw"])
    with pytest.raises(TooManyBadRecords, match="more than 0 records"):
        (workspace / "posts.jsonl").write_text(BAD + "\n")
        convert(workspace, on_error="skip", max_errors=0)


def test_a_type_conflict_names_both_types_file_and_row(workspace):
    (workspace / "posts.jsonl").write_text('{"n": null}\n{"n": 1}\n{"n": "x"}\n')
    with pytest.raises(SchemaError) as caught:
        convert(workspace)
    text = str(caught.value)
    assert all(part in text for part in ("int", "string", "posts.jsonl", "2", "3"))


def test_an_unmapped_region_needs_the_users_word(workspace):
    text = (workspace / "geodata.yaml").read_text().replace("  unknown: eu-central\n", "")
    (workspace / "geodata.yaml").write_text(text)
    convert(workspace)
    with pytest.raises(ConfigError, match="region of a record is not found.*tagging.unknown"):
        shard(workspace)


def test_a_wrong_field_names_the_nearest(workspace):
    text = (workspace / "geodata.yaml").read_text().replace("field: country", "field: contry")
    (workspace / "geodata.yaml").write_text(text)
    convert(workspace)
    with pytest.raises(ConfigError, match="no field 'contry'.*Did you mean 'country'"):
        shard(workspace)


def test_a_dry_run_writes_nothing(workspace):
    convert(workspace)
    before = {path for path in workspace.rglob("*") if "audit" not in path.parts}
    report = shard(workspace, dry_run=True)
    assert {path for path in workspace.rglob("*") if "audit" not in path.parts} == before
    written = shard(workspace)
    assert {n: t.records for n, t in report.regions.items()} == {
        n: t.records for n, t in written.regions.items() if t.records
    }
    assert report.shards == written.shards


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_stock_webdataset_reader_agrees(workspace):
    posts = read_posts(workspace)
    convert(workspace)
    shard(workspace, format="webdataset")
    listing = geodata.list_files("posts", config=load_config(workspace / "geodata.yaml"))
    found = {}
    for item in listing.shards:
        for sample in webdataset.WebDataset(item.file, shardshuffle=False, empty_check=False):
            record = json.loads(sample["json"])
            text = sample["txt"].decode() if "txt" in sample else None
            found[record["__key__"]] = (text, record["likes"])
    assert found == {
        f"posts.jsonl#{n}": (post["text"], post["likes"]) for n, post in enumerate(posts, 1)
    }
    gc.collect()  # that reader leaves files open


def test_verify_names_each_kind_of_damage(workspace):
    convert(workspace)
    shard(workspace, format="webdataset")
    config = load_config(workspace / "geodata.yaml")
    listing = geodata.list_files("posts", config=config)
    assert geodata.verify("posts", config=config, workers=1).ok
    files = [Path(s.file) for s in listing.shards]
    data = bytearray(files[0].read_bytes())
    data[700] ^= 1
    files[0].write_bytes(data)
    os.truncate(files[1], files[1].stat().st_size // 2)
    files[2].with_name(files[2].name + ".index").unlink()
    report = geodata.verify("posts", config=config, workers=1)
    told = {p["shard"]: [] for p in report.problems}
    for problem in report.problems:
        told[problem["shard"]].append(problem["problem"])
    assert not report.ok
    assert set(told) == {s.shard for s in listing.shards[:3]}
    assert any("does not match its digest" in p for p in told[listing.shards[0].shard])
    assert any("bytes, not" in p for p in told[listing.shards[1].shard])
    assert any("is missing" in p for p in told[listing.shards[2].shard])


def test_versions_parse():
    assert Version.parse("v3") == Version.parse("v000003") == Version(3)
    assert str(Version.parse("v3.r2")) == "v000003.r2"
    with pytest.raises(ConfigError, match="no version"):
        Version.parse("latest-ish")


def test_cuts_are_even_and_one_large_record_stands_alone():
    from geodata.partition.routing import BINS_LOG2, cut_bins

    even = dict.fromkeys(range(1000), 100)
    assert len(cut_bins(even, 10_000)) == 10
    assert len(cut_bins({**even, 500: 30_000}, 10_000)) == 11
    assert cut_bins({7: 5}, 1) == [1 << BINS_LOG2]


def test_verify_checks_the_index_too(workspace):
    convert(workspace)
    path = workspace / "data/raw/metadata/v000001.json"
    record = json.loads(path.read_text())
    record["regions"]["_staging"]["records"] = 7
    path.write_text(json.dumps(record))
    (found,) = geodata.verify(str(workspace / "data/raw"), workers=1).problems
    assert found["shard"] == "v000001" and "does not match its digest" in found["problem"]
    shutil.rmtree(path.parent / "copies")  # as of an earlier release
    report = geodata.verify(str(workspace / "data/raw"), workers=1)
    assert report.problems == [
        {"shard": "region _staging", "problem": "the index has other totals"}
    ]


def test_too_many_small_tags_are_refused(workspace):
    from geodata.jobs.sharding import _check_classes

    _check_classes({str(n): {"nbytes": 10} for n in range(64)}, 1 << 20)
    with pytest.raises(ConfigError, match="65 tag classes would shatter"):
        _check_classes({str(n): {"nbytes": 10} for n in range(65)}, 1 << 20)


def test_two_records_of_one_key_are_refused(workspace):
    import pyarrow as pa

    rows = {"__key__": ["a", "b"], "country": ["DE", "FR"]}
    (workspace / "twice").mkdir()
    for name in ("x", "y"):
        pq.write_table(pa.table(rows), workspace / f"twice/{name}.parquet")
    config = (workspace / "geodata.yaml").read_text().replace("  subject: author_email\n", "")
    config = config.replace("field: author_email, present: true", "field: country, present: false")
    (workspace / "geodata.yaml").write_text(config)
    geodata.convert(workspace / "twice", workspace / "data/raw", workers=1)
    with pytest.raises(SchemaError, match="two records have one key"):
        shard(workspace)


def test_a_destination_in_its_source_or_of_another_source_is_refused(workspace):
    (workspace / "texts").mkdir()
    (workspace / "texts/a.txt").write_text("a")
    with pytest.raises(ConfigError, match="destination lies in the source"):
        geodata.convert(workspace / "texts", workspace / "texts/out")
    convert(workspace)
    with pytest.raises(ConfigError, match=r"v000001 there was made of .*posts\.jsonl.*--replace"):
        geodata.convert(workspace / "texts", workspace / "data/raw", workers=1)
    done = geodata.convert(workspace / "texts", workspace / "data/raw", workers=1, replace=True)
    assert done.version == "v000002"


def test_a_destination_at_a_url_is_refused(workspace):
    for url in ("s3://bucket/x", "file:///tmp/x"):
        with pytest.raises(ConfigError, match="a folder of this machine, not at a URL"):
            geodata.convert(workspace / "posts.jsonl", url, workers=1)


@pytest.mark.parametrize("name", ["", "__key__", "__subject__", "__x__"])
def test_a_column_of_origins_needs_a_name_of_its_own(workspace, name):
    with pytest.raises(ConfigError, match=f"'{name}' is no name for a column"):
        geodata.convert(workspace / "posts.jsonl", workspace / "data/x", provenance=name, workers=1)


def test_tables_without_headers_are_refused(workspace):
    (workspace / "tables").mkdir()
    (workspace / "tables/a.tsv").write_text("DE\thello\nUS\tworld\n")
    (workspace / "tables/b.tsv").write_text("FR\tbonjour\nIT\tciao\n")
    with pytest.raises(SchemaError, match=r"no column of this file.*name its columns"):
        geodata.convert(workspace / "tables", workspace / "out", workers=1)


def test_the_bound_on_errors_holds_for_what_is_committed(workspace):
    (workspace / "posts.jsonl").write_text(BAD)
    convert(workspace, on_error="skip")
    with pytest.raises(TooManyBadRecords, match="more than 0"):
        convert(workspace, on_error="skip", max_errors=0)
    assert convert(workspace, on_error="skip", max_errors=1).unchanged


def test_every_type_can_be_looked_at(workspace):
    import datetime as dt

    import pyarrow as pa

    table = pa.table(
        {
            "ns": pa.array([1, None], pa.timestamp("ns")),
            "far": pa.array([10**15, 0], pa.timestamp("s", "UTC")),
            "took": pa.array([5, 6], pa.duration("ns")),
            "at": pa.array([7, 8], pa.time64("ns")),
            "day": pa.array([2**31 - 1, 0], pa.int32()).view(pa.date32()),
            "when": [dt.date(2026, 1, 1), None],
            "odd": [float("nan"), -0.0],
        }
    )
    pq.write_table(table, workspace / "x.parquet")
    for form in ("parquet", "webdataset"):
        geodata.convert(workspace / "x.parquet", workspace / form, format=form, workers=1)
        shown = geodata.inspect(str(workspace / form), head=2)
        assert len(json.loads(json.dumps(shown.to_json(), allow_nan=False))["head"]) == 2
