"""Edits meet other changes of the same dataset: none is undone unawares."""

from dataclasses import replace

import pytest
from column_cases import add, lengths, table_of
from drop_cases import run as drop
from editing_cases import (
    config_of,
    make_dataset,
    path_of,
    raw,
    records,
    shards,
    tokens,
    version,
)
from pipeline import shard

import geodata
from geodata.catalog import Change
from geodata.errors import CommitConflict, ConfigError
from geodata.jobs.compact import compact
from geodata.jobs.editing import Edit
from geodata.jobs.repair import repair
from geodata.jobs.rollback import rollback
from geodata.loader import build_loader


def test_a_change_does_not_go_on_a_version_of_another_format(workspace):
    make_dataset(workspace, count=40)
    catalog, base = version(workspace)
    shard(workspace, format="webdataset")
    with pytest.raises(CommitConflict, match="another schema or format than v000001"):
        catalog.amend(base, Change("append", "more", {}))
    assert catalog.index().version == "v000002"


def test_a_shard_that_was_changed_meanwhile_does_not_come_back_as_it_was(workspace):
    make_dataset(workspace, count=40)
    catalog, base = version(workspace, "data/raw")
    victim = next(iter(shards(workspace, "data/raw").values()))[1]
    less, mended = replace(victim, live=victim.live - 1), replace(victim, summary={"mended": 1})
    catalog.amend(base, Change("erase", "erase", {"_staging": [less]}, [victim]))
    with pytest.raises(CommitConflict, match="no longer in v000002 as it was"):
        catalog.amend(base, Change("repair", "repair", {"_staging": [mended]}, [victim]))
    assert shards(workspace, "data/raw")[victim.shard_id][1] == less


def without_a_sidecar(root, **counting):
    """Lose a sidecar that counts tokens; return its shard, where it lay, and its bytes."""
    make_dataset(root, count=60)
    geodata.shard(raw(root), config=config_of(root), shard_size=2_000, workers=1, **counting)
    victim = max((s for r, s in shards(root).values() if r == "eu-central"), key=lambda s: s.live)
    sidecar = path_of(root, "posts", "eu-central", victim.files["units"])
    whole = sidecar.read_bytes()
    sidecar.unlink()
    return victim, sidecar, whole


def test_a_sidecar_made_anew_counts_what_it_counted(workspace):
    counting = {"count_tokens": "text", "tokenizer": "bytes"}
    _victim, sidecar, whole = without_a_sidecar(workspace, **counting)
    report = repair("posts", config=config_of(workspace), workers=1)
    assert (report.version, report.uncounted, len(report.repaired)) == ("v000002", [], 1)
    assert sidecar.read_bytes() == whole and b'"tokens"' in whole
    assert geodata.verify("posts", config=config_of(workspace), workers=1).ok


def test_counts_that_took_a_file_are_told_as_lost_and_others_stay(workspace):
    from test_cli import run as command
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = Tokenizer(WordLevel({"[UNK]": 0, "the": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    words.save(tokenizer := str(workspace / "words.json"))
    victim, _path, _whole = without_a_sidecar(workspace, count_tokens="text", tokenizer=tokenizer)
    planned = repair("posts", config=config_of(workspace), dry_run=True, workers=1)
    assert planned.uncounted == [victim.shard_id]
    told = command("repair", "posts", "--workers", "1", cwd=workspace).stdout
    assert "1 sidecar without the token counts" in told and "--tokenizer FILE" in told
    assert repair("posts", config=config_of(workspace), workers=1).uncounted == []
    kept = tokens(workspace)
    assert 10 < len(kept) == len(records(workspace)) - victim.live
    compact("posts", config=config_of(workspace), workers=1)
    assert tokens(workspace) == kept


def test_what_shard_made_anew_undoes_is_told(workspace):
    make_dataset(workspace, count=40)
    key = next(key for key, row in records(workspace).items() if row["country"] == "DE")
    drop(workspace, keys=[key])
    add(workspace)
    drop(workspace, keys=["posts.jsonl#1"], where=None)
    rollback("posts@v3", config=config_of(workspace))
    config = config_of(workspace)
    told = ["drop of v000002", "add-column of v000003"]
    planned = geodata.shard(raw(workspace), config=config, seed=3, dry_run=True, workers=1)
    assert planned.undone == told
    done = geodata.shard(raw(workspace), config=config, seed=3, workers=1)
    assert done.undone == told and key in records(workspace)
    again = geodata.shard(raw(workspace), config=config, seed=4, workers=1)
    assert again.undone == []


def test_a_dry_run_forgets_no_job(workspace, monkeypatch):
    make_dataset(workspace, count=24)
    add(workspace, "length", raw(workspace))
    monkeypatch.setattr(Edit, "forget", lambda self: pytest.fail("a dry run removed a job"))
    with pytest.raises(ConfigError, match="has a column 'length' already"):
        add(workspace, "length", raw(workspace), "listed", dry_run=True)
    table = table_of(workspace, "t.csv", ["id,x", "a,1"])
    with pytest.raises(ConfigError, match="no record has a row"):
        add(workspace, "x", raw(workspace), None, join=table, on="id", dry_run=True)


def test_a_filter_sees_the_column_that_was_made_anew(workspace):
    make_dataset(workspace, count=80)
    path = workspace / "geodata.yaml"
    text = path.read_text().replace("heldout: 0.1", "heldout: 0.0")
    path.write_text(text.replace("loader: {", "loader: {where: {field: kind, equals: 1}, "))
    add(workspace, "kind", made="parity")
    first = seen(workspace)
    add(workspace, "kind", made="other_parity", replace=True)
    second = seen(workspace)
    readable = {r["likes"]: r for r in records(workspace).values()}
    assert first and second and not first & second
    assert {readable[likes]["kind"] for likes in second} == {1}


def seen(root):
    """Return the likes of the records that a loader with filters on the disk gives."""
    loader = build_loader(root / "geodata.yaml", region="eu-central", filters=root / "filters")
    return {
        likes
        for batch in loader
        for likes, weight in zip(batch["likes"].tolist(), batch["weight"].tolist(), strict=True)
        if weight
    }


def test_a_column_is_completed_after_other_edits_wrote_its_shards_anew(workspace):
    """They put it into the main files, where it looks like one that the source had."""
    make_dataset(workspace, count=40)
    add(workspace, reference=raw(workspace))
    compact(raw(workspace), workers=1)
    for name in ("more", "still"):
        (workspace / f"{name}.jsonl").write_text('{"text": "more"}\n')
        geodata.append(workspace / f"{name}.jsonl", raw(workspace), workers=1)
    assert compact(raw(workspace), workers=1).shards == 2
    assert add(workspace, reference=raw(workspace)).records == 2
    lengths(records(workspace, "data/raw"))
    with pytest.raises(ConfigError, match="a column 'length' already"):
        add(workspace, "length", raw(workspace), "listed")
