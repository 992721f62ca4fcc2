"""Rules → regions, tags and pseudonyms, condition by condition."""

import datetime as dt

import pyarrow as pa
import pytest

from geodata.config import Condition, GeodataConfig, RegionSection, TaggingSection, validate
from geodata.errors import ConfigError, SchemaError
from geodata.schema import KEY, SUBJECT
from geodata.tagging import Classifier, column, holds, load_subject_key, pseudonym

REGIONS = {
    "eu-central": RegionSection(jurisdiction="DE"),
    "us-east": RegionSection(jurisdiction="US"),
}
TODAY = dt.date(2026, 11, 30)


def batch(**columns):
    count = len(next(iter(columns.values())))
    keys = columns.pop("key", [f"src/{n}" for n in range(count)])
    return pa.RecordBatch.from_pydict({KEY: keys, SUBJECT: pa.nulls(count, pa.string()), **columns})


def classify(rows, **tagging):
    section = validate(TaggingSection, tagging)
    made = Classifier(section, REGIONS, TODAY, {name: name.encode() for name in REGIONS})
    return made, made.classify(rows)


def tags(rows, **tagging):
    _made, classes = classify(rows, **tagging)
    return [classes.tags[n] for n in classes.number], classes.unknown.tolist()


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"field": "mail", "present": True}, [True, False, False, True]),
        ({"field": "mail", "present": False}, [False, True, True, False]),
        ({"field": "n", "equals": 2}, [False, True, False, False]),
        ({"field": "n", "in": [1, 3]}, [True, False, True, False]),
        ({"field": "mail", "matches": "@b"}, [False, False, False, True]),
        ({"field": "who.name", "equals": "x"}, [True, False, False, False]),
        ({"field": "flag", "equals": True}, [True, False, True, False]),
        ({"field": "mail", "present": True, "matches": "@a"}, [True, False, False, False]),
        ({"field": KEY, "matches": "2$"}, [False, False, True, False]),
    ],
)
def test_conditions(condition, expected):
    rows = batch(
        mail=["x@a", "", None, "y@b"],
        n=[1, 2, 3, None],
        who=[{"name": "x"}, {"name": None}, None, {"name": "y"}],
        flag=[True, False, True, None],
    )
    assert holds(validate(Condition, condition), rows).tolist() == expected


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        ({"field": "mial", "present": True}, "Did you mean 'mail'"),
        ({"field": "n", "equals": "two"}, "cannot equal it"),
        ({"field": "n", "matches": "x"}, None),
        ({"field": "mail", "matches": "(?!x)y"}, "RE2: no lookaround"),
        ({"region": "known"}, "for tagging rules only"),
    ],
)
def test_conditions_that_do_not_fit(condition, told):
    rows = batch(mail=["x"], n=[1])
    if told is None:
        assert holds(validate(Condition, condition), rows).tolist() == [False]
    else:
        with pytest.raises(ConfigError, match=told):
            holds(validate(Condition, condition), rows)


def test_region_from_a_pattern_a_constant_or_the_value_itself():
    rows = batch(
        key=["c/de/1.txt", "c/us/2.txt", "c/xx/3.txt"], home=["us-east", "eu-central", "?"]
    )
    table = {"eu-central": ["de"], "us-east": ["us"]}
    by_pattern, unknown = tags(
        rows, region={"pattern": "^c/([a-z]+)/", "map": table}, unknown="eu-central"
    )
    assert [t.region for t in by_pattern] == ["eu-central", "us-east", "eu-central"]
    assert unknown == [False, False, True]
    constant, _ = tags(rows, region={"constant": "us-east"})
    assert {t.region for t in constant} == {"us-east"}
    named, unknown = tags(rows, region={"field": "home"}, unknown="us-east")
    assert [t.region for t in named] == ["us-east", "eu-central", "us-east"]
    assert unknown == [False, False, True]


def test_the_first_rule_decides_and_no_rule_means_personal():
    rows = batch(c=["DE", "DE", "US", None], mail=["x", None, None, None])
    rules = [
        {"when": {"field": "mail", "present": True}, "tag": {"data_category": "PseudonymisedData"}},
        {"when": {"region": "known"}, "tag": {"data_category": "NonPersonalData"}},
    ]
    found, _ = tags(
        rows,
        region={"field": "c", "map": {"eu-central": ["DE"], "us-east": ["US"]}},
        unknown="us-east",
        rules=rules,
    )
    assert [t.data_category for t in found] == [
        "PseudonymisedData",
        "NonPersonalData",
        "NonPersonalData",
        "PersonalData",
    ]
    assert [t.applicable_law for t in found] == [("eu-gdpr",), ("eu-gdpr",), (), ()]


@pytest.mark.parametrize(
    ("retention", "until"),
    [
        ("24 months", "2028-10-01"),
        ("10 days", "2026-10-01"),
        ("1 year", "2027-10-01"),
        ("2030-05-05", "2030-04-01"),
        (None, None),
    ],
)
def test_retention_is_rounded_to_the_earliest_quarter(retention, until):
    rules = [{"when": {"region": "known"}, "tag": {"retention": retention}}]
    found, _ = tags(batch(x=[1]), region={"constant": "us-east"}, rules=rules)
    assert found[0].retention_until == until


def test_a_field_that_cannot_name_a_region():
    with pytest.raises(ConfigError, match=r"list<.*not text"):
        tags(batch(x=[[1]]), region={"field": "x"})


def test_the_subject_becomes_a_keyed_pseudonym_and_the_field_goes():
    rows = batch(c=["DE", "US", "DE"], mail=["Jane@Example.org", " jane@example.org", None])
    region = {"field": "c", "map": {"eu-central": ["DE"], "us-east": ["US"]}}
    made, classes = classify(rows, region=region, subject="mail")
    out = made.pseudonymise(rows, classes)
    assert "mail" not in out.schema.names
    assert out.schema.equals(made.schema(rows.schema))
    one, other, none = out.column(SUBJECT).to_pylist()
    assert none is None and one != other
    assert one == pseudonym(b"eu-central", "jane@example.org") and len(one) == 32
    made, classes = classify(rows, region=region, subject={"field": "mail", "keep": True})
    assert made.pseudonymise(rows, classes).column("mail").to_pylist()[0] == "Jane@Example.org"


def test_a_pseudonym_is_the_same_however_the_name_is_written():
    key = b"k"
    assert pseudonym(key, "Jane@X.org ") == pseudonym(key, "jane@x.org")
    assert pseudonym(key, "Ａ") == pseudonym(key, "a")
    assert pseudonym(key, "   ") is None
    assert pseudonym(key, "a") != pseudonym(b"l", "a")


def test_a_subject_key_is_made_once_and_never_in_the_dataset(tmp_path):
    path = tmp_path / "keys/eu.subject.key"
    key = load_subject_key(path, [tmp_path / "data"])
    assert len(key) == 32 and load_subject_key(path, [tmp_path / "data"]) == key
    with pytest.raises(ConfigError, match="may not lie in the dataset"):
        load_subject_key(tmp_path / "keys/../data/key", [tmp_path / "data"])
    path.write_text("")
    with pytest.raises(SchemaError, match="too short"):
        load_subject_key(path, [tmp_path / "data"])
    path.write_text("not hex")
    with pytest.raises(SchemaError, match="not a subject key"):
        load_subject_key(path, [tmp_path / "data"])


def test_a_subject_inside_a_struct_is_refused():
    rows = batch(who=[{"mail": "x"}])
    made, classes = classify(rows, region={"constant": "us-east"}, subject="who.mail")
    with pytest.raises(ConfigError, match="must be a column of its own"):
        made.pseudonymise(rows, classes)


def test_a_dotted_name_reaches_into_structs_but_a_whole_name_wins():
    rows = batch(**{"a.b": [1], "a": [{"b": 2, "c": {"d": 3}}]})
    assert column(rows, "a.b").to_pylist() == [1]
    assert column(rows, "a.c.d").to_pylist() == [3]


def test_the_config_of_the_tour_is_valid():
    assert validate(GeodataConfig, {"regions": {"eu": {"jurisdiction": "DE"}}}).regions
