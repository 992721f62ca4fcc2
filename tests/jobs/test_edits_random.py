"""Edits in any order: after each the dataset is what a model in plain Python says."""

import json
import random

import pytest
from editing_cases import FORMATS, raw, records, version

import geodata
from geodata.config import Condition, parse_flow
from geodata.errors import ConfigError
from geodata.jobs.gc import gc
from geodata.jobs.repair import repair
from geodata.jobs.rollback import rollback

STEPS = 9


class Model:
    """What a dataset should hold: each version's records by key, the newest last."""

    def __init__(self, root, form, chance):
        self.root, self.chance = root, chance
        self.written = 0
        self.versions = {1: self.write("start.jsonl")}
        geodata.convert(root / "start.jsonl", raw(root), format=form, workers=1, shard_size=2_000)

    @property
    def now(self):
        """Return the records of the newest version."""
        return self.versions[max(self.versions)]

    def next(self, found):
        """Take what the newest version is from here on."""
        self.versions[max(self.versions) + 1] = found

    def write(self, name):
        """Write a few records; return them as the dataset will hold them."""
        rows = []
        for _ in range(self.chance.randint(1, 25)):
            self.written += 1
            rows.append({"likes": self.chance.randint(0, 9), "text": f"{self.written} " * 20})
        (self.root / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return {f"{name}#{n}": row for n, row in enumerate(rows, 1)}

    def append(self):
        """Add a source, or ask for one that is there again."""
        name = f"{self.written}.jsonl"
        more = self.write(name)
        geodata.append(self.root / name, raw(self.root), workers=1)
        columns = {name for row in self.now.values() for name in row}
        empty = dict.fromkeys(columns)
        self.next(self.now | {key: empty | row for key, row in more.items()})
        assert geodata.append(self.root / name, raw(self.root), workers=1).unchanged

    def drop_keys(self):
        """Drop some records, and a key that is not there."""
        if len(self.now) < 4:
            return
        keys = self.chance.sample(sorted(self.now), self.chance.randint(1, 3))
        report = geodata.drop(raw(self.root), keys=[*keys, "absent"], workers=1)
        assert (report.records, report.missing) == (len(keys), ["absent"])
        self.next({key: row for key, row in self.now.items() if key not in keys})

    def drop_where(self):
        """Drop the records for which a condition holds."""
        likes = self.chance.randint(0, 9)
        kept = {key: row for key, row in self.now.items() if row["likes"] != likes}
        if not kept:
            return
        where = parse_flow(Condition, f"{{field: likes, equals: {likes}}}", "--where")
        report = geodata.drop(raw(self.root), where=where, workers=1)
        if report.unchanged:
            assert len(kept) == len(self.now)
        else:
            assert report.records == len(self.now) - len(kept) > 0
            self.next(kept)

    def add_column(self):
        """Add a column, complete it in shards that came since, or be told that it is there."""
        whole = all("length" in row for row in self.now.values())
        try:
            function = "column_functions:length"
            report = geodata.add_column(raw(self.root), "length", function=function, workers=1)
        except ConfigError:
            assert whole and all(row["length"] is not None for row in self.now.values())
            return
        done = {key: row | {"length": len(row["text"])} for key, row in self.now.items()}
        if report.unchanged:
            assert done == self.now
        else:
            self.next(done)

    def compact(self):
        """Merge small shards."""
        if not geodata.compact(raw(self.root), workers=1, shard_size=6_000).unchanged:
            self.next(self.now)

    def rollback(self):
        """Go back to any version that there is."""
        number = self.chance.choice(sorted(self.versions))
        if not rollback(f"{raw(self.root)}@v{number}").unchanged:
            self.next(self.versions[number])

    def gc(self):
        """Remove what nothing needs, and sometimes old versions."""
        keep = self.chance.choice([None, None, 1, 2, 3])
        gc(raw(self.root), keep=keep, grace=0)
        if keep:
            self.versions = dict(sorted(self.versions.items())[-keep:])

    def repair(self):
        """Lose a file that can be made anew, and mend it; all else is whole."""
        places = ("*.units.json", "*.index", "metadata/lists/*/*.jsonl", "metadata/v*.json")
        files = [p for place in places for p in sorted((self.root / "data/raw").rglob(place))]
        victim = self.chance.choice([path for path in files if "copies" not in path.parts])
        data = victim.read_bytes()
        victim.unlink()
        report = repair(raw(self.root), workers=1)
        assert (report.ok, len(report.lost)) == (True, 0)
        named = victim.name.startswith("v") or victim.suffix == ".jsonl"
        assert not named or victim.read_bytes() == data
        if not victim.exists():  # it was an older version's alone
            victim.write_bytes(data)

    def check(self):
        """Compare every version with what it should be."""
        numbers = [v.number for v in version(self.root, "data/raw")[0].versions()]
        assert numbers == sorted(self.versions)
        for number in {numbers[-1], self.chance.choice(numbers)}:
            found = records(self.root, "data/raw", number)
            for row in found.values():
                del row["__key__"], row["__subject__"]
            assert found == self.versions[number]
        assert geodata.verify(raw(self.root), workers=1).ok


ACTIONS = ["append", "append", "drop_keys", "drop_where", "add_column", "compact"]
ACTIONS += ["rollback", "gc", "repair"]


@pytest.mark.parametrize("form", FORMATS)
def test_edits_in_any_order_do_what_a_model_does(workspace, form):
    chance = random.Random(f"edits of {form}")
    model = Model(workspace, form, chance)
    done = []
    for _ in range(STEPS):
        done.append(chance.choice(ACTIONS))
        try:
            getattr(model, done[-1])()
            model.check()
        except Exception as error:
            error.add_note(f"after {', '.join(done)}")
            raise
