"""Records leave the next version: exactly those, from their shards alone, in any format."""

import json
import shutil

import pytest
from drop_cases import run
from editing_cases import (
    FORMATS,
    bury,
    config_of,
    files_of,
    leftovers,
    make_dataset,
    raw,
    records,
    rows,
    shards,
    tokens,
    version,
)

import geodata
from geodata.config import Condition, parse_flow
from geodata.errors import ConfigError, PolicyDenied
from geodata.jobs.addcolumn import add_column
from geodata.jobs.drop import drop, read_keys
from geodata.partition import rewriting


def keys_of(found):
    return [[row["__key__"] for row in part] for part in found.values()]


@pytest.mark.parametrize("form", FORMATS)
def test_a_condition_drops_exactly_its_records(workspace, form):
    make_dataset(workspace, form)
    before, was, order = shards(workspace), records(workspace), rows(workspace)
    report = run(workspace, where="{field: country, in: [DE, US]}")
    readable = {
        row["__key__"]
        for name, (region, s) in before.items()
        if region == "eu-central" or not s.tag.personal
        for row in order[name]
    }
    gone = {k for k, row in was.items() if k in readable and row["country"] in ("DE", "US")}
    assert records(workspace) == {k: row for k, row in was.items() if k not in gone}
    assert report.records == len(gone) == sum(t.records for t in report.regions.values()) > 10
    assert set(report.regions) == {"eu-central", "us-east"}
    assert sum(report.left.values()) == len(was) - len(readable)
    after = shards(workspace)
    untouched = {name for name in before if not gone & {r["__key__"] for r in order[name]}}
    assert untouched == before.keys() & after.keys()
    assert all(after[name] == before[name] for name in untouched)
    assert report.shards == len(before) - len(untouched)
    assert report.bytes == sum(s.nbytes for n, (_r, s) in before.items() if n not in untouched)
    kept = [[key for key in part if key not in gone] for part in keys_of(order)]
    assert sorted(part for part in kept if part) == sorted(keys_of(rows(workspace)))
    assert records(workspace, number=1) == was
    for reference in ("posts", "posts@v1"):
        assert geodata.verify(reference, config=config_of(workspace), workers=1).ok
    assert not leftovers(workspace)


@pytest.mark.parametrize("form", FORMATS)
def test_keys_drop_their_records_with_columns_and_tombstones(workspace, form):
    make_dataset(workspace, form, count=60)
    dead = bury(workspace)
    (workspace / "notes.csv").write_text(
        "id,note\n" + "".join(f"posts.jsonl#{n},{n}\n" for n in range(1, 61))
    )
    add_column(raw(workspace), "note", join=workspace / "notes.csv", on="id", workers=1)
    was = records(workspace, "data/raw")
    live = [row["__key__"] for row in rows(workspace, "data/raw")[dead.shard_id] if row["__key__"]]
    report = run(
        workspace, raw(workspace), keys=[live[-1], live[0], "no such", live[-1], "nor this"]
    )
    assert (report.records, report.shards, report.missing_keys) == (2, 1, 2)
    assert report.missing == ["no such", "nor this"]
    now = records(workspace, "data/raw")
    assert now == {k: row for k, row in was.items() if k not in (live[0], live[-1])}
    made = [
        s
        for _r, s in shards(workspace, "data/raw").values()
        if s.shard_id not in shards(workspace, "data/raw", 3)
    ]
    (one,) = made
    assert one.live == sum(one.slots) == len(live) - 2
    assert "columns/note" not in one.files
    assert [row["__key__"] for row in rows(workspace, "data/raw")[one.shard_id]] == [
        key for key in live if key not in (live[0], live[-1])
    ]
    assert geodata.verify(raw(workspace), workers=1).ok


def test_a_shard_that_loses_all_its_records_goes(workspace):
    make_dataset(workspace)
    before = shards(workspace)
    name = next(n for n, (region, _s) in before.items() if region == "eu-central")
    keys = [row["__key__"] for row in rows(workspace)[name]]
    report = run(workspace, keys=keys)
    assert (report.shards, report.emptied, report.bytes_out) == (1, 1, 0)
    assert shards(workspace) == {n: place for n, place in before.items() if n != name}
    assert run(workspace, where="{field: __key__, present: true}").left == report.left
    assert geodata.verify("posts", config=config_of(workspace), workers=1).ok


def test_keys_that_are_not_there_change_nothing(workspace):
    make_dataset(workspace)
    before = files_of(workspace)
    report = run(workspace, keys=["a", "b"])
    assert report.unchanged and (report.records, report.missing_keys) == (0, 2)
    assert run(workspace, where="{field: country, equals: XX}").unchanged
    assert files_of(workspace) == before


def test_the_same_drop_again_has_nothing_to_do(workspace):
    make_dataset(workspace)
    key = next(iter(records(workspace, "data/raw")))
    first = run(workspace, raw(workspace), keys=[key])
    again = run(workspace, raw(workspace), keys=[key])
    assert not first.unchanged and again.unchanged
    assert (again.version, again.records, again.regions) == (first.version, 1, first.regions)


@pytest.mark.parametrize(
    "asked",
    [
        {"keys": ["posts.jsonl#3", "x"]},
        {"where": "{field: likes, matches: '7'}"},
        {"where": "{field: text, matches: 'Wald'}"},
    ],
)
def test_a_dry_run_says_the_same_and_writes_nothing(workspace, asked):
    make_dataset(workspace)
    before = files_of(workspace)
    planned = run(workspace, **asked, dry_run=True)
    assert files_of(workspace) == before
    done = run(workspace, **asked)
    same = ("records", "shards", "bytes", "emptied", "regions", "missing_keys", "missing", "left")
    assert all(getattr(planned, name) == getattr(done, name) for name in same)
    assert (planned.dry_run, planned.version, done.version) == (True, "v000001", "v000002")


def test_what_is_asked_must_make_sense(workspace):
    make_dataset(workspace, count=30)
    with pytest.raises(ConfigError, match="no field 'contry'.*Did you mean 'country'"):
        run(workspace, where="{field: contry, equals: DE}")
    with pytest.raises(ConfigError, match="tagging rules only"):
        run(workspace, where="{region: known}")
    with pytest.raises(ConfigError, match="keys, or a condition"):
        run(workspace)
    with pytest.raises(ConfigError, match="keys, or a condition"):
        run(workspace, keys=["a"], where="{field: text, present: false}")
    with pytest.raises(ConfigError, match=r"'lang=de' is no mapping.*--where"):
        run(workspace, where="lang=de")
    with pytest.raises(ConfigError, match=r"equal: no such key.*'equals'.*--where"):
        run(workspace, where="{field: lang, equal: de}")
    with pytest.raises(ConfigError, match="holds no key"):
        (workspace / "none.txt").write_text("\n\n")
        read_keys(workspace / "none.txt")
    with pytest.raises(ConfigError, match="keys cannot be read"):
        read_keys(workspace / "absent.txt")


def test_keys_are_read_as_they_stand(workspace):
    (workspace / "k.txt").write_bytes("a b \r\n\n ü\x85x\n".encode())
    assert read_keys(workspace / "k.txt") == ["a b ", " ü\x85x"]


def test_workers_and_another_region_change_nothing(workspace):
    make_dataset(workspace)
    for name in ("data", "eu", "disk"):
        shutil.copytree(workspace / name, workspace / "copy" / name)
    shutil.copy(workspace / "geodata.yaml", workspace / "copy/geodata.yaml")
    where = "{field: country, in: [DE, US, JP]}"
    run(workspace, where=where)
    condition = parse_flow(Condition, where, "--where")
    drop("posts", where=condition, config=config_of(workspace / "copy"), workers=2)
    assert shards(workspace) == shards(workspace / "copy")
    text = (workspace / "geodata.yaml").read_text()
    (workspace / "geodata.yaml").write_text(text.replace("here: eu-central", "here: us-east"))
    report = run(workspace, where=where)
    assert set(report.regions) == {"us-east"} and report.version == "v000003"
    assert "US" not in {row["country"] for row in records(workspace).values()}


def test_nothing_is_dropped_where_nothing_may_be_read(workspace, monkeypatch):
    from geodata.policy import Decision, HomePolicy

    make_dataset(workspace, count=30)
    monkeypatch.setattr(
        HomePolicy,
        "decide",
        lambda self, movement: Decision(movement.tag.kind == "metadata", "test"),
    )
    with pytest.raises(PolicyDenied, match="eu-central may read none of the 30 records"):
        run(workspace, where="{field: country, equals: DE}")


def test_bytes_of_a_region_are_made_in_its_root_and_stay_there(workspace, monkeypatch):
    make_dataset(workspace)
    made = []
    start = rewriting.ShardCutter

    def noted(*arguments, **options):
        made.append((options["tag"].region, str(options["work"])))
        return start(*arguments, **options)

    monkeypatch.setattr(rewriting, "ShardCutter", noted)
    run(workspace, where="{field: country, in: [DE, US, JP]}")
    homes = {"eu-central": "eu/posts", "us-east": "disk/us/posts", "ap-northeast": "data/posts"}
    assert {region for region, _work in made} == set(homes)
    for region, work in made:
        assert work.startswith(str(workspace / homes[region] / ".jobs"))
    _catalog, index = version(workspace)
    assert index.regions["eu-central"].root == str(workspace / "eu/posts")
    moved = (workspace / "geodata.yaml").read_text().replace("root: eu,", "root: europe,")
    (workspace / "geodata.yaml").write_text(moved)
    was = records(workspace)
    key = next(iter(k for k, row in was.items() if row["country"] == "FR"))
    run(workspace, keys=[key])
    assert not (workspace / "europe").exists()
    assert geodata.verify("posts", config=config_of(workspace), workers=1).ok
    assert len(records(workspace)) == len(was) - 1


def test_counted_tokens_go_with_their_records(workspace):
    make_dataset(workspace, count=60)
    config = config_of(workspace)
    geodata.shard(raw(workspace), config=config, count_tokens="text", tokenizer="bytes", workers=1)
    was = tokens(workspace)
    assert len(was) == 60 and len(set(was.values())) > 10
    gone = {k for k, row in records(workspace).items() if row["country"] == "FR"}
    assert run(workspace, where="{field: country, equals: FR}").records == len(gone)
    assert tokens(workspace) == {k: n for k, n in was.items() if k not in gone}
    assert geodata.verify("posts", config=config, workers=1).ok
    with pytest.raises(ConfigError, match="tokens of column 'text' are counted"):
        add_column("posts", "text", function="json:dumps", replace=True, config=config)


def test_no_key_stands_in_what_outlives_the_job(workspace):
    make_dataset(workspace, count=30)
    key = next(iter(records(workspace, "data/raw")))
    run(workspace, raw(workspace), keys=[key, "a missing key"])
    for path in (workspace / "data/raw/metadata").rglob("*"):
        if path.is_file():
            text = path.read_text()
            assert key not in text and "a missing key" not in text
    for path in (workspace / "data/raw/audit").rglob("*.jsonl"):
        assert key not in path.read_text()


def test_the_command(workspace):
    from test_cli import run as command

    make_dataset(workspace)
    out = command(
        "drop", "posts", "--where", "{field: country, equals: DE}", "--dry-run", cwd=workspace
    )
    assert "nothing was written" in out.stdout and "eu-central" in out.stdout
    report = json.loads(
        command(
            "drop", "posts", "--where", "{field: country, equals: DE}", "--json", cwd=workspace
        ).stdout
    )
    assert report["schema_version"] == 1 and report["version"] == "v000002"
    (workspace / "k.txt").write_text("nothing\n")
    out = command("drop", "posts", "--keys", "k.txt", "--key", "nor this", cwd=workspace, code=1)
    assert "2 keys not found: nor this, nothing" in out.stdout
    out = command("drop", "posts", cwd=workspace, code=2)
    assert "--where" in out.stderr
    help_text = command("drop", "--help", cwd=workspace).stdout
    assert "no erasure" in help_text and "gc" in help_text


def test_keys_and_values_that_no_record_can_have_are_mistakes(workspace):
    make_dataset(workspace, count=24)
    with pytest.raises(ConfigError, match=r"a key is no text: '\\udcff'.*UTF-8"):
        run(workspace, raw(workspace), keys=["\udcff"])
    with pytest.raises(ConfigError, match="likes is int64; .*cannot equal it"):
        run(workspace, raw(workspace), where="{field: likes, equals: 99999999999999999999}")
    (workspace / "k.txt").write_bytes(b"\xef\xbb\xbfposts.jsonl#1\r\n")
    assert read_keys(workspace / "k.txt") == ["posts.jsonl#1"]
