"""Texts become tokens, or are only counted; nothing is added, cut or padded."""

import hashlib
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from preparing import prepared, records
from vocabularies import write_tokenizer

import geodata
from geodata.errors import ConfigError
from geodata.prepare import Preparing, steps_of
from geodata.prepare.tokens import Counting, open_tokenizer
from geodata.schema import media_field

TEXT = [media_field("text", "text")]
TEXTS = ["the sea", "", None, "the sea is blue and wide the sea", "wide"]
IDS = [[2, 3], [], None, [2, 3, 4, 5, 6, 7, 2, 3], [7]]


@pytest.fixture
def tokenizer(tmp_path):
    return write_tokenizer(tmp_path / "words.json", unknown="[UNK]")


def test_texts_become_their_tokens_and_nothing_else(tokenizer):
    made, rejects = prepared(records({"text": TEXTS}, TEXT), tokenizer=tokenizer)
    assert rejects == []
    assert made.schema.field("tokens").type == pa.list_(pa.int32())
    assert made.column("tokens").to_pylist() == IDS
    assert made.column("text").to_pylist() == TEXTS


def test_bytes_are_a_tokenizer_too():
    made, _ = prepared(records({"text": ["aé", None, ""]}, TEXT), tokenizer="bytes")
    assert made.column("tokens").to_pylist() == [[97, 195, 169], None, []]


def test_the_loader_makes_the_same_tokens(tokenizer):
    from tokenizers import Tokenizer

    from geodata.loader.text import FileTokenizer

    plain = Tokenizer.from_file(tokenizer)
    plain.no_padding()
    plain.no_truncation()
    plain.save(tokenizer)
    column = pa.array(TEXTS)
    theirs = [ids.tolist() for ids in FileTokenizer(tokenizer).encode(column)]
    assert theirs == [ids or [] for ids in IDS]


def test_a_text_that_cannot_be_encoded_is_refused_alone(tmp_path):
    picky = write_tokenizer(tmp_path / "picky.json")
    made, rejects = prepared(records({"text": ["the sea", "naïve", None]}, TEXT), tokenizer=picky)
    assert made.column("tokens").to_pylist() == [[2, 3], None]
    assert rejects == [(1, "the tokenizer cannot encode 'text'", "naïve".encode())]


def test_the_text_is_the_only_one_or_named(tokenizer):
    two = [pa.field("a", pa.string()), pa.field("b", pa.large_string()), pa.field("n", pa.int64())]
    batch = records({"a": ["sea"], "b": ["blue"], "n": [1]}, two)
    with pytest.raises(ConfigError, match=r"which column is the text\?.*Name one of a, b"):
        prepared(batch, tokenizer=tokenizer)
    made, _ = prepared(batch, tokenizer=tokenizer, text_column="b")
    assert made.column("tokens").to_pylist() == [[5]]
    for name in ("n", "c", "__key__"):
        with pytest.raises(ConfigError, match=f"'{name}' is no column of text"):
            prepared(batch, tokenizer=tokenizer, text_column=name)
    both = records({"a": ["sea"], "text": ["blue"]}, [two[0], *TEXT])
    assert prepared(both, tokenizer=tokenizer)[0].column("tokens").to_pylist() == [[5]]
    with pytest.raises(ConfigError, match="There is no text"):
        prepared(records({"n": [1]}, two[2:]), tokenizer=tokenizer)


def test_what_cannot_work_is_said_before_anything_is_read(tokenizer, tmp_path):
    batch = records({"text": ["a"], "tokens": [1]}, [*TEXT, pa.field("tokens", pa.int64())])
    with pytest.raises(ConfigError, match="has a column 'tokens' already"):
        prepared(batch, tokenizer=tokenizer)
    (tmp_path / "broken.json").write_text("{}")
    for name in ("broken.json", "none.json"):
        with pytest.raises(ConfigError, match=f"not a tokenizer file.*{name}"):
            prepared(records({"text": ["a"]}, TEXT), tokenizer=str(tmp_path / name))


def test_the_step_is_known_by_the_files_content(tokenizer, tmp_path):
    digest = hashlib.sha256(Path(tokenizer).read_bytes()).hexdigest()
    (step,) = steps_of(Preparing(tokenizer=tokenizer))
    assert step.identity() == f"tokens {digest}"
    other = write_tokenizer(tmp_path / "other.json", unknown="[X]")
    assert steps_of(Preparing(tokenizer=other))[0].identity() != step.identity()


def test_many_texts_are_encoded_in_runs(tokenizer, monkeypatch):
    monkeypatch.setattr("geodata.prepare.tokens._BATCH_CHARS", 20)
    made, _ = prepared(records({"text": TEXTS * 50}, TEXT), tokenizer=tokenizer)
    assert made.column("tokens").to_pylist() == IDS * 50


def test_the_environment_is_left_as_it_was(tokenizer, monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    open_tokenizer(tokenizer)(["the sea"])
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
    monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    open_tokenizer(tokenizer)(["the sea"])
    assert "TOKENIZERS_PARALLELISM" not in os.environ


@pytest.mark.parametrize("workers", [1, 2])
def test_posts_are_converted_with_tokens(workspace, workers):
    words = write_tokenizer(workspace / "words.json", unknown="[UNK]")
    geodata.convert(
        "posts.jsonl",
        "raw",
        preparing=Preparing(tokenizer=words, text_column="text"),
        shard_size=16_000,
        workers=workers,
    )
    encode = open_tokenizer(words)
    files = (workspace / "raw/data").rglob("*.parquet")
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert len(rows) == 300
    assert all(row["tokens"] == encode([row["text"]])[0] for row in rows)


def test_tokens_are_counted_without_being_kept(tokenizer):
    batch = records(
        {"text": TEXTS, "tokens": IDS}, [*TEXT, pa.field("tokens", pa.list_(pa.int32()))]
    )
    expected = [2, 0, 0, 8, 1]
    assert Counting().opened()(batch).tolist() == expected
    assert Counting("text", tokenizer).opened()(batch).tolist() == expected
    assert Counting("text", "bytes").opened()(batch).tolist() == [7, 0, 0, 32, 4]
    Counting().check(batch.schema)
    Counting("text", tokenizer).check(batch.schema)


def test_what_cannot_be_counted_is_refused():
    lists = [pa.field("ids", pa.list_(pa.int64())), pa.field("x", pa.list_(pa.float32())), *TEXT]
    schema = pa.schema(lists)
    with pytest.raises(ConfigError, match="no column 'tokens'.*Lists of integers: ids"):
        Counting().check(schema)
    with pytest.raises(ConfigError, match=r"'x' is list<item: float>, no list of integers"):
        Counting("x").check(schema)
    with pytest.raises(ConfigError, match="no column 'tokens'.*geodata convert --tokenizer"):
        Counting().check(pa.schema(TEXT))
    with pytest.raises(ConfigError, match="'ids' is no column of text"):
        Counting("ids", "bytes").check(schema)
