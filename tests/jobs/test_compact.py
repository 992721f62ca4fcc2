"""Small shards become few; what is in the records stays the same."""

import json

import pytest
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
)

import geodata
from geodata.errors import ConfigError
from geodata.jobs.addcolumn import add_column
from geodata.jobs.compact import compact
from geodata.jobs.drop import drop
from geodata.loader import build_loader
from geodata.order import hash_keys


def run(root, reference="posts", **options):
    config = None if "/" in reference else config_of(root)
    return compact(reference, config=config, **{"workers": 1, **options})


@pytest.mark.parametrize("form", FORMATS)
def test_small_shards_become_one_for_each_tag_and_region(workspace, form):
    make_dataset(workspace, form, shard_size=2_000)
    before, was = shards(workspace), records(workspace)
    report = run(workspace)
    assert records(workspace) == was
    after = shards(workspace)
    tags = {(region, s.tag.digest) for region, s in before.values()}
    assert sorted(
        (region, s.tag.digest) for region, s in after.values() if region == "eu-central"
    ) == (sorted(pair for pair in tags if pair[0] == "eu-central"))
    assert report.shards > report.shards_out and len(before) - len(after) == (
        report.shards - report.shards_out
    )
    for name in after.keys() - before.keys():
        keys = [row["__key__"] for row in rows(workspace)[name]]
        hashes = hash_keys(keys, "shard", 0).tolist()
        assert hashes == sorted(hashes) and after[name][1].live == len(keys)
    assert geodata.verify("posts", config=config_of(workspace), workers=1).ok
    assert records(workspace, number=1) == was
    assert not leftovers(workspace)
    seen = [
        i
        for b in build_loader(workspace / "geodata.yaml", region="us-east")
        for i, w in zip(b["likes"].tolist(), b["weight"].tolist(), strict=True)
        if w
    ]
    readable = [
        row
        for name, (region, s) in after.items()
        if region == "us-east" or not s.tag.personal
        for row in rows(workspace)[name]
    ]
    assert len(seen) <= len(readable) and set(seen) <= {row["likes"] for row in readable}


@pytest.mark.parametrize("form", FORMATS)
def test_columns_go_into_the_main_file_and_tombstones_go(workspace, form):
    make_dataset(workspace, form, count=60)
    bury(workspace)
    lines = "".join(f"posts.jsonl#{n},note {n}\n" for n in range(1, 61, 2))
    (workspace / "notes.csv").write_text("id,note\n" + lines)
    add_column(raw(workspace), "note", join=workspace / "notes.csv", on="id", workers=1)
    was = records(workspace, "data/raw")
    order = [row["__key__"] for part in rows(workspace, "data/raw").values() for row in part]
    report = run(workspace, raw(workspace))
    assert (report.shards_out, report.records, report.version) == (1, len(was), "v000004")
    ((name, (_region, one)),) = shards(workspace, "data/raw").items()
    assert {part.partition("/")[0] for part in one.files} <= {"main", "index", "units"}
    assert one.live == sum(one.slots) == len(was)
    assert records(workspace, "data/raw") == was
    kept = [row["__key__"] for row in rows(workspace, "data/raw")[name]]
    assert kept == [key for key in order if key is not None]
    assert geodata.verify(raw(workspace), workers=1).ok
    assert run(workspace, raw(workspace)).unchanged


def test_full_shards_stay_and_sizes_are_about_the_target(workspace):
    make_dataset(workspace, count=300)
    was, before = records(workspace, "data/raw"), shards(workspace, "data/raw")
    assert run(workspace, raw(workspace), shard_size=4_000).unchanged
    assert shards(workspace, "data/raw") == before
    drop(raw(workspace), keys=list(was)[::4], workers=1)
    kept = records(workspace, "data/raw")
    report = run(workspace, raw(workspace), shard_size=24_000)
    after = shards(workspace, "data/raw")
    assert records(workspace, "data/raw") == kept
    assert 1 < len(after) < len(before) and report.shards_out == len(after)
    again = run(workspace, raw(workspace), shard_size=24_000, dry_run=True)
    assert again.shards == 0
    with pytest.raises(ConfigError, match="at most 1GiB"):
        run(workspace, shard_size=2 << 30)


def test_nothing_to_do_is_no_version(workspace):
    make_dataset(workspace, shard_size=2_000)
    run(workspace, raw(workspace))
    before = files_of(workspace)
    report = run(workspace, raw(workspace), shard_size=1 << 20)
    assert report.unchanged and (report.shards, report.version) == (0, "v000002")
    assert files_of(workspace) == before


def test_a_full_shard_with_a_column_is_written_alone(workspace):
    make_dataset(workspace, count=60)
    lines = "".join(f"posts.jsonl#{n},{n}\n" for n in range(1, 61))
    (workspace / "notes.csv").write_text("id,note\n" + lines)
    add_column(raw(workspace), "note", join=workspace / "notes.csv", on="id", workers=1)
    was, count = rows(workspace, "data/raw"), len(shards(workspace, "data/raw"))
    report = run(workspace, raw(workspace), shard_size=1_000)
    assert (report.shards, report.shards_out) == (count, count)
    assert sorted(map(str, rows(workspace, "data/raw").values())) == sorted(map(str, was.values()))
    assert not any("columns/note" in s.files for _r, s in shards(workspace, "data/raw").values())


def test_shards_with_and_without_a_column_are_not_mixed(workspace):
    make_dataset(workspace, shard_size=2_000)
    (workspace / "t.csv").write_text(
        "likes,half\n"
        + "".join(f"{row['likes']},{row['likes'] // 2}\n" for row in records(workspace).values())
    )

    def add():
        return add_column(
            "posts",
            "half",
            join=workspace / "t.csv",
            on="likes",
            config=config_of(workspace),
            workers=1,
        )

    add()
    run(workspace)
    config = workspace / "geodata.yaml"
    config.write_text(config.read_text().replace("here: eu-central", "here: us-east"))
    run(workspace)
    assert add().shards >= 1
    was = records(workspace)
    assert all(
        row["half"] is not None
        for n, (region, s) in shards(workspace).items()
        if region != "ap-northeast"
        for row in rows(workspace)[n]
    )
    assert run(workspace).version == "v000005"
    assert records(workspace) == was
    assert geodata.verify("posts", config=config_of(workspace), workers=1).ok


def test_counted_tokens_go_with_their_records(workspace):
    make_dataset(workspace, count=60)
    config = config_of(workspace)
    counting = {"count_tokens": "text", "tokenizer": "bytes", "workers": 1}
    geodata.shard(raw(workspace), config=config, shard_size=1_500, **counting)
    was = tokens(workspace)
    assert run(workspace).shards > 2
    assert tokens(workspace) == was and len(set(was.values())) > 10
    assert geodata.verify("posts", config=config, workers=1).ok


def test_a_dry_run_says_the_same_and_writes_nothing(workspace):
    make_dataset(workspace, shard_size=2_000)
    before = files_of(workspace)
    planned = run(workspace, dry_run=True)
    assert files_of(workspace) == before
    done = run(workspace, workers=2)
    same = ("records", "shards", "shards_out", "bytes", "regions", "left")
    assert all(getattr(planned, name) == getattr(done, name) for name in same)


def test_the_command(workspace):
    from test_cli import run as command

    make_dataset(workspace, shard_size=2_000)
    report = json.loads(command("compact", "posts", "--json", cwd=workspace).stdout)
    assert report["version"] == "v000002" and report["schema_version"] == 1
    assert "nothing to do" in command("compact", "posts", cwd=workspace).stdout
