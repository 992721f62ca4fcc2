"""Appending to a classified dataset: new shards by the same rules, every record once."""

import json
import multiprocessing
import shutil
from collections import Counter

import pytest
from append_cases import append, config_of, index_of, kill_appends, lines, verified
from PIL import Image
from pipeline import convert, read_posts, rows_of, shard
from posts import make_posts

import geodata
from geodata.catalog import Catalog, locate
from geodata.errors import ConfigError, SchemaError


@pytest.fixture
def posts(workspace):
    """A classified dataset of 60 posts, and 20 more."""
    make_posts(workspace / "posts.jsonl", count=60)
    make_posts(workspace / "more.jsonl", count=20, seed=5)
    convert(workspace)
    shard(workspace, shard_size=100_000)
    return workspace


def test_what_is_new_in_staging_is_classified_by_the_same_rules(posts):
    before = lines(posts)
    geodata.append(posts / "more.jsonl", posts / "data/raw", workers=1)
    report = append(posts, "data/raw")
    assert (report.records_in, report.records_out, report.records) == (20, 20, 80)
    assert sum(report.regions.values()) == 20
    assert (report.version, report.kind) == ("v000002", "staging")
    assert set(before) < set(lines(posts))
    homes = {"DE": "eu-central", "FR": "eu-central", "NO": "eu-central", "US": "us-east"}
    homes |= {"CA": "us-east", "JP": "ap-northeast", "KR": "ap-northeast"}
    more = [
        json.loads(line) for line in (posts / "more.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    expected = Counter(homes.get(post["country"], "eu-central") for post in more)
    assert report.regions == dict(expected)
    rows = {row["__key__"]: row for row in rows_of(posts)}
    assert len(rows) == 80 and all("author_email" not in row for row in rows.values())
    for number, post in enumerate(more, 1):
        row = rows[f"more.jsonl#{number}"]
        assert row["text"] == post["text"]
        assert (row["__subject__"] is None) == (post["author_email"] is None)
    assert verified(posts)
    assert append(posts, "data/raw").unchanged
    assert not list((posts / "data/raw/.jobs").iterdir())


def test_a_rerun_of_shard_does_not_undo_it(posts):
    geodata.convert(posts / "more.jsonl", posts / "data/other", workers=1)
    assert append(posts, "data/other").records == 80
    again = shard(posts, shard_size=100_000)
    assert (again.unchanged, again.version) == (True, "v000002")
    with pytest.raises(ConfigError, match="appended there that this staging dataset has not"):
        shard(posts, shard_size=100_000, seed=3)
    geodata.append(posts / "more.jsonl", posts / "data/raw", workers=1)
    assert shard(posts, shard_size=100_000).records_out == 80


def test_a_raw_corpus_is_converted_on_its_way(posts):
    with (posts / "more.jsonl").open("a") as file:
        file.write("{broken\n")
    report = append(posts, "more.jsonl", on_error="skip")
    assert (report.records_in, report.records_out, report.rejected) == (21, 20, 1)
    assert report.kind == "jsonl" and len(rows_of(posts)) == 80
    assert not list((posts / "data/posts/.jobs").iterdir())
    assert append(posts, "more.jsonl", on_error="skip").unchanged
    assert verified(posts)


def test_a_staging_folder_takes_what_a_source_has_grown_by(posts):
    (posts / "days").mkdir()
    for name in ("a", "b"):
        make_posts(posts / f"days/{name}.jsonl", count=5, seed=ord(name))
    options = {"staging": posts / "data/days"}
    assert append(posts, "days", **options).records == 70
    make_posts(posts / "days/c.jsonl", count=5, seed=1)
    report = append(posts, "days", **options)
    assert (report.records_in, report.records) == (5, 75)
    assert append(posts, "days", **options).unchanged
    keys = [row["__key__"] for row in rows_of(posts)]
    assert len(keys) == len(set(keys)) == 75


def test_a_key_that_is_there_is_refused(posts):
    make_posts(posts / "elsewhere.jsonl", count=70, seed=3)
    with pytest.raises(SchemaError, match=r"two records have one key \(key posts\.jsonl#"):
        append(posts, "elsewhere.jsonl", source_id="posts.jsonl")
    assert index_of(posts).version == "v000001"
    report = append(posts, "elsewhere.jsonl")
    assert report.records == 130
    personal = [p for p in read_posts(posts) if p["author_email"] and p["country"] in ("US", "CA")]
    elsewhere = [p for p in read_posts(posts) if p["author_email"] and p["country"] in ("JP", "KR")]
    assert report.unchecked == len(personal) + len(elsewhere)


def test_records_that_do_not_fit_are_refused(posts):
    odd = {"text": "x", "country": "DE", "likes": "many", "author_email": None}
    (posts / "odd.jsonl").write_text(json.dumps(odd) + "\n")
    with pytest.raises(SchemaError, match=r"dataset holds int64, the source string.*column likes"):
        append(posts, "odd.jsonl")
    with pytest.raises(ConfigError, match="goes with a classified dataset"):
        append(posts, "more.jsonl", dataset=str(posts / "data/raw"), staging=posts / "x")
    with pytest.raises(ConfigError, match="converted already"):
        append(posts, "data/raw", provenance="origin")
    with pytest.raises(ConfigError, match="classified"):
        append(posts, "data/posts", dataset=str(posts / "data/posts"))


def writer(root, source, barrier):
    barrier.wait(60)
    append(root, source)


def test_two_writers_at_once_both_land(posts):
    make_posts(posts / "most.jsonl", count=20, seed=6)
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    sources = ("more.jsonl", "most.jsonl")
    writers = [context.Process(target=writer, args=(posts, s, barrier)) for s in sources]
    for process in writers:
        process.start()
    for process in writers:
        process.join(60)
    assert [process.exitcode for process in writers] == [0, 0]
    keys = [row["__key__"] for row in rows_of(posts)]
    assert len(keys) == len(set(keys)) == 100
    assert len(index_of(posts).report["sources"]) == 3


@pytest.mark.parametrize("converted", [True, False])
def test_killed_at_every_point_ends_as_if_undisturbed(posts, converted):
    config = (posts / "geodata.yaml").read_text().replace("[JP, KR]", "[JP, KR, US, CA]")
    (posts / "geodata.yaml").write_text(config.replace("us-east: [US, CA], ", ""))
    shutil.rmtree(posts / "data/raw")
    shutil.rmtree(posts / "data/posts")
    make_posts(posts / "posts.jsonl", count=12)
    convert(posts)
    shard(posts)
    shutil.copytree(posts / "data/posts", posts / "data/before")

    make_posts(posts / "more.jsonl", count=8, seed=5)
    source = "more.jsonl"
    if converted:
        geodata.convert(posts / "more.jsonl", posts / "data/other", workers=1)
        source = "data/other"

    def run(root):
        return append(root, source)

    assert run(posts).records == 20
    assert kill_appends(posts, run, step=2 if converted else 11) > 30


IMAGES = """
dataset: {name: posts, root: data/posts}
here: eu
regions: {eu: {jurisdiction: DE}}
tagging:
  region: {constant: eu}
  rules: [{when: {region: known}, tag: {data_category: NonPersonalData}}]
"""


def pictures(root, names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (3, 2), (len(name), 0, 0)).save(path)


def test_labels_of_another_staging_dataset_keep_their_names(workspace):
    (workspace / "geodata.yaml").write_text(IMAGES)
    pictures(workspace, ["zoo/bee/1.png", "zoo/cat/1.png"])
    geodata.convert(workspace / "zoo", workspace / "data/raw", workers=1)
    shard(workspace)
    pictures(workspace, ["farm/ant/1.png", "farm/cat/1.png", "farm/dog/1.png"])
    append(workspace, "farm")
    labels = index_of(workspace).labels["label"]
    assert labels == ["bee", "cat", "ant", "dog"]
    named = {row["__key__"]: labels[row["label"]] for row in rows_of(workspace)}
    assert all(key.split("/")[1] == name for key, name in named.items()) and len(named) == 5


def test_tokens_are_counted_as_they_were(workspace):
    make_posts(workspace / "posts.jsonl", count=30)
    make_posts(workspace / "more.jsonl", count=5, seed=5)
    convert(workspace)
    shard(workspace, count_tokens="text", tokenizer="bytes")
    append(workspace, "more.jsonl")
    catalog = Catalog.at(locate("posts", config_of(workspace)), "test")
    index = catalog.index()
    for region in index.regions:
        for item in catalog.shards(index, region):
            units = catalog.units(index, region, item)
            assert tuple(map(len, units.tokens)) == item.slots
