"""Tables beside media: each row with its file, of any kind of table, and nothing lost silently."""

import io
import json
import pickle
import wave
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from source_reading import read_all

import geodata
from geodata.errors import ConfigError, MissingExtra, SchemaError
from geodata.schema import dataset_schema, media_of, origin_field
from geodata.sources import Reading, open_source
from geodata.sources.batches import Unfit
from geodata.sources.filelist import FileList
from geodata.sources.media.files import MediaFiles

KINDS = ["csv", "tsv", "jsonl", "parquet"]


def _png(width=3, height=2, colour=0):
    out = io.BytesIO()
    Image.new("L", (width, height), colour).save(out, "PNG")
    return out.getvalue()


def _wav(frames=80, rate=8000):
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(bytes(2 * frames))
    return out.getvalue()


def _put(root, files):
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)


def _table(path, kind, rows):
    """Write rows of strings and integers as a table of this kind."""
    names = list(rows[0])
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        mark = "," if kind == "csv" else "\t"
        lines = [names, *([str(row[name]) for name in names] for row in rows)]
        path.write_text("".join(mark.join(line) + "\n" for line in lines))


@pytest.fixture
def pictures(tmp_path):
    """A corpus of three pictures of 3, 4 and 5 pixels' width."""
    root = tmp_path / "pictures"
    _put(root, {f"train/{n}.png": _png(n) for n in (3, 4, 5)})
    return root


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_records_with_the_table_s_columns(pictures, kind):
    rows = [
        {"file_name": "train/5.png", "caption": "five", "n": 5},
        {"file_name": "train/3.png", "caption": "three", "n": 3},
        {"file_name": "train/5.png", "caption": "again", "n": 6},
    ]
    _table(pictures / f"metadata.{kind}", kind, rows)
    source = open_source(pictures, source_id="s", kind="images")
    assert source.kind == "images"
    assert [file.name for file in source.files] == [
        *(f"metadata.{kind}", "train/3.png", "train/4.png", "train/5.png")
    ]
    read = read_all(source)
    assert read.schema.names == ["image", "file_name", "caption", "n", "width", "height"]
    assert media_of(read.schema.field("image")) == "image"
    assert read.schema.field("n").type == pa.int64()
    assert list(read.records) == [f"s/metadata.{kind}#{i}" for i in (1, 2, 3)]
    assert [{k: r[k] for k in rows[0]} for r in read.records.values()] == rows
    assert read.column("width") == [5, 3, 5]
    assert read.column("image") == [_png(5), _png(3), _png(5)]
    assert source.ignored == {"not in the table": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_without_its_file_is_rejected_by_its_number(pictures, kind):
    outside = pictures.parent / "outside.png"
    outside.write_bytes(_png())
    _put(pictures, {"cut.png": _png()[:-9], "cut.txt": "x"})
    names = [
        *("train/3.png", "", "train/gone.png", "../outside.png", str(outside), "cut.png"),
        *("train/../train/4.png", "cut.txt", "./train//4.png"),
    ]
    _table(pictures / f"metadata.{kind}", kind, [{"file_name": n, "i": 1} for n in names])
    source = open_source(pictures, source_id="s", kind="images")
    read = read_all(source)
    assert list(read.records) == [f"s/metadata.{kind}#{i}" for i in (1, 9)]
    away, out = "the row names a file that is not in the corpus", "outside of the corpus"
    assert [bad.row for bad in read.rejects] == [2, 3, 4, 5, 6, 7, 8]
    for bad, reason in zip(
        read.rejects, ["no file", away, out, out, "truncated", out, away], strict=True
    ):
        assert reason in bad.reason
        assert bad.file == f"metadata.{kind}"
    assert read.rejects[4].raw == _png()[:-9]
    assert source.ignored == {".txt": 1, "not in the table": 1}


def test_a_table_elsewhere_is_named_and_its_paths_begin_at_its_folder(pictures):
    _table(pictures / "train" / "list.csv", "csv", [{"picture": "4.png", "path": "3.png"}])
    reading = Reading(table="train/list.csv", file_column="picture")
    source = open_source(pictures, kind="images", source_id="s", reading=reading)
    read = read_all(source)
    assert list(read.records) == ["s/train/list.csv#1"]
    assert read.column("width") == [4]
    by_path = open_source(
        pictures, kind="images", reading=Reading(table=str(pictures / "train/list.csv"))
    )
    assert read_all(by_path).column("width") == [3]
    assert open_source(pictures, kind="images").kind == "images"
    assert read_all(open_source(pictures, kind="images")).column("label") == [0, 0, 0]


def test_a_table_in_a_folder_is_not_passed_over(pictures):
    _table(pictures / "train/metadata.jsonl", "jsonl", [{"file_name": "3.png", "caption": "c"}])
    with pytest.raises(ConfigError, match=r"a table in a folder: train/metadata\.jsonl.*--table"):
        open_source(pictures)
    chosen = open_source(pictures, reading=Reading(table="train/metadata.jsonl"))
    assert read_all(chosen).column("caption") == ["c"]
    (pictures / "train/metadata.jsonl").write_text('{"other": 1}\n')
    assert read_all(open_source(pictures)).column("label") == [0, 0, 0]


def test_a_table_outside_names_files_from_the_corpus_root(pictures, tmp_path):
    _table(tmp_path / "captions.jsonl", "jsonl", [{"file": "train/4.png", "text": "four"}])
    reading = Reading(table=str(tmp_path / "captions.jsonl"))
    source = open_source(pictures, kind="images", source_id="s", reading=reading)
    read = read_all(source)
    assert list(read.records) == ["s/captions.jsonl#1"]
    assert read.column("text") == ["four"]
    assert media_of(read.schema.field("text")) == "text"
    assert source.files[0].name == str(tmp_path / "captions.jsonl")
    assert source.ignored == {"not in the table": 2}


def test_what_cannot_be_a_table_is_refused(pictures, tmp_path):
    with pytest.raises(ConfigError, match=r"no table 'gone\.csv'"):
        open_source(pictures, kind="images", reading=Reading(table="gone.csv"))
    with pytest.raises(ConfigError, match="neither CSV, TSV, line JSON nor Parquet"):
        open_source(pictures, kind="images", reading=Reading(table="train/3.png"))
    with pytest.raises(ConfigError, match="needs a folder"):
        open_source(pictures / "train/3.png", kind="images", reading=Reading(table="x.csv"))
    _table(pictures / "metadata.csv", "csv", [{"file_name": "a"}])
    _table(pictures / "metadata.jsonl", "jsonl", [{"file_name": "a"}])
    with pytest.raises(ConfigError, match=r"several tables: metadata\.csv, metadata\.jsonl"):
        open_source(pictures, kind="images")
    with pytest.raises(ConfigError, match="the folder holds no audio"):
        open_source(pictures, kind="audio", reading=Reading(table="metadata.csv"))


def test_a_table_by_that_name_without_the_column_is_none(pictures):
    _table(pictures / "metadata.csv", "csv", [{"id": "a", "text": "b"}])
    source = open_source(pictures, kind="images")
    assert source.ignored == {".csv": 1}
    assert read_all(source).schema.names == ["image", "label", "width", "height"]


def test_the_column_that_names_files_is_the_likeliest_or_chosen(pictures):
    path = pictures / "t.jsonl"
    reading = Reading(table="t.jsonl")

    def opened(row, **more):
        _table(path, "jsonl", [row])
        source = open_source(pictures, kind="images", reading=Reading(table="t.jsonl", **more))
        return read_all(source)

    assert opened({"path": "train/4.png", "filename": "train/3.png"}).column("width") == [3]
    assert opened({"audio": "x", "image_path": "train/5.png"}).column("width") == [5]
    assert opened({"path": 7, "image_path": "train/5.png"}).column("width") == [5]
    by_image = opened({"id": 1, "image": "train/4.png"})
    assert by_image.schema.names == ["image", "id", "width", "height"]
    assert by_image.column("image") == [_png(4)]
    chosen = opened({"file_name": "x", "image": "train/4.png"}, file_column="image")
    assert chosen.column("file_name") == ["x"]
    with pytest.raises(SchemaError, match="a column 'image' that does not name the files"):
        opened({"file_name": "train/4.png", "image": "x"})
    with pytest.raises(ConfigError, match="no column that names files.*: id"):
        opened({"id": 4})
    with pytest.raises(ConfigError, match="no column 'id' of strings"):
        opened({"id": 4}, file_column="id")
    assert reading.file_column is None


def test_sizes_in_the_table_go_before_those_of_headers(pictures):
    rows = [
        {"file_name": "train/3.png", "width": 30, "height": "tall"},
        {"file_name": "train/4.png", "width": None, "height": None},
    ]
    _table(pictures / "metadata.jsonl", "jsonl", rows)
    read = read_all(open_source(pictures, kind="images"))
    assert read.schema.names == ["image", "file_name", "width", "height"]
    assert read.column("width") == [30, 4]
    assert read.column("height") == ["tall", None]


def test_a_file_is_found_without_suffix_and_without_the_one_folder():
    files = FileList([(n.encode(), 1, 1) for n in ("w/a.b.wav", "w/a.flac", "w/c.wav", "w/c.mp3")])
    finder = MediaFiles(files, "")
    assert [files.name(finder.find(n)) for n in ("w/a", "a", "a.b", "c.wav")] == [
        *("w/a.flac", "w/a.flac", "w/a.b.wav", "w/c.wav")
    ]
    with pytest.raises(Unfit, match="there are several"):
        finder.find("w/c")
    with pytest.raises(Unfit, match="not in the corpus"):
        finder.find("w")
    two = MediaFiles(FileList([(b"x/a.wav", 1, 1), (b"y/b.wav", 1, 1)]), "")
    with pytest.raises(Unfit, match="not in the corpus"):
        two.find("a.wav")


def test_audio_has_what_its_headers_say(tmp_path):
    _put(tmp_path, {"clips/a.wav": _wav(), "clips/b.wav": _wav(16, 16000)})
    _table(tmp_path / "validated.tsv", "tsv", [{"path": "b.wav", "transcript": "yes", "age": 3}])
    reading = Reading(table="validated.tsv")
    read = read_all(open_source(tmp_path, kind="audio", source_id="s", reading=reading))
    assert read.schema.names == [
        *("audio", "path", "transcript", "age", "sample_rate", "channels", "frames", "duration")
    ]
    assert media_of(read.schema.field("transcript")) == "text"
    assert read.records == {
        "s/validated.tsv#1": {
            **{"audio": _wav(16, 16000), "path": "b.wav", "transcript": "yes", "age": 3},
            **{"sample_rate": 16000, "channels": 1, "frames": 16, "duration": 0.001},
        }
    }


def test_a_table_without_header_has_the_columns_given(pictures):
    _put(pictures, {"list.tsv": "train/3\tdrei\ntrain/5\tfünf\ntrain/9\tneun\n"})
    reading = Reading(table="list.tsv", header=False, columns=("path", "caption"))
    read = read_all(open_source(pictures, kind="images", source_id="s", reading=reading))
    assert list(read.records) == ["s/list.tsv#1", "s/list.tsv#2"]
    assert read.column("caption") == ["drei", "fünf"]
    assert read.column("width") == [3, 5]
    assert [bad.row for bad in read.rejects] == [3]


@pytest.mark.parametrize("kind", KINDS)
def test_large_media_cut_the_table_into_parts_that_give_the_same(tmp_path, kind):
    data = _png(400, 400, 7) + bytes(1 << 14)
    _put(tmp_path, {f"{i:03}.png": data for i in range(100)})
    rows = [{"file_name": f"{99 - i:03}.png", "i": i} for i in range(100)]
    rows[41]["file_name"] = "gone.png"
    _table(tmp_path / f"metadata.{kind}", kind, rows)
    source = open_source(tmp_path, kind="images", source_id="s")
    whole = read_all(source, 1 << 40)
    small = read_all(source, 1 << 16)
    pieces = source.pieces(1 << 16)
    assert len(source.pieces(1 << 40)) == 1
    assert 20 <= len(pieces) <= 64
    assert sum(piece.nbytes for piece in pieces) >= 100 * len(data) * 0.9
    assert small.records == whole.records
    assert list(small.records) == [f"s/metadata.{kind}#{i + 1}" for i in range(100) if i != 41]
    assert [(b.row, b.reason) for b in small.rejects] == [(b.row, b.reason) for b in whole.rejects]
    assert [b.row for b in whole.rejects] == [42]


def test_a_part_is_read_by_a_source_that_never_cut_the_table(tmp_path):
    data = _png() + bytes(1 << 14)
    _put(tmp_path, {f"{i}.png": data for i in range(9)})
    _table(tmp_path / "metadata.csv", "csv", [{"file_name": f"{i}.png"} for i in range(9)])
    source = open_source(tmp_path, kind="images")
    pieces = source.pieces(1 << 14)
    schema = dataset_schema(source.merge([source.scan(piece) for piece in pieces]))
    fresh = pickle.loads(pickle.dumps(open_source(tmp_path, kind="images")))
    (batch,) = fresh.read(pieces[1], 0, schema, {}, None)
    assert batch.column("file_name").to_pylist() == [f"{pieces[1].start}.png"]


@pytest.mark.parametrize("kind", KINDS)
def test_origins_are_those_of_the_table(pictures, kind):
    _table(pictures / f"metadata.{kind}", kind, [{"file_name": "train/3.png", "x": 1}] * 2)
    source = open_source(pictures, kind="images")
    (piece,) = source.pieces(1 << 20)
    schema = dataset_schema(source.merge([source.scan(piece)])).append(origin_field("from"))
    (batch,) = source.read(piece, 0, schema, {}, None)
    assert batch.column("from").to_pylist() == [
        {"file": f"metadata.{kind}", "row": 1},
        {"file": f"metadata.{kind}", "row": 2},
    ]


def test_batches_are_bounded(tmp_path):
    data = _png() + bytes(3 << 20)
    _put(tmp_path, {"a.png": data})
    _table(tmp_path / "metadata.csv", "csv", [{"file_name": "a.png"}] * 5)
    read = read_all(open_source(tmp_path, kind="images"))
    assert [batch.num_rows for batch in read.batches] == [2, 2, 1]


def test_links_are_followed_as_in_any_listing(pictures):
    (pictures / "train" / "link.png").symlink_to(pictures / "train" / "3.png")
    (pictures / "train" / "dangling.png").symlink_to("nowhere")
    _table(
        pictures / "metadata.csv",
        "csv",
        [{"file_name": "train/link.png"}, {"file_name": "train/dangling.png"}],
    )
    read = read_all(open_source(pictures, kind="images"))
    assert read.column("width") == [3]
    assert [(bad.row, "cannot be read" in bad.reason) for bad in read.rejects] == [(2, True)]


def test_a_table_that_is_broken_rejects_and_does_not_end(pictures):
    (pictures / "t.parquet").write_bytes(b"PAR1 no parquet PAR1")
    source = open_source(pictures, kind="images", reading=Reading(table="t.parquet"))
    with pytest.raises(ConfigError, match="no column that names files"):
        read_all(source)
    _put(pictures, {"metadata.csv": "file_name,x\ntrain/3.png\ntrain/4.png,1\n"})
    read = read_all(open_source(pictures, kind="images", source_id="s"), 1)
    assert list(read.records) == ["s/metadata.csv#2"]
    assert [bad.row for bad in read.rejects] == [1]


def test_a_zip_holds_files_and_table(pictures, tmp_path):
    rows = [{"file_name": "train/4.png", "n": 4}, {"file_name": "train/5", "n": 5}]
    for kind in KINDS:
        _table(pictures / f"table.{kind}", kind, rows)
        with zipfile.ZipFile(tmp_path / "z.zip", "w") as file:
            for path in sorted(pictures.rglob("*.png")):
                file.write(path, path.relative_to(pictures))
            file.write(pictures / f"table.{kind}", f"metadata.{kind}")
        reading = Reading(table=f"metadata.{kind}")
        if kind == "parquet":
            with pytest.raises(ConfigError, match="Parquet table is not read inside zip"):
                open_source(tmp_path / "z.zip", kind="images", reading=reading)
            continue
        read = read_all(open_source(tmp_path / "z.zip", kind="images", source_id="s"))
        assert list(read.records) == [f"s/metadata.{kind}#1", f"s/metadata.{kind}#2"]
        assert read.column("width") == [4, 5]


def test_the_report_counts_what_was_rejected_and_what_no_row_names(pictures, tmp_path):
    rows = [{"file_name": f"train/{n}.png", "caption": "x"} for n in (3, 3, 9)]
    _table(pictures / "metadata.csv", "csv", rows)
    dest = tmp_path / "out"
    done = geodata.convert(pictures, dest, kind="images", on_error="quarantine", workers=1)
    assert (done.records_in, done.records_out, done.rejected) == (3, 2, 1)
    assert done.reasons == {"the row names a file that is not in the corpus": 1}
    assert done.ignored == {"not in the table": 2}
    _put(pictures, {"train/9.png": _png(9)})
    again = geodata.convert(pictures, dest, kind="images", on_error="quarantine", workers=1)
    assert (again.records_out, again.rejected, again.unchanged) == (3, 0, False)


def test_a_table_outside_is_part_of_what_the_conversion_was_made_of(pictures, tmp_path):
    table = tmp_path / "t.jsonl"
    _table(table, "jsonl", [{"file": "train/3.png"}])
    options = {"kind": "images", "workers": 1, "reading": Reading(table=str(table))}
    assert geodata.convert(pictures, tmp_path / "out", **options).records_out == 1
    assert geodata.convert(pictures, tmp_path / "out", **options).unchanged
    _table(table, "jsonl", [{"file": "train/3.png"}, {"file": "train/4.png"}])
    assert geodata.convert(pictures, tmp_path / "out", **options).records_out == 2


def test_without_pillow_the_extra_is_named(pictures, monkeypatch):
    _table(pictures / "metadata.csv", "csv", [{"file_name": "train/3.png"}])
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"geodata-train\[images\]"):
        open_source(pictures, kind="images")
