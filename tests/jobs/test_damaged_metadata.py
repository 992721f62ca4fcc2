"""Damaged metadata: what is whole stays usable, nothing is read or built on in its place."""

import json
import shutil

import pytest
from damaging import DAMAGES, age, empty, falsify, garble, lose, run, truncate, unharmed
from editing_cases import files_of
from pipeline import convert, shard
from posts import CONFIG, make_posts

import geodata
from geodata.audit import read_segment
from geodata.config import load_config
from geodata.errors import AuditError, ManifestError
from geodata.jobs.gc import gc
from geodata.jobs.history import history
from geodata.jobs.repair import repair
from geodata.jobs.rollback import rollback
from geodata.manifest import Version
from geodata.tags import STAGING

RAW = "data/raw"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two versions of a staging dataset, and two of the classified one made of it."""
    root = tmp_path_factory.mktemp("made")
    (root / "geodata.yaml").write_text(CONFIG)
    make_posts(root / "posts.jsonl", count=40)
    make_posts(root / "more.jsonl", count=20, seed=1)
    make_posts(root / "new.jsonl", count=10, seed=2)
    (root / "table.csv").write_text("likes,n\n1,2\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        convert(root)
        shard(root)
        geodata.append("more.jsonl", RAW, workers=1)
        geodata.append(RAW, "posts", config=load_config("geodata.yaml"), workers=1)
    return root


@pytest.fixture
def root(made, tmp_path, monkeypatch):
    """A copy of the datasets, which is the working directory; all of it is old."""
    root = shutil.copytree(made, tmp_path / "root")
    age(root)
    monkeypatch.chdir(root)
    return root


NEWEST = {
    "inspect {}": "index",
    "inspect {} --head 1": "index list",
    "ls {}": "index list",
    "ls {} --files": "index list",
    "gc {}": "index list",
    "gc {} --keep 1 --dry-run": "index list",
    "drop {} --key posts.jsonl#1 --workers 1": "index list",
    "compact {} --workers 1": "index list",
    "add-column {} n --join table.csv --on likes --column n --workers 1": "index list",
}
"""Commands that are about the newest version, and what of its metadata they open."""

RAW_ONLY = {
    "convert posts.jsonl {}": "index",
    "append new.jsonl {} --workers 1": "index list",
    "append more.jsonl {} --workers 1": "index sources",
    "shard {} --workers 1 --seed 5": "index list",
}
POSTS_ONLY = {
    "append new.jsonl {} --workers 1": "index list sources",
    f"shard {RAW} --workers 1 --seed 5": "index sources",
}
COMMANDS = {RAW: {**NEWEST, **RAW_ONLY}, "posts": {**NEWEST, **POSTS_ONLY}}

OLDER = (
    "inspect {}@v1 --head 1",
    "ls {}@v1",
    "verify {}@v1 --workers 1",
    "repair {}@v1 --workers 1",
    "rollback {}@v1 --dry-run",
)
"""Commands that are about a version which is whole."""

WAYS = ("geodata repair DATASET@v000002", "geodata rollback DATASET@v000001")


def record_of(root, dataset, number=2):
    return json.loads((home(root, dataset) / Version(number).key).read_bytes())


def home(root, dataset):
    return root / (dataset if "/" in dataset else f"data/{dataset}")


def path_of(root, dataset, part, number=2):
    """Return a file of a version's metadata that no other version has."""
    if part == "index":
        return home(root, dataset) / Version(number).key
    record = record_of(root, dataset, number)
    if part == "sources":
        last = record["report"]["sources"][-1]
        return home(root, dataset) / last["files" if dataset == RAW else "shards"]["path"]
    others = [] if number == 1 else record_of(root, dataset, number - 1)["regions"].values()
    known = {entry["list"]["path"] for entry in others}
    lists = [entry["list"]["path"] for entry in record["regions"].values()]
    return home(root, dataset) / next(path for path in lists if path not in known)


def numbers(root, dataset=RAW):
    """Return the versions that there are, by their indexes."""
    return sorted(path.stem for path in (home(root, dataset) / "metadata").glob("v*.json"))


@pytest.mark.parametrize("dataset", [RAW, "posts"])
@pytest.mark.parametrize(
    ("part", "damage"),
    [(part, damage) for part in ("index", "list", "sources") for damage in DAMAGES]
    + [("index", falsify)],
)
def test_what_needs_the_damaged_file_is_refused_and_all_else_works(root, dataset, part, damage):
    path = path_of(root, dataset, part)
    whole = path.read_bytes()
    damage(path)
    before, known = files_of(root), numbers(root, dataset)
    for command, needs in COMMANDS[dataset].items():
        if part not in needs.split():
            continue
        code, said = run(command.format(dataset))
        assert code == 1, (command, said)
        (line,) = [line for line in said.splitlines() if str(path) in line or path.name in line]
        ways = WAYS if part != "sources" else ("geodata repair DATASET",)
        assert all(way in line for way in ways), (command, line)
        assert unharmed(before, root) and numbers(root, dataset) == known, command
    for command in OLDER:
        code, said = run(command.format(dataset))
        assert code == 0, (command, said)
    assert unharmed(before, root) and numbers(root, dataset) == known

    code, said = run(f"history {dataset}")
    assert code == 0 and "v1" in said
    assert ("v2 is damaged" in said) is (part != "sources")
    code, said = run(f"verify {dataset} --workers 1")
    assert code == 1 and str(path) in said
    code, said = run(f"repair {dataset} --workers 1 --dry-run")
    assert code == 0 and f"{path} would be made anew" in said
    assert unharmed(before, root) and (path.exists() or damage is lose)
    code, said = run(f"repair {dataset} --workers 1")
    assert code == 0 and f"{path} made anew" in said
    assert path.read_bytes() == whole
    for command in (
        f"verify {dataset} --workers 1",
        f"inspect {dataset} --head 1",
        f"ls {dataset}",
    ):
        assert run(command)[0] == 0


@pytest.mark.parametrize("dataset", [RAW, "posts"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_copies_stand_in_nobodys_way_and_are_renewed(root, dataset, damage):
    kept = [path for path in (home(root, dataset) / "metadata/copies").rglob("*") if path.is_file()]
    assert len(kept) >= 6
    whole = {path: path.read_bytes() for path in kept}
    for path in kept:
        damage(path)
    for command in OLDER[:3]:
        assert run(command.format(dataset))[0] == (
            1 if "verify" in command and damage != lose else 0
        )
    assert run(f"inspect {dataset} --head 1")[0] == 0
    assert run(f"verify {dataset} --workers 1")[0] == (0 if damage is lose else 1)
    assert run(f"gc {dataset}")[0] == 0
    assert run(f"repair {dataset} --workers 1")[0] == 0
    assert {path: path.read_bytes() for path in kept} == whole
    assert run(f"verify {dataset} --workers 1")[0] == 0


@pytest.mark.parametrize("part", ["index", "list"])
@pytest.mark.parametrize("damage", [truncate, garble, empty])
def test_beyond_repair_a_rollback_goes_on_and_no_number_comes_twice(root, part, damage):
    path = path_of(root, RAW, part)
    shutil.rmtree(root / RAW / "metadata/copies")  # as of an earlier release
    damage(path)
    before = files_of(root)
    code, said = run(f"repair {RAW} --workers 1")
    assert code == 1 and f"beyond repair: {path}" in said
    assert "geodata rollback DATASET@v000001 goes back to the newest version that is whole" in said
    assert unharmed(before, root)

    done = rollback(f"{RAW}@v1")
    assert (done.version, done.before) == ("v000003", "v000002")
    assert done.records_before == (None if part == "index" else 60)
    assert geodata.inspect(RAW).records == 40
    assert geodata.append("new.jsonl", RAW, workers=1).version == "v000004"
    assert geodata.inspect(RAW).records == 50
    assert [v.version for v in history(RAW).versions if v.damaged] == ["v000002"]
    assert run(f"verify {RAW} --workers 1")[0] == 1

    age(root)
    code, said = run(f"gc {RAW}")
    assert code == 1 and "nothing is removed; " not in said
    assert "what v000002 needs is not known" in said and "gc DATASET --keep 2 gives" in said
    assert unharmed(before, root)
    code, said = run(f"repair {RAW} --workers 1")
    assert code == 1 and "geodata gc DATASET --keep 2 gives up" in said
    assert gc(RAW, keep=2).versions == ["v000001", "v000002"]
    assert run(f"verify {RAW} --workers 1")[0] == 0
    assert numbers(root) == ["v000003", "v000004"]


def test_an_index_that_is_gone_leaves_its_number_taken(root):
    path_of(root, RAW, "index").unlink()
    assert [v.version for v in history(RAW).versions if v.damaged] == ["v000002"]
    assert rollback(f"{RAW}@v1").version == "v000003"
    assert gc(RAW, keep=1).versions == ["v000001", "v000002"]
    assert [v.version for v in history(RAW).versions] == ["v000003"]
    assert run(f"verify {RAW} --workers 1")[0] == 0


def test_a_list_that_versions_share_is_damaged_in_each(root):
    """Going back would not help, and is not proposed."""
    config = load_config("geodata.yaml")
    key = geodata.inspect("posts", config=config, head=1).head[0]["__key__"]
    assert run(f"drop posts --key {key} --workers 1")[0] == 0
    paths = [
        {entry["list"]["path"] for entry in record_of(root, "posts", n)["regions"].values()}
        for n in (2, 3)
    ]
    shared = root / "data/posts" / sorted(paths[0] & paths[1])[0]
    garble(shared)
    code, said = run("ls posts --files")
    (line,) = [line for line in said.splitlines() if "is not listed" in line]
    assert code == 1 and str(shared) in line and "rollback DATASET@v000001" in line
    assert said.count("\n") > 2  # the other regions are listed
    assert "v3 is damaged" in run("history posts")[1] and "v2 is damaged" in run("history posts")[1]
    with pytest.raises(ManifestError, match="does not match its digest"):
        rollback("posts@v2", config=config)
    assert repair("posts", config=config, workers=1).ok
    assert rollback("posts@v2", config=config).version == "v000004"


def test_all_versions_damaged_is_told_and_never_a_traceback(root):
    for number in (1, 2):
        garble(path_of(root, RAW, "index", number))
    shutil.rmtree(root / RAW / "metadata/copies")
    before = files_of(root)
    assert [bool(v.damaged) for v in history(RAW).versions] == [True, True]
    report = geodata.verify(RAW, workers=1)
    assert (report.ok, report.shards, len(report.problems)) == (False, 0, 2)
    assert run(f"repair {RAW} --workers 1")[1].endswith(
        "no version before it is whole: make the dataset anew, in another place\n"
    )
    for command in (f"inspect {RAW}@v1", f"rollback {RAW}@v1", f"gc {RAW}", f"ls {RAW}"):
        code, said = run(command)
        assert code == 1 and "damaged index" in said and "rollback DATASET" not in said
    assert unharmed(before, root)


def test_a_newer_release_s_version_is_not_taken_for_damage(root):
    path = path_of(root, RAW, "index")
    record = record_of(root, RAW)
    shutil.rmtree(root / RAW / "metadata/copies")
    path.write_text(json.dumps({**record, "format_version": 99}))
    before = files_of(root)
    assert "none that this release reads" in history(RAW).versions[1].damaged
    for command in (f"ls {RAW}", f"rollback {RAW}@v1", f"gc {RAW}", f"repair {RAW}"):
        code, said = run(command)
        assert code == 1 and "pip install -U geodata-train" in said
    assert run(f"ls {RAW}@v1")[0] == 0
    assert unharmed(before, root)


def test_an_index_comes_back_from_a_region_s_root(workspace):
    text = (workspace / "geodata.yaml").read_text()
    text = text.replace("jurisdiction: DE,", "jurisdiction: DE, root: eu,")
    (workspace / "geodata.yaml").write_text(text)
    convert(workspace)
    shard(workspace)
    config, path = load_config(workspace / "geodata.yaml"), path_of(workspace, "posts", "index", 1)
    whole = path.read_bytes()
    shutil.rmtree(path.parent / "copies")
    garble(path)
    with pytest.raises(ManifestError, match="damaged index"):
        geodata.inspect("posts", config=config)
    report = repair("posts", config=config, workers=1)
    assert report.ok and report.shards > 3
    assert path.read_bytes() == whole
    assert (path.parent / "copies/lists").is_dir()
    assert geodata.verify("posts", config=config, workers=1).ok


def test_totals_are_counted_anew_from_the_lists(root):
    path = path_of(root, RAW, "index")
    record, whole = record_of(root, RAW), path.read_bytes()
    shutil.rmtree(path.parent / "copies")
    record["regions"][STAGING]["records"] = 7
    path.write_text(json.dumps(record))
    assert not geodata.verify(RAW, workers=1).ok
    assert repair(RAW, workers=1).ok
    assert path.read_bytes() == whole
    assert geodata.verify(RAW, workers=1).ok


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_audit_log_is_told_by_its_reader_and_stops_nobody(root, damage):
    folder = root / "data/raw/audit"
    path = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    whole = list(read_segment(path))
    damage(path)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for command in (
        f"ls {RAW}",
        f"verify {RAW} --workers 1",
        f"append new.jsonl {RAW} --workers 1",
    ):
        assert run(command)[0] == 0
    grown = {path.read_bytes() for path in folder.iterdir()}
    assert all(any(now.startswith(data) for now in grown) for data in before.values())
    if damage is truncate:
        assert list(read_segment(path)) == whole[:-1]
    elif damage is garble:
        assert list(read_segment(path)) == []  # one line, which was never finished
        path.write_bytes(path.read_bytes() + b"\n")
        with pytest.raises(AuditError, match="not an audit line"):
            list(read_segment(path))
