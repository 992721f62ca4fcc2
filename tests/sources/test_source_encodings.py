"""Text in other encodings becomes UTF-8 exactly, or is rejected with the place: never mojibake."""

import gzip
import json
import unicodedata

import pytest
from source_reading import read_all

from geodata.errors import ConfigError
from geodata.sources import Reading, corpus, open_source
from geodata.sources.encodings import declared as encodings
from geodata.sources.encodings.declared import Coding, checked_encoding, coding_of, coding_of_text
from geodata.sources.text import jsonl

OTHER = "if it is in another encoding, say which it is with --encoding"
DOUBT = "it is not UTF-8, and its encoding is not certain; say which it is with --encoding"
TEXTS = {
    "cp1252": "Niemand darf willkürlich festgenommen werden. Die Würde des Menschen ist "
    "unantastbar; sie zu achten und zu schützen ist Verpflichtung aller Gewalt. Männer und Frauen "
    "dürfen für die gleiche Tätigkeit gleichen Lohn fordern. Über die Gründe müssen Behörden "
    "öffentlich Auskunft gewähren, und die Größe der Beträge ist zu veröffentlichen.",
    "cp1251": "Все люди рождаются свободными и равными в своем достоинстве и правах. " * 3,
    "koi8-r": "Каждый человек имеет право на жизнь, на свободу и на личную неприкосновенность. "
    * 3,
    "cp932": "すべての人間は、生れながらにして自由であり、かつ、尊厳と権利とについて平等である。"
    * 3,
    "euc_kr": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. " * 3,
    "cp1256": "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق وقد وهبوا عقلا وضميرا. " * 3,
}
WIDE = ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"]
NARROW = "latin-1 shift_jis gb18030 iso2022_jp iso2022_kr cp037 utf-7 big5".split()


def _read(path, encoding, target=1 << 30, **options):
    source = open_source(path, source_id="s", reading=Reading(encoding=encoding, **options))
    return read_all(source, target)


VALUES = {
    "latin-1": "é ü",
    "cp037": "é ü",
    "shift_jis": "表 ソ",
    "big5": "功 許",
    "iso2022_jp": "日 本",
    "iso2022_kr": "한 국",
}


def _text_for(encoding):
    return VALUES.get(encoding, "日 é")


@pytest.mark.parametrize(
    "encoding", [*WIDE, "latin-1", "shift_jis", "gb18030", "iso2022_jp", "utf-7"]
)
def test_texts_become_utf8(tmp_path, encoding):
    text = "a\r\n" + {"latin-1": "é"}.get(encoding, "日本") + "\n"
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode(encoding)))
    read = _read(tmp_path, encoding)
    assert read.column("text") == [text, text]


def test_marks_are_no_text_but_that_of_utf8_stays_as_it_was(tmp_path):
    for encoding, text in (("utf-16", "é"), ("utf-8-sig", "é"), ("utf-8", "\ufeffé")):
        (tmp_path / "a.txt").write_bytes(
            "é".encode("utf-8-sig" if encoding == "utf-8" else encoding)
        )
        assert _read(tmp_path, encoding).column("text") == [text]


@pytest.mark.parametrize("encoding", [*WIDE, *NARROW])
def test_line_json_in_other_encodings(tmp_path, monkeypatch, encoding):
    value = _text_for(encoding)
    records = [{"n": i, "s": f"{value}{i}"} for i in range(3_000)]
    text = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records)
    (tmp_path / "a.jsonl").write_bytes(text.encode(encoding))
    monkeypatch.setattr(jsonl, "_BLOCK_BYTES", 1 << 15)
    monkeypatch.setattr(jsonl, "_SCAN_BYTES", 1 << 15)
    for target in (1 << 30, 5_000):
        read = _read(tmp_path, encoding, target)
        assert list(read.records.values()) == records
        assert read.rejects == []


def test_only_what_can_be_cut_after_a_newline_is_cut(tmp_path):
    text = '{"a": 1}\n' * 1_000
    (tmp_path / "a.jsonl").write_bytes(text.encode("utf-16"))
    counts = {}
    for encoding in ("utf-16", "latin-1", "detect", "utf-8"):
        source = open_source(tmp_path, reading=Reading(encoding=encoding))
        counts[encoding] = len(source.pieces(1_000))
    assert counts["utf-16"] == counts["detect"] == 1
    assert counts["latin-1"] == counts["utf-8"] > 10


@pytest.mark.parametrize("encoding", [*WIDE, *NARROW])
def test_csv_in_other_encodings(tmp_path, encoding):
    value = _text_for(encoding)
    rows = [f'{i},"{value}\n""{i}"""' for i in range(500)]
    text = "n,s\r\n" + "\r\n".join(rows) + "\r\n"
    (tmp_path / "a.csv").write_bytes(text.encode(encoding))
    read = _read(tmp_path, encoding)
    assert read.column("n") == list(range(500))
    assert read.column("s") == [f'{value}\n"{i}"' for i in range(500)]


def test_newlines_are_looked_for_at_whole_characters(tmp_path):
    """U+0A00 to U+0AFF and U+000A share their bytes."""
    text = "".join(
        json.dumps({"s": chr(0x0A05) * i + chr(0x0A)}, ensure_ascii=False) + "\n" for i in range(50)
    )
    for encoding in ("utf-16-le", "utf-16-be"):
        (tmp_path / "a.jsonl").write_bytes(text.encode(encoding))
        assert _read(tmp_path, encoding).column("s") == [chr(0x0A05) * i + "\n" for i in range(50)]


def test_a_line_that_does_not_decode_is_rejected_alone(tmp_path):
    lines = [b'{"s": "\x83\x5c"}', b'{"s": "\x83"}', b'{"s": "x"}', b'{"s": "\xfd"}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    read = _read(tmp_path, "shift_jis")
    assert read.column("s") == ["ソ", "x"]
    assert [(r.row, r.reason, r.raw) for r in read.rejects] == [
        (2, "invalid shift_jis at byte 7 of the line", lines[1] + b"\n"),
        (4, "invalid shift_jis at byte 7 of the line", lines[3]),
    ]


def test_a_record_of_a_csv_that_does_not_decode_is_rejected_alone(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'a,b\n\xe9,1\n"x\n\x81",2\ny,3\n')
    read = _read(tmp_path, "cp1252")
    assert read.column("a") == ["é", "y"]
    assert read.reasons() == [(2, "invalid cp1252 at byte 11 of the file")]
    assert read.rejects[0].raw == b'"x\n\x81",2\n'


def test_a_text_that_does_not_decode_is_rejected_with_the_place(tmp_path):
    data = "ab".encode("utf-16") + b"\x00\xd8"
    (tmp_path / "a.txt").write_bytes(data)
    read = _read(tmp_path, "utf-16")
    assert [(r.reason, r.raw) for r in read.rejects] == [("invalid utf-16-le at byte 6", data)]


def test_half_a_unit_at_the_end_is_rejected(tmp_path):
    (tmp_path / "a.jsonl").write_bytes('{"a": 1}\n{"a": 2}\n'.encode("utf-16-le") + b"{")
    read = _read(tmp_path, "utf-16-le")
    assert read.column("a") == [1, 2]
    assert read.reasons() == [(3, "invalid utf-16-le at byte 0 of the line")]


def test_overflows_are_found_in_other_encodings_too(tmp_path):
    (tmp_path / "a.jsonl").write_bytes('{"a": 1.5}\n{"a": 1e400}\n'.encode("utf-16"))
    assert _read(tmp_path, "utf-16").reasons() == [(2, "a number is too large for a float64")]


@pytest.mark.parametrize("name", ["klingon", "rot13", "base64", "undefined", "idna", "", "a\0b"])
def test_an_unknown_encoding_is_the_users_mistake(tmp_path, name):
    (tmp_path / "a.txt").write_bytes(b"x")
    with pytest.raises(ConfigError, match="no encoding of text"):
        open_source(tmp_path, reading=Reading(encoding=name))


def test_usual_names_are_one_encoding():
    assert checked_encoding("UTF8") == "utf-8"
    assert checked_encoding("latin1") == checked_encoding("ISO-8859-1") == "iso8859-1"


@pytest.mark.parametrize("encoding", TEXTS)
def test_encodings_are_recognised(encoding):
    text = TEXTS[encoding]
    found = coding_of("detect", text.encode(encoding))
    assert text.encode(encoding).decode(found.name) == text
    assert found.confidence >= encodings.SURE


SHORT = {
    "cp1252": "Où est passé le garçon ? Il a été vu à la fenêtre, très tôt.",
    "iso8859-15": "La sœur a cuisiné des œufs et un bœuf : été comme hiver, c'était la fête.",
    "cp1250": "Příliš žluťoučký kůň úpěl ďábelské ódy, říká babička.",
    "iso8859-2": "Pójdźże, kiń tę chmurność w głąb flaszy, zażółć gęślą jaźń.",
    "cp1254": "Şu köşe yaz köşesi, ağaçların altında çığlık atıyor.",
    "cp1257": "Įlinkdama fechtuotojo špaga sublykčiojusi pragręžė apvalų arbūzą.",
    "cp1258": "Trăm năm trong cõi người ta, chữ tài chữ mệnh khéo là ghét nhau.",
    "koi8-r": "Съешь ещё этих мягких французских булок, да выпей чаю.",
    "cp866": "Съешь ещё этих мягких французских булок, да выпей чаю.",
    "iso8859-5": "Съешь ещё этих мягких французских булок, да выпей чаю.",
    "cp1253": "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία, είπε ο άνθρωπος στην αγορά.",
    "cp1255": "דג סקרן שט בים מאוכזב ולפתע מצא חברה, והוא שמח מאוד.",
    "iso8859-6": "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق.",
    "cp874": "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน",
    "cp850": "Die Würde des Menschen ist unantastbar, über alle Maßen schön für Männer.",
    "mac-roman": "Où est passé le garçon ? Il a été vu à la fenêtre, très tôt.",
    "euc_jp": "すべての人間は、生れながらにして自由であり、",
    "iso2022_jp": "すべての人間は、生れながらにして自由であり、",
    "iso2022_kr": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "gb18030": "人人生而自由，在尊严和权利上一律平等。",
    "cp950": "人人生而自由，在尊嚴和權利上一律平等。",
    "cp949": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "utf-16-le": "Съешь ещё этих мягких французских булок.",
    "utf-16-be": "すべての人間は、生れながらにして自由であり、",
}


@pytest.mark.parametrize("encoding", SHORT)
def test_encodings_of_a_line_are_recognised(encoding):
    text = SHORT[encoding]
    if encoding == "cp1258":
        text = "".join(_with_mark(letter) for letter in text)
    found = coding_of("detect", text.encode(encoding))
    assert text.encode(encoding).decode(found.name) == text
    assert encodings.SURE <= found.confidence <= 1


def _with_mark(letter):
    """Return a letter of Vietnamese with its tone apart, as Windows-1258 has it."""
    parts = unicodedata.normalize("NFD", letter)
    tone = "".join(part for part in parts if part in "\u0300\u0301\u0303\u0309\u0323")
    return unicodedata.normalize("NFC", parts.replace(tone, "")) + tone


def test_of_equal_readings_the_widest_encoding_is_named():
    text = "Où est passé le garçon ? Il a été vu à la fenêtre, très tôt."
    assert coding_of("detect", text.encode("latin-1")).name == "cp1252"
    text = TEXTS["euc_kr"]
    assert coding_of("detect", text.encode("euc_kr")).name == "cp949"


@pytest.mark.parametrize(
    "script", ["देवनागरी लिपि में लिखा हुआ ", "ქართული ენა არის ", "Hello there, "]
)
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_wide_text_without_a_mark_is_recognised_in_any_script(script, encoding):
    assert coding_of("detect", (script * 5).encode(encoding)).name == encoding


def test_damaged_utf8_is_utf8(tmp_path):
    good = "Où est passé le garçon ? Il a été vu à la fenêtre.\n".encode()
    (tmp_path / "a.txt").write_bytes(good * 3 + b"\xe9\n")
    (tmp_path / "b.txt").write_bytes(good * 3_000 + b"\xe9\n")
    (tmp_path / "c.txt").write_bytes(good)
    read = _read(tmp_path, "detect")
    assert read.column("text") == [good.decode()]
    assert [reason.partition(";")[0] for _, reason in read.reasons()] == [
        f"invalid UTF-8 at byte {len(good) * 3}",
        f"invalid UTF-8 at byte {len(good) * 3_000}",
    ]


def test_in_doubt_the_files_beside_tell_but_do_not_overrule(tmp_path):
    long, short = SHORT["koi8-r"], "да"
    for folder, encoding in (("k", "koi8-r"), ("w", "cp1251")):
        (tmp_path / folder).mkdir()
        for number in range(3):
            (tmp_path / folder / f"{number}.txt").write_bytes(f"{long} {number}".encode(encoding))
        (tmp_path / folder / "s.txt").write_bytes(short.encode(encoding))
    (tmp_path / "w" / "x.txt").write_bytes(bytes(range(128, 256)))
    (tmp_path / "s.txt").write_bytes(short.encode("koi8-r"))
    source = open_source(tmp_path, source_id="s", reading=Reading(encoding="detect"))
    for target in (1 << 30, 1):
        read = read_all(source, target)
        texts = [f"{long} {number}" for number in range(3)]
        assert read.column("text") == [*texts, short, *texts, short]
        assert [(r.file, r.reason) for r in read.rejects] == [("s.txt", DOUBT), ("w/x.txt", DOUBT)]
    found = {}
    for piece in source.pieces(1 << 30):
        found |= source.scan(piece).encodings
    assert found["k/s.txt"][0] == "koi8-u"
    assert found["w/s.txt"][0] == "cp1251"
    assert not source.reads_own_files
    assert open_source(tmp_path).reads_own_files


@pytest.mark.parametrize(
    "data",
    [
        "é".encode("latin-1"),
        b"na\xefve",
        b'{"a": "\x80\x81\x98\xff"}\n' * 5_000,
        b"\xff\xfe\xfd\xfc\x80\x81",
        bytes(range(128, 256)),
    ],
)
def test_what_is_in_doubt_is_not_guessed_at(tmp_path, data):
    if data.startswith(b"\xff\xfe"):
        data = b"\x80" + data
    (tmp_path / "a.txt").write_bytes(data)
    read = _read(tmp_path, "detect")
    assert read.records == {}
    assert read.reasons() == [(None, DOUBT)]
    assert read.rejects[0].raw == data


def test_utf8_and_marks_come_first(tmp_path):
    for name, data in (
        ("a.txt", "plain"),
        ("b.txt", "森 é"),
        ("c.txt", "\ufeffmark"),
        ("e.txt", "zeros \0 are text"),
    ):
        (tmp_path / name).write_bytes(data.encode())
    for name, encoding in (("f.txt", "utf-16"), ("g.txt", "utf-32"), ("h.txt", "utf-16-be")):
        (tmp_path / name).write_bytes("Hello, é".encode(encoding))
    source = open_source(tmp_path, source_id="s", reading=Reading(encoding="detect"))
    read = read_all(source)
    assert read.column("text") == [
        *("plain", "森 é", "\ufeffmark", "zeros \0 are text", "Hello, é", "Hello, é", "Hello, é"),
    ]
    scans = [source.scan(piece) for piece in source.pieces(1 << 30)]
    assert scans[0].encodings == {
        "f.txt": ("utf-16-le", 1.0),
        "g.txt": ("utf-32-le", 1.0),
        "h.txt": ("utf-16-be", 1.0),
    }


def test_each_file_is_recognised_and_told(tmp_path):
    for encoding in ("cp1251", "cp932"):
        text = TEXTS[encoding]
        (tmp_path / f"{encoding}.csv").write_bytes(f'a,b\n1,"{text}"\n'.encode(encoding))
        rows = [json.dumps({"a": 1, "b": text}, ensure_ascii=False)] * 400
        (tmp_path / f"{encoding}.jsonl").write_bytes("\n".join(rows).encode(encoding))
    for kind in ("csv", "jsonl"):
        reading = Reading(encoding="detect")
        source = open_source(tmp_path, kind=kind, source_id="s", reading=reading)
        for target in (1 << 30, 1 << 15):
            read = read_all(source, target)
            assert set(read.column("b")) == {TEXTS["cp1251"], TEXTS["cp932"]}
            assert read.rejects == []
            found = {}
            for piece in source.pieces(target):
                found |= source.scan(piece).encodings
            assert {name: encoding for name, (encoding, _) in found.items()} == {
                f"cp1251.{kind}": "cp1251",
                f"cp932.{kind}": "cp932",
            }
    assert open_source(tmp_path, kind="text").glances
    assert not open_source(tmp_path, kind="text", reading=Reading(encoding="detect")).glances


def test_a_doubtful_file_is_one_reject(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"a,b\n\xe9,1\n")
    (tmp_path / "b.csv").write_bytes(b"a,b\nx,1\n")
    read = _read(tmp_path, "detect", target=1)
    assert list(read.records) == ["s/b.csv#1"]
    assert [(r.file, r.row, r.reason) for r in read.rejects] == [("a.csv", None, DOUBT)]
    (tmp_path / "a.jsonl").write_bytes(b'{"a": "\x80\x81\x98\xff"}\n' * 5_000)
    source = open_source(tmp_path, kind="jsonl", reading=Reading(encoding="detect"))
    assert read_all(source, 1_000).reasons() == [(None, DOUBT)]


def test_other_bytes_late_in_a_text_are_looked_at_where_they_are():
    data = b"plain words. " * 20_000 + TEXTS["cp1251"].encode("cp1251")
    assert coding_of_text("detect", data).name == "cp1251"
    french = ("L’été dernier, la fête était très réussie. " * 2_000).replace("’", "'")
    assert coding_of_text("detect", french.encode("iso8859-15")).name == "cp1252"
    later = f"{french} Un bœuf et des œufs coûtent 20 € au marché du cœur de la ville."
    assert coding_of_text("detect", later.encode("iso8859-15")).name == "iso8859-15"


def test_other_bytes_late_in_lines_are_looked_at_where_they_are(tmp_path):
    text = TEXTS["cp1251"]
    plain = ["plain", "7"]
    rows = [plain] * 20_000 + [[text, "8"]]
    (tmp_path / "a.csv").write_bytes("\n".join(map(",".join, [["a", "b"], *rows])).encode("cp1251"))
    lines = [json.dumps({"a": a, "b": b}, ensure_ascii=False) for a, b in rows]
    (tmp_path / "a.jsonl").write_bytes("\n".join(lines).encode("cp1251"))
    for name in ("a.csv", "a.jsonl"):
        read = _read(tmp_path / name, "detect", 100_000)
        assert len(read.records) == 20_001
        assert read.column("a")[-1] == text


def test_other_bytes_too_late_in_lines_are_rejected_by_line(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "_LOOKED_THROUGH", 100_000)
    lines = [b'{"a": "plain"}'] * 20_000 + [b'{"a": "caf\xe9"}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    read = _read(tmp_path, "detect")
    assert len(read.records) == 20_000
    assert read.reasons() == [(20_001, f"invalid UTF-8 at byte 10 of the line; {OTHER}")]


def test_a_coding_knows_its_mark_and_newline():
    assert Coding().mark == b"\xef\xbb\xbf"
    assert (Coding("utf-16-le").mark, Coding("utf-16-le").newline) == (b"\xff\xfe", b"\n\0")
    assert (Coding("cp037").mark, Coding("cp037").newline) == (b"", b"\x25")
    assert coding_of("utf-16", b"\xfe\xff\0a").name == "utf-16-be"
    assert coding_of("utf-16", b"a\0").name == "utf-16-le"
    assert coding_of("utf-8-sig", b"a").name == "utf-8"
