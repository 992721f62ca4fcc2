"""Options of preparation: refused before any work where a source cannot hold what they are for."""

from dataclasses import fields

import pytest
from PIL import Image

import geodata
from geodata.errors import ConfigError
from geodata.prepare import AS_IS, Preparing
from geodata.prepare.base import TABLED, USED_BY
from geodata.sources import KINDS
from geodata.sources.options import TABLED as WITH_TABLE

GIVEN = {
    "verify": {"verify": True},
    "max_side": {"max_side": 8},
    "encode": {"encode": "webp"},
    "quality": {"encode": "webp", "quality": 80},
    "exif": {"exif": "strip"},
    "tokenizer": {"tokenizer": "bytes"},
    "text_column": {"tokenizer": "bytes", "text_column": "text"},
    "rate": {"rate": 8000},
    "mono": {"mono": True},
}


def test_every_option_is_told_of():
    assert set(GIVEN) == set(USED_BY) == {field.name for field in fields(Preparing)} - {"types"}
    assert TABLED == WITH_TABLE
    for kinds in USED_BY.values():
        assert set(kinds) <= {*KINDS, TABLED}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", GIVEN)
def test_an_option_is_used_or_refused(kind, name):
    preparing = Preparing(**GIVEN[name])
    preparing.check(kind, TABLED)
    if kind in USED_BY[name]:
        preparing.check(kind)
    else:
        with pytest.raises(
            ConfigError, match=rf"^--[a-z-]+ is not for {kind}. It is for "
        ) as caught:
            preparing.check(kind)
        assert caught.value.message.split()[0] in preparing.options()


def test_types_are_declared_of_every_kind():
    for kind in KINDS:
        Preparing(types=(("a", "int8"),)).check(kind)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"text_column": "a"}, "--text-column is of a tokenizer.*--tokenizer FILE"),
        ({"quality": 80}, "--quality is of images that are written anew.*--encode or --max-side"),
        ({"quality": 90, "verify": True}, "--quality is of images"),
        ({"quality": 80, "encode": "png"}, "--quality is not for PNG"),
        ({"quality": 80, "encode": "png", "max_side": 8}, "--quality is not for PNG"),
    ],
)
def test_an_option_without_the_one_it_goes_with_is_refused(asked, told):
    with pytest.raises(ConfigError, match=told):
        Preparing(**asked)


def test_the_usual_quality_is_no_other_plan():
    usual = Preparing(encode="jpeg")
    assert Preparing(encode="jpeg", quality=90).to_json() == usual.to_json() == {"encode": "jpeg"}
    assert Preparing(max_side=8, quality=91).to_json() == {"max_side": 8, "quality": 91}
    assert AS_IS.to_json() == {}


@pytest.mark.parametrize(
    ("source", "asked", "told"),
    [
        ("a.jsonl", {"max_side": 8}, "--max-side is not for jsonl"),
        ("a.jsonl", {"mono": True}, "--mono is not for jsonl"),
        ("pictures", {"tokenizer": "bytes"}, "--tokenizer is not for images"),
        ("pictures", {"rate": 8000}, "--rate is not for images"),
    ],
)
def test_a_conversion_begins_nothing(tmp_path, source, asked, told):
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (2, 2)).save(tmp_path / "pictures/a.png")
    with pytest.raises(ConfigError, match=told):
        geodata.convert(tmp_path / source, tmp_path / "out", preparing=Preparing(**asked))
    assert not (tmp_path / "out").exists()


def test_captions_beside_images_can_become_tokens(tmp_path):
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (2, 2)).save(tmp_path / "pictures/a.png")
    (tmp_path / "pictures/metadata.csv").write_text("file_name,caption\na.png,a dot\n")
    report = geodata.convert(
        tmp_path / "pictures",
        tmp_path / "out",
        preparing=Preparing(tokenizer="bytes", text_column="caption"),
        workers=1,
    )
    assert report.records_out == 1 and report.schema[-1]["name"] == "tokens"
