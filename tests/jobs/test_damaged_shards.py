"""Shards damaged where they lie: what a command shows or does never comes from such bytes."""

import json
import os
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from append_cases import append, lines
from column_cases import add, raw
from damaging import empty, lose, run
from editing_cases import FORMATS, make_dataset, shards
from pipeline import read_posts

import geodata
from geodata.errors import CorruptShard
from geodata.manifest import Units

HERE = "eu-central"
INSPECT = "inspect posts --head 200"
APPEND = "append again.jsonl posts --dedupe --workers 1"


def chosen(root):
    """Return the largest shard that lies here."""
    found = [one for region, one in shards(root).values() if region == HERE]
    return max(found, key=lambda one: (one.main.nbytes, one.shard_id))


def path_of(root, ref):
    return next(root.rglob(ref.path.rpartition("/")[2]))


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x55
    path.write_bytes(data)


def truncate(path):
    os.truncate(path, path.stat().st_size - 7)


def replace(path):
    """Put another Parquet file in its place: of as many rows and bytes, without texts."""
    size, table = path.stat().st_size, pq.read_table(path)
    column = table.schema.get_field_index("text")
    texts = pa.array([""] * len(table), table.schema.field("text").type)
    table = table.set_column(column, table.schema.field("text"), texts)

    pq.write_table(table, path)
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    path.write_bytes(data[:footer] + bytes(size - len(data)) + data[footer:])
    assert pq.read_table(path).equals(table)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def made(letter):
    return {"text": letter * 64, "country": "DE", "likes": 1, "author_email": None}


def holding(root, text):
    """Return the shard whose file has a text plain."""
    found = [one for _region, one in shards(root).values()]
    return next(s for s in found if text.encode() in path_of(root, s.main).read_bytes())


def told(command, shard, problem):
    """Assert that a command ends in one line that names a shard's file."""
    code, said = run(command)
    assert code == 1 and "\n" not in said.strip()
    assert problem in said and "geodata verify tells what is damaged" in said
    assert f"shard {shard.shard_id}" in said and f"file {shard.main.path}" in said


@pytest.fixture
def root(workspace):
    make_dataset(workspace)
    write(workspace / "again.jsonl", read_posts(workspace)[10:60])
    return workspace


@pytest.mark.parametrize("command", [INSPECT, APPEND])
@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (flip, "unit 0 does not match its digest"),
        (truncate, "a file has {less} bytes, not {nbytes}"),
        (replace, "a file's frame does not match its digest"),
    ],
)
def test_damage_is_one_line_that_names_the_file(root, damage, problem, command):
    shard, before = chosen(root), lines(root)
    damage(path_of(root, shard.main))
    told(command, shard, problem.format(less=shard.main.nbytes - 7, nbytes=shard.main.nbytes))
    assert lines(root) == before


@pytest.mark.parametrize("command", [INSPECT, APPEND])
def test_of_two_shards_that_changed_places_one_is_named(root, command):
    """They hold as many rows in as many bytes, so that only their digests tell them apart."""
    write(root / "a.jsonl", [made("A")])
    write(root / "b.jsonl", [made("B")])
    append(root, "a.jsonl")
    append(root, "b.jsonl")
    one, other = (holding(root, letter * 64) for letter in "AB")
    assert one.main.nbytes == other.main.nbytes and one.slots == other.slots
    (first, second), before = (path_of(root, s.main) for s in (one, other)), lines(root)
    first_bytes, second_bytes = first.read_bytes(), second.read_bytes()
    first.write_bytes(second_bytes)
    second.write_bytes(first_bytes)
    told(
        command,
        min(one, other, key=lambda s: lines(root).index(s.to_line())),
        "does not match its digest",
    )
    assert lines(root) == before


def test_a_record_is_no_repeat_of_what_damage_made_alike(root):
    """The text of a record is changed in place into that of a record to be added."""
    write(root / "a.jsonl", [made("A")])
    write(root / "b.jsonl", [made("B")])
    append(root, "a.jsonl")
    path = path_of(root, holding(root, "A" * 64).main)
    path.write_bytes(path.read_bytes().replace(b"A" * 64, b"B" * 64))
    before = lines(root)
    with pytest.raises(CorruptShard, match="does not match its digest"):
        append(root, "b.jsonl", dedupe=True)
    assert lines(root) == before


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_units_of_all_formats_are_checked_and_whole_ones_are_shown(workspace, form):
    config = make_dataset(workspace, form)
    shard = chosen(workspace)
    whole = geodata.inspect("posts", config=config, shard=shard.shard_id, head=200)
    assert len(whole.head) == shard.live > 1
    path = path_of(workspace, shard.main)
    data = path.read_bytes()
    middle = len(data) // 2
    path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    with pytest.raises(CorruptShard, match="does not match its digest") as caught:
        geodata.inspect("posts", config=config, shard=shard.shard_id, head=200)
    assert caught.value.fields["file"] == shard.main.path


def test_the_file_of_an_added_column_is_checked(root):
    dataset = raw(root)
    add(root, reference=dataset)
    _region, shard = next(iter(shards(root, "data/raw").values()))
    flip(path_of(root, shard.files["columns/length"]))
    with pytest.raises(CorruptShard, match="does not match its digest") as caught:
        geodata.inspect(dataset, shard=shard.shard_id)
    assert caught.value.fields["file"] == shard.files["columns/length"].path


def test_only_the_units_that_are_read_are_checked(workspace):
    noise = random.Random(1)
    write(workspace / "long.jsonl", [{"text": noise.randbytes(200_000).hex()} for _ in range(60)])
    geodata.convert(workspace / "long.jsonl", workspace / "data/long", workers=1)
    [(_region, shard)] = shards(workspace, "data/long").values()
    units = Units.from_bytes(path_of(workspace, shard.files["units"]).read_bytes(), "units").units
    assert len(units) > 1
    with path_of(workspace, shard.main).open("r+b") as file:
        file.seek(units[-1].offset + units[-1].length // 2)
        file.write(b"damage")
    dataset = str(workspace / "data/long")
    assert len(geodata.inspect(dataset, head=units[0].slots).head) == units[0].slots
    with pytest.raises(CorruptShard, match=f"unit {len(units) - 1} does not match its digest"):
        geodata.inspect(dataset, head=60)


@pytest.mark.parametrize("damage", [empty, lose])
def test_a_sidecar_that_is_damaged_or_gone_is_told(root, damage):
    shard = chosen(root)
    damage(path_of(root, shard.files["units"]))
    code, said = run(INSPECT)
    assert code in (1, 4) and shard.files["units"].path in said and "geodata repair" in said
