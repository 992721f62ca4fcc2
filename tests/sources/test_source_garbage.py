"""Whatever the bytes are: no crash, in = out + rejected, and each reason one short line."""

import json
import random

import pytest
from source_reading import read_all

from geodata.errors import GeodataError, SchemaError
from geodata.sources import Reading, open_source

NAMES = ("a.jsonl", "a.json", "a.csv", "a.tsv", "a.txt")
KINDS = dict(zip(NAMES, ("jsonl", "jsonl", "csv", "csv", "text"), strict=True))
ENCODINGS = ("utf-8", "detect", "utf-16", "shift_jis", "utf-7", "cp037")


def _bytes(seed, count):
    return random.Random(seed).randbytes(count)


def _mutated(seed):
    """Return line JSON of which some bytes are changed, left out, put in and repeated."""
    rng = random.Random(seed)
    values = [{"a": i, "b": [i, {"c": str(i)}], "d": 'x,y"z\n'} for i in range(60)]
    data = bytearray("".join(json.dumps(value) + "\n" for value in values).encode())
    for _ in range(40):
        at, kind = rng.randrange(len(data)), rng.randrange(4)
        if kind == 0:
            data[at] = rng.randrange(256)
        elif kind == 1:
            del data[at : at + rng.randrange(1, 30)]
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.randrange(1, 6))
        else:
            data[at:at] = data[max(0, at - rng.randrange(1, 40)) : at]
    return bytes(data)


GARBAGE = {
    "random": _bytes(1, 3_000),
    "a few random bytes": _bytes(2, 40),
    "quotes": b'"' * 100_001,
    "NULs": b"\0" * 100_000,
    "control characters": bytes(range(32)) * 50,
    "high bytes": bytes(range(128, 256)) * 50,
    "opening brackets": b"[" * 100_000,
    "closing brackets": b"]" * 100_000,
    "nested lists": b"[" * 100_000 + b"]" * 100_000,
    "nested objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "a nested value": b'{"a": 1}\n{"a": ' + b"[" * 5_000 + b"]" * 5_000 + b"}\n",
    "half of mixed brackets": b'[{"a":' * 20_000,
    "a huge integer": b'{"a": ' + b"9" * 200_000 + b'}\n{"a": 1}\n',
    "huge exponents": b'{"a": 1e%b}\n{"a": 1e-%b}\n{"a": 1}\n' % (b"9" * 9_999, b"9" * 9_999),
    "a long fraction": b'{"a": 0.' + b"1" * 100_000 + b'}\n{"a": 1.5}\n',
    "half surrogate pairs": b'{"a": "\\ud800"}\n{"a": "\\udc00\\ud800"}\n{"\\ud800": 1}\n',
    "no numbers": b'{"a": NaN}\n{"a": Infinity}\n{"a": -Infinity}\n{"a": nan}\n',
    "keys twice": b'{"a": 1, "a": 2}\n{"a": {"b": 1, "b": 2}}\n',
    "marks in the middle": b'{"a": 1}\n\xef\xbb\xbf{"a": 2}\n{"a": "\xef\xbb\xbf"}\n',
    "two marks": b'\xef\xbb\xbf\xef\xbb\xbf{"a": 1}\n',
    "a mark alone": b"\xef\xbb\xbf",
    "a mark of UTF-16 alone": b"\xff\xfe",
    "half surrogates of UTF-16": b"\xff\xfe" + b"\x00\xd8" * 100 + b"\n\0",
    "overlong UTF-8": b'{"a": "\xc0\xaf"}\n{"a": "\xe0\x80\xaf"}\n{"a": "\xed\xa0\x80"}\n',
    "other line ends": "{\u2028}\n\x0b\x0c\x1c\x85\n\r\r\r".encode(),
    "many commas": b"," * 50_000 + b"\n" + b"\t" * 50_000,
    "quotes over lines": b"a,b\n" + b'"\n' * 2_001,
    "a backslash at the end": b'{"a": "' + b"\\" * 10_001 + b'"}\n',
    "names with line ends": b'{"a\\nb\\u001b[0m": 1}\n{"a\\nb\\u001b[0m": "x"}\n',
    "a long name": b'{"%b": 1}\n{"%b": "x"}\n' % (b"k" * 99_999, b"k" * 99_999),
    "wrong members": b'{"a": {"x": 1}, "b": {"x": 2}, "a": {"x": 3}, "c": 5, "d": [1], "e": {}}',
    "a cut array": b'[{"a":1},,{"a":2},]',
    "mutated": _mutated(1),
    "mutated again": _mutated(2),
}


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("name", NAMES)
def test_garbage_is_counted_and_explained(tmp_path, garbage, name):
    data = GARBAGE[garbage]
    (tmp_path / name).write_bytes(data)
    for encoding in ENCODINGS if len(data) < 20_000 else ENCODINGS[:2]:
        reading = Reading(encoding=encoding)
        source = open_source(tmp_path / name, kind=KINDS[name], source_id="s", reading=reading)
        for target in (1 << 30, 1_000 if len(data) < 20_000 else 50_000):
            try:
                read = read_all(source, target, first_wins=True)
            except GeodataError as error:
                assert _is_a_short_line(str(error), 400)
                continue
            assert all(_is_a_short_line(reject.reason, 250) for reject in read.rejects)


def _is_a_short_line(text, most):
    return text.isprintable() and 0 < len(text) <= most


def test_a_conflict_over_a_long_name_is_a_short_line(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(GARBAGE["a long name"])
    source = open_source(tmp_path / "a.jsonl")
    with pytest.raises(SchemaError) as caught:
        read_all(source)
    assert len(str(caught.value)) < 500
    read = read_all(source, first_wins=True)
    assert len(read.records) == 1
    (row, reason), *_ = read.reasons()
    assert row == 2
    assert reason.startswith("'kkk")
    assert reason.endswith("is int64 here, this record holds string")
    assert len(reason) <= 241
