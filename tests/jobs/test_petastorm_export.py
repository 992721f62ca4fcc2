"""Our datasets in Petastorm: exported for make_reader, and as they are for make_batch_reader."""

import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import petastorm_interpreter
import pytest

import geodata
from geodata.audit import read_segment
from geodata.config import load_config
from geodata.errors import ConfigError, CorruptShard, SchemaError
from geodata.jobs.ls import list_files
from geodata.jobs.petastormexport import export
from geodata.sources import open_source

pytestmark = pytest.mark.usefixtures("petastorm")
BY_SPARK = Path(__file__).parent.parent / "sources" / "petastorm_by_spark"

READ = """
import json, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
import petastorm
def told(value):
    if isinstance(value, np.ndarray):
        return [str(value.dtype), list(value.shape), told(value.reshape(-1).tolist())]
    if isinstance(value, list):
        return [told(item) for item in value]
    if value is None or value != value:
        return None
    if isinstance(value, bytes):
        return value.hex()
    return value if type(value) in (int, float, bool, type(None)) else str(value)
def plain(value):
    if isinstance(value, np.generic) and not isinstance(value, (bytes, str)):
        return told(value.item()) if value.dtype.kind in "biuf" else str(value)
    return told(value)
found = {}
for pool in ("dummy", "thread", "process"):
    make = getattr(petastorm, sys.argv[1])
    for attempt in range(20):
        options = {"reader_pool_type": pool, "workers_count": 2, **json.loads(sys.argv[3])}
        with make(json.loads(sys.argv[2]), **options) as reader:
            rows = [{k: plain(v) for k, v in row._asdict().items()} for row in reader]
        if len(rows) == len(found.get("dummy", rows)):
            break  # else its thread pool took itself for done before its work was handed out
    found[pool] = rows
sys.stderr.write("@" + json.dumps(found))
"""


@pytest.fixture
def petastorm():
    """Need the environment."""
    return petastorm_interpreter.ready()


def _read(what, where, **options):
    """Return what a reader of Petastorm's yields, the same from every kind of pool."""
    python = str(petastorm_interpreter.ready().interpreter)
    command = [python, "-W", "ignore", "-c", READ, what, json.dumps(where), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stderr.rpartition("@")[2])
    assert found.keys() == {"dummy", "thread", "process"}
    ordered = [sorted(rows, key=json.dumps) for rows in found.values()]
    assert ordered[0] == ordered[1] == ordered[2]
    return ordered[0]


CODE = '''
import datetime as dt
from decimal import Decimal
import numpy as np
from PIL import Image

def rows():
    yield {"__key__": "none"}
    for n in range(40):
        yield {
            "__key__": f"k/{n:02}", "i8": np.int8(-n), "u64": 2**63 + n, "half": np.float16(n / 2),
            "double": n / 3, "flag": n % 2 == 0, "text": f"é{n}", "raw": bytes([0, n, 0]),
            "price": Decimal(n) / 4, "when": dt.datetime(2024, 1, 1, 0, 0, n, n),
            "zoned": dt.datetime(2024, 1, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2))),
            "day": dt.date(1960, 1, 1 + n % 9), "time": dt.time(1, 2, 3, n),
            "took": dt.timedelta(seconds=n), "fixed": np.full((2, 3), n, np.float32),
            "varying": np.full((n % 3, 2), n, np.uint16), "numbers": [n, n + 1][: n % 3],
            "words": ["a", "bc"], "nested": {"x": [dt.date(2024, 1, 1)], "y": None},
            "image": b"", "picture": Image.new("L", (4, 2), n), "bits": np.arange(4) < n % 4,
        }
'''  # fmt: skip


@pytest.fixture
def wide(tmp_path, monkeypatch):
    """Return what converts records of many types, in a format."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "wide_corpus.py").write_text(CODE)

    def convert(form="parquet"):
        geodata.convert(
            "wide_corpus:rows", tmp_path / form, format=form, shard_size=2000, workers=1
        )
        return str(tmp_path / form)

    yield convert
    sys.modules.pop("wide_corpus", None)


@pytest.mark.parametrize("form", ["parquet", "hdf5"])
def test_an_export_is_read_by_make_reader_with_every_value(wide, tmp_path, form):
    report = export(wide(form), tmp_path / "out", workers=1)
    assert (report.records, report.denied) == (41, 0)
    rows = {row["geodata_key"]: row for row in _read("make_reader", f"file://{tmp_path}/out")}
    assert len(rows) == 41
    nothing = rows.pop("none")
    assert nothing == {"geodata_key": "none", **dict.fromkeys(nothing.keys() - {"geodata_key"})}
    for n in range(40):
        assert rows[f"k/{n:02}"] == {
            "geodata_key": f"k/{n:02}",
            "i8": -n,
            "u64": 2**63 + n,
            "half": n / 2,
            "double": n / 3,
            "flag": n % 2 == 0,
            "text": f"é{n}",
            "raw": bytes([0, n, 0]).hex(),
            "price": str((Decimal(n) / 4).quantize(Decimal("0.01"))),
            "when": f"2024-01-01 00:00:{n:02}" + (f".{n:06}" if n else ""),
            "zoned": "2024-01-01 00:00:00",
            "day": f"1960-01-0{1 + n % 9}",
            "time": f"01:02:03.{n:06}",
            "took": f"0 days 00:00:{n:02}",
            "fixed": ["float32", [2, 3], [float(n)] * 6],
            "varying": ["uint16", [n % 3, 2], [n] * (2 * (n % 3))],
            "numbers": ["int64", [n % 3], [n, n + 1][: n % 3]],
            "words": ["<U2", [2], ["a", "bc"]],
            "nested": '{"x": ["2024-01-01"], "y": null}',
            "image": "",
            "picture": rows[f"k/{n:02}"]["picture"],
            "bits": ["bool", [4], [m < n % 4 for m in range(4)]],
        }
        assert bytes.fromhex(rows[f"k/{n:02}"]["picture"]).startswith(b"\x89PNG")


def test_an_export_comes_back_as_it_was(tmp_path):
    geodata.convert(BY_SPARK, tmp_path / "raw", workers=1)
    export(str(tmp_path / "raw"), tmp_path / "out", workers=2)
    report = geodata.convert(tmp_path / "out", tmp_path / "back", workers=1)
    assert (report.kind, report.records_out) == ("petastorm", 11)
    wanted = {f["name"]: f["type"] for f in geodata.inspect(str(tmp_path / "raw")).schema}
    found = {f["name"]: f["type"] for f in report.schema}
    assert found == {**wanted, "geodata_key": "string"}


def test_columns_are_chosen_and_images_are_decoded_by_petastorm(wide, tmp_path):
    report = export(wide(), tmp_path / "out", columns=["picture", "i8"], decode_images=True)
    assert report.columns == ["picture", "i8"]
    source = open_source(tmp_path / "out")
    described = source.merge([source.scan(piece) for piece in source.pieces(1)])
    assert described.field("picture").metadata == {b"geodata.media": b"image"}
    with pytest.raises(ConfigError, match="there is no column 'x'"):
        export(wide(), tmp_path / "other", columns=["x"])


def test_shards_are_read_as_they_are_by_make_batch_reader(wide):
    files = [f"file://{shard.file}" for shard in list_files(wide()).shards]
    assert len(files) > 1
    names = ["i8", "u64", "double", "flag", "text", "raw", "price", "when", "day", "took"]
    with pytest.raises(AssertionError, match="LogicalType"):
        _read("make_batch_reader", files, schema_fields=names)  # a float16 stands in the files


def test_scalars_are_read_as_they_are_by_make_batch_reader(tmp_path):
    lines = [{"n": n, "x": n / 4, "flag": n % 2 == 0, "word": f"w{n}"} for n in range(50)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    geodata.convert(tmp_path / "a.jsonl", tmp_path / "out", shard_size=500, workers=1)
    files = [f"file://{shard.file}" for shard in list_files(str(tmp_path / "out")).shards]
    found = []
    for batch in _read("make_batch_reader", files, schema_fields=["(?!__).*"]):
        found += zip(*(batch[name][2] for name in ("n", "x", "flag", "word")), strict=True)
    assert sorted(found) == [tuple(line.values()) for line in lines]


def test_what_policy_denies_is_counted_and_all_is_logged(posts_dataset, tmp_path):
    config = load_config(posts_dataset, [f"audit.dir={tmp_path / 'audit'}"])
    reference = str(config.resolve(config.dataset.root))
    report = export(reference, tmp_path / "out", config=config, workers=1)
    assert report.records + report.denied == 300
    assert report.records > 0
    assert report.denied > 0
    events = [event for path in (tmp_path / "audit").iterdir() for event in read_segment(path)]
    logged = [event for event in events if event.get("action") == "export"]
    counts = {True: 0, False: 0}
    for event in logged:
        counts[event["allowed"]] += event["records"]
    assert counts == {True: report.records, False: report.denied}


MISTAKES = [
    ({"class": 1}, "Petastorm cannot name a column so"),
    ({"a b": 1}, "Petastorm cannot name a column so"),
    ({"a": [1, None]}, "NumPy has no null in a list"),
    ({"a": ["x", None]}, "NumPy has no null in a list"),
    ({"a": ["x\0"]}, "no NUL at the end of a string"),
    ({"geodata_key": 1}, "the name is that of the exported key"),
]


@pytest.mark.parametrize(("record", "message"), MISTAKES)
def test_what_petastorm_cannot_hold_is_refused(tmp_path, record, message):
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    geodata.convert(tmp_path / "a.jsonl", tmp_path / "raw", workers=1)
    with pytest.raises(SchemaError, match=message):
        export(str(tmp_path / "raw"), tmp_path / "out", workers=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "raw"]


def test_a_damaged_shard_is_not_exported(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "aaaaaaaaaaaaaaaaaaaaaaaa"}\n')
    geodata.convert(tmp_path / "a.jsonl", tmp_path / "raw", format="tfrecord", workers=1)
    (path,) = (tmp_path / "raw/data").rglob("*.tfrecord")
    path.write_bytes(path.read_bytes().replace(b"aaaa", b"bbbb"))
    with pytest.raises(CorruptShard, match="does not match its digest"):
        export(str(tmp_path / "raw"), tmp_path / "out", workers=1)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["a.jsonl", "raw"]


def test_a_folder_that_holds_something_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="the folder holds something"):
        export("nothing", tmp_path)


def test_the_command_line(wide, tmp_path):
    command = [sys.executable, "-m", "geodata.cli", "petastorm", "export"]
    done = subprocess.run(
        [*command, wide(), "out", "--columns", "i8,text", "--json", "--workers", "1"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["columns"] == ["i8", "text"]
    assert (
        np.sum([row["i8"] or 0 for row in _read("make_reader", f"file://{tmp_path}/out")]) == -780
    )
