"""Tags, the gate and the audit: deny by default, written down first, and tamper-evident."""

import json
import multiprocessing

import pytest

from geodata.audit import AuditLog, audit_log, read_segment
from geodata.errors import AuditError, ConfigError, FormatVersionError, ManifestError, PolicyDenied
from geodata.policy import Gate, HomePolicy, Movement
from geodata.stores import Access, open_store
from geodata.tags import (
    CATEGORIES,
    METADATA,
    STAGING,
    UNCLASSIFIED,
    Tag,
    check_region,
    derived,
    law_of,
    quarter_floor,
)

PERSONAL = Tag(region="eu", jurisdiction="DE", applicable_law=("eu-gdpr",))


def allowed(tag, source, target):
    return HomePolicy().decide(Movement("read", tag, source, target, "test")).allowed


def test_the_day_one_rules():
    assert not allowed(None, "eu", "eu")
    assert allowed(METADATA, "eu", "us")
    assert allowed(UNCLASSIFIED, STAGING, STAGING)
    assert not allowed(UNCLASSIFIED, STAGING, "eu")
    assert not allowed(UNCLASSIFIED, "eu", "eu")
    for category in CATEGORIES:
        tag = Tag(region="eu", data_category=category)
        assert allowed(tag, "eu", "eu")
        assert allowed(tag, "us", "eu")
        free = category in ("NonPersonalData", "AnonymisedData")
        assert allowed(tag, "eu", "us") is free


def test_derived_data_carry_the_strictest_tag():
    tags = [
        Tag(region="us", data_category="NonPersonalData", purposes=("ModelTraining", "Research")),
        Tag(
            region="eu",
            data_category="PseudonymisedData",
            applicable_law=("eu-gdpr",),
            purposes=("ModelTraining",),
            retention_until="2027-01-01",
        ),
    ]
    made = derived(tags, "eu")
    assert (made.kind, made.region, made.data_category) == ("derived", "eu", "PseudonymisedData")
    assert made.purposes == ("ModelTraining",)
    assert (made.applicable_law, made.retention_until) == (("eu-gdpr",), "2027-01-01")
    assert not allowed(made, "eu", "us")
    assert not derived([], "eu").personal


def test_tags_round_trip_and_refuse_what_they_do_not_know():
    assert Tag.from_json(json.loads(json.dumps(PERSONAL.to_json()))) == PERSONAL
    with pytest.raises(ManifestError, match="unknown tag fields"):
        Tag.from_json({**PERSONAL.to_json(), "colour": "red"})
    assert PERSONAL.digest != Tag(region="us", jurisdiction="DE").digest


def test_jurisdictions():
    assert [law_of(c) for c in ("DE", "NO", "RE", "GB", "JP", "US")] == [
        ("eu-gdpr",),
        ("eu-gdpr",),
        ("eu-gdpr",),
        ("uk-gdpr",),
        ("jp-appi",),
        (),
    ]
    assert law_of("GL") == law_of("PF") == ()
    import datetime as dt

    assert quarter_floor(dt.date(2028, 11, 30)) == dt.date(2028, 10, 1)
    for bad in ("EU", "_staging", "a b", "eu--x", ""):
        with pytest.raises(ConfigError, match="no region name"):
            check_region(bad)


def events(folder):
    return [e for path in sorted(folder.iterdir()) for e in read_segment(path)]


def test_a_denial_is_written_before_it_is_raised(tmp_path):
    gate = Gate(HomePolicy(), AuditLog(tmp_path))
    with pytest.raises(PolicyDenied, match="read from eu to us denied by rule home-only") as caught:
        gate.check(Movement("read", PERSONAL, "eu", "us", "test", "shard-1", 7))
    assert caught.value.exit_code == 3
    gate.check(Movement("read", PERSONAL, "eu", "eu", "test"))
    first, denial, granted = events(tmp_path)
    assert first["event"] == "segment"
    assert (denial["allowed"], denial["rule"], denial["records"]) == (False, "home-only", 7)
    assert (granted["allowed"], granted["prev"]) == (True, sha(tmp_path, 1))


def sha(folder, row):
    (path,) = folder.iterdir()
    return json.loads(path.read_text().splitlines()[row])["hash"]


def test_if_the_audit_fails_nothing_moves(tmp_path):
    blocked = tmp_path / "audit"
    blocked.write_text("a file where the folder should be")
    gate = Gate(HomePolicy(), AuditLog(blocked))
    store = open_store(tmp_path / "store", region="eu", access=Access(gate, "eu", "test"))
    with pytest.raises(AuditError, match="Nothing moves without it"):
        store.write("data/x", b"bytes", PERSONAL)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("damage", ["edit", "drop", "swap", "insert"])
def test_a_damaged_chain_is_found(tmp_path, damage):
    log = AuditLog(tmp_path)
    for number in range(4):
        log.append({"event": "test", "number": number})
    (path,) = tmp_path.iterdir()
    assert [e["number"] for e in events(tmp_path)[1:]] == [0, 1, 2, 3]
    lines = path.read_text().splitlines(keepends=True)
    if damage == "edit":
        lines[2] = lines[2].replace('"number":1', '"number":9')
    elif damage == "drop":
        del lines[2]
    elif damage == "swap":
        lines[2], lines[3] = lines[3], lines[2]
    else:
        lines.insert(2, lines[2])
    path.write_text("".join(lines))
    with pytest.raises(AuditError, match="chain is broken"):
        events(tmp_path)


def test_a_line_cut_off_by_a_kill_ends_the_segment(tmp_path):
    log = AuditLog(tmp_path)
    log.append({"event": "whole"})
    (path,) = tmp_path.iterdir()
    with path.open("a") as file:
        file.write('{"seq":2,"ti')
    assert [e["event"] for e in events(tmp_path)] == ["segment", "whole"]


def test_after_a_torn_line_a_new_segment_begins(tmp_path, monkeypatch):
    import os

    log = AuditLog(tmp_path)
    log.append({"event": "one"})
    real = os.write
    monkeypatch.setattr("geodata.audit.os.write", lambda fd, data: real(fd, data[:5]))
    with pytest.raises(AuditError, match="short write"):
        log.append({"event": "torn"})
    monkeypatch.undo()
    log.append({"event": "two", "name": "caf\udce9"})
    assert sorted(e["event"] for e in events(tmp_path)) == ["one", "segment", "segment", "two"]


def append_some(folder):
    for number in range(50):
        audit_log(folder).append({"event": "test", "number": number})


def test_many_processes_write_whole_chains_of_their_own(tmp_path):
    append_some(tmp_path)  # the parent's log, which children must not go on with
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=append_some, args=(tmp_path,)) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert len(list(tmp_path.iterdir())) == 5
    assert len(events(tmp_path)) == 5 * 51


def test_a_newer_segment_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("geodata.audit.FORMAT_VERSION", 2)
    AuditLog(tmp_path).append({"event": "test"})
    monkeypatch.undo()
    with pytest.raises(FormatVersionError):
        events(tmp_path)
