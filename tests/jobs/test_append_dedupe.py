"""Repeats of what a classified dataset holds are left out, as far as this region may read it."""

import io
import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from append_cases import append, config_of, index_of, kill_appends, lines, verified
from editing_cases import records
from PIL import Image
from pipeline import convert, read_posts, shard
from posts import make_posts

import geodata
from geodata.catalog import Catalog
from geodata.errors import SchemaError

HOMES = {"US": "us-east", "CA": "us-east", "JP": "ap-northeast", "KR": "ap-northeast"}


@pytest.fixture
def posts(workspace):
    """A classified dataset of 60 posts, and a file that repeats 20 of them beside 4 of its own."""
    make_posts(workspace / "posts.jsonl", count=60)
    convert(workspace)
    shard(workspace, shard_size=100_000)
    old = read_posts(workspace)[10:30]
    own = [{"text": f"own {n}", "country": "DE", "likes": n} for n in (1, 2, 3)]
    write(workspace / "again.jsonl", [*old, *own, own[0]])
    return workspace


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def readable(root):
    """Return the repeated posts that are equal to one that eu-central may read, by their row."""
    return {
        number
        for number, post in enumerate(read_posts(root)[10:30], 1)
        if not (post["author_email"] and post["country"] in HOMES)
    }


def unreadable(root):
    return sum(bool(p["author_email"] and p["country"] in HOMES) for p in read_posts(root))


@pytest.mark.parametrize("way", ["raw", "staging", "converted"])
def test_repeats_of_what_may_be_read_here_are_left_out(posts, way):
    was = records(posts)
    source, options = "again.jsonl", {}
    if way == "staging":
        options = {"staging": posts / "data/again"}
    if way == "converted":
        geodata.convert(posts / source, posts / "data/again", workers=1)
        source = "data/again"
    report = append(posts, source, dedupe=True, **options)
    known = readable(posts)
    assert 10 < len(known) < 20
    assert report.duplicates == len(known) + 1
    assert (report.records_in, report.records_out) == (24, 24 - report.duplicates)
    assert (report.unchecked, report.records) == (unreadable(posts), 60 + report.records_out)
    added = records(posts).keys() - was.keys()
    assert added == {f"again.jsonl#{n}" for n in range(1, 24) if n not in known}
    assert verified(posts)
    again = append(posts, source, dedupe=True, **options)
    assert (again.unchanged, again.version) == (True, report.version)


def test_a_source_of_nothing_but_repeats_is_known_from_then_on(posts):
    old = [post for post in read_posts(posts) if post["country"] == "FR"]
    write(posts / "again.jsonl", old)
    geodata.convert(posts / "again.jsonl", posts / "data/again", workers=1)
    was = lines(posts)
    report = append(posts, "data/again", dedupe=True)
    assert (report.duplicates, report.records_out, report.shards) == (len(old), 0, 0)
    assert (report.unchanged, report.regions, lines(posts)) == (False, {}, was)
    assert append(posts, "data/again").unchanged
    assert index_of(posts).records == 60


def test_a_record_of_another_person_is_no_repeat(posts):
    same = {"text": "the same", "country": "DE", "score": None, "likes": 1, "tags": []}
    people = [{**same, "author_email": f"{name}@example.org"} for name in "abcab"]
    write(posts / "more.jsonl", people[:2])
    append(posts, "more.jsonl")
    write(posts / "again.jsonl", [*people[2:], {**same, "author_email": None}])
    report = append(posts, "again.jsonl", dedupe=True)
    assert (report.records_out, report.duplicates) == (2, 2)
    found = [row for row in records(posts).values() if row["text"] == "the same"]
    assert len({row["__subject__"] for row in found}) == len(found) == 4


def test_a_repeat_under_a_key_that_is_there_is_no_clash(posts):
    rows = [{**post, "__key__": f"posts.jsonl#{n}"} for n, post in enumerate(read_posts(posts), 1)]
    french = [row for row in rows if row["country"] == "FR"]
    table = pa.Table.from_pylist(french)
    pq.write_table(table, posts / "again.parquet")
    assert append(posts, "again.parquet", dedupe=True).duplicates == len(french)
    changed = [{**french[0], "text": "changed"}]
    pq.write_table(pa.Table.from_pylist(changed), posts / "more.parquet")
    with pytest.raises(SchemaError, match=f"one key .key {french[0]['__key__']}"):
        append(posts, "more.parquet", dedupe=True)


def test_what_another_writer_adds_meanwhile_is_compared_too(posts, monkeypatch):
    nobody = {"author_email": None}
    write(posts / "other.jsonl", [{"text": "own 2", "country": "DE", "likes": 2, **nobody}])
    amend, done = Catalog.amend, []

    def amending(self, *arguments, **options):
        if not done:
            done.append(True)
            append(posts, "other.jsonl", dedupe=True)
        return amend(self, *arguments, **options)

    geodata.convert(posts / "again.jsonl", posts / "data/again", workers=1)
    monkeypatch.setattr(Catalog, "amend", amending)
    report = append(posts, "data/again", dedupe=True)
    assert report.version == "v000003"
    own = [row["__key__"] for row in records(posts).values() if row["text"] == "own 2"]
    assert own == ["other.jsonl#1"]
    assert report.duplicates == len(readable(posts)) + 2


def taken(colour):
    """Return an image as a camera makes it."""
    out, exif = io.BytesIO(), Image.Exif()
    exif[0x010F] = "a camera"
    Image.new("RGB", (4, 4), colour).save(out, "JPEG", exif=exif)
    return out.getvalue()


IMAGES = """
dataset: {name: posts, root: data/posts}
here: eu
regions: {eu: {jurisdiction: DE}}
tagging:
  region: {constant: eu}
  rules:
    - when: {field: __key__, matches: cat}
      tag: {data_category: NonPersonalData}
"""


def test_images_and_labels_are_compared_as_they_are_stored(workspace):
    (workspace / "geodata.yaml").write_text(IMAGES)
    for place in ("zoo/bee/1", "zoo/cat/1", "farm/bee/2", "farm/ant/2", "farm/cat/2"):
        path = workspace / f"{place}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(taken("red"))
    geodata.convert(workspace / "zoo", workspace / "data/raw", workers=1)
    shard(workspace)
    report = append(workspace, "farm", dedupe=True)
    found = records(workspace)
    told = {name: b"a camera" in found[f"zoo/{name}/1.jpg"]["image"] for name in ("bee", "cat")}
    assert told == {"bee": False, "cat": True}
    assert {key for key in found if key.startswith("farm")} == {"farm/ant/2.jpg"}
    assert (report.duplicates, index_of(workspace).labels["label"]) == (2, ["bee", "cat", "ant"])


def test_killed_at_every_point_it_ends_as_if_undisturbed(posts):
    config = (posts / "geodata.yaml").read_text().replace("[JP, KR]", "[JP, KR, US, CA]")
    (posts / "geodata.yaml").write_text(config.replace("us-east: [US, CA], ", ""))
    write(posts / "posts.jsonl", read_posts(posts)[:12])
    for name in ("raw", "posts"):
        shutil.rmtree(posts / "data" / name)
    convert(posts)
    shard(posts)
    write(posts / "again.jsonl", [*read_posts(posts)[:6], {"text": "own", "country": "DE"}])
    geodata.convert(posts / "again.jsonl", posts / "data/again", workers=1)
    shutil.copytree(posts / "data/posts", posts / "data/before")

    def run(root):
        return append(root, "data/again", dedupe=True)

    assert run(posts).duplicates >= 4
    assert kill_appends(posts, run, step=2) > 30


def test_the_command_tells_with_how_many_it_could_not_compare(posts):
    from test_cli import run

    arguments = ("append", "again.jsonl", "posts", "--dedupe")
    out = run(*arguments, cwd=posts).stdout
    assert f"{len(readable(posts)) + 1} duplicates" in out
    assert f"not compared with {unreadable(posts)} records not to be read here" in out
    report = json.loads(run(*arguments, "--json", cwd=posts).stdout)
    assert report["unchanged"] is True and config_of(posts).here == "eu-central"
