"""The config: typed, strict, and helpful about mistakes."""

import json
import pickle
from pathlib import Path

import pytest
from posts import CONFIG

from geodata.config import GeodataConfig, load_config, parse_size
from geodata.errors import ConfigError


@pytest.fixture
def path(tmp_path):
    (tmp_path / "geodata.yaml").write_text(CONFIG)
    return tmp_path / "geodata.yaml"


def test_a_whole_file_is_read_and_paths_are_relative_to_it(path):
    config = load_config(path)
    assert config.regions["eu-central"].cache.size == 64 << 20
    assert config.resolve(config.dataset.root) == path.parent / "data/posts"
    assert pickle.loads(pickle.dumps(config)).resolve("x") == path.parent / "x"


def test_norway_is_a_country_and_dates_stay_text(path):
    config = load_config(path)
    assert "NO" in config.tagging.region.map["eu-central"]
    assert config.tagging.rules[0].tag.retention == "2031-08-17"
    assert load_config(path, ["tagging.region.map.us-east=[on, off, yes, no]"]).tagging.region.map[
        "us-east"
    ] == ["on", "off", "yes", "no"]


def test_overrides_are_yaml(path):
    config = load_config(path, ["loader.global_batch=64", "train.model={kind: gpt2}", "train.x=1"])
    assert config.loader.global_batch == 64
    assert config.train == {"model": {"kind": "gpt2"}, "x": 1}


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("loader.globl_batch=3", "loader.globl_batch: no such key; did you mean 'global_batch'?"),
        ("regions.eu-central.cache.nvm=x", "cache.nvm: no such key; did you mean 'nvme'?"),
        ("tagging.rules=[{when: {fild: a}, tag: {}}]", "fild: no such key; did you mean 'field'?"),
        ("datset.name=x", "datset: no such key; did you mean 'dataset'?"),
        ("here=eu-west", "here: 'eu-west' is not one of the regions"),
        ("tagging.unknown=mars", "tagging.unknown: 'mars' is not one of the regions"),
        ("tagging.region.map={us-east: [DE], eu-central: [DE]}", "'DE' belongs to both"),
        ("tagging.region.constant=us-east", "exactly one of field, pattern, constant"),
        ("tagging.rules=[{when: {}, tag: {}}]", "an empty condition"),
        ("tagging.rules=[{when: {field: a}, tag: {}}]", "`field` goes with one of"),
        ("tagging.rules=[{when: {region: known}, tag: {legal_basis: consent}}]", "no legal basis"),
        ("tagging.rules=[{when: {region: known}, tag: {retention: forever}}]", "retention"),
        ("regions.EU={jurisdiction: DE}", "'EU' is no region name"),
        ("regions.eu-central.cache.size=lots", "'lots' is no size"),
        ("loader.global_batch=0", "greater than or equal to 1"),
        ("tagging.rules=[{when: {region: known}, tag: {retention: 2027-13-45}}]", "retention"),
        ("tagging.rules=[{when: {region: known}, tag: {controller: ''}}]", "controller"),
        ("tagging.subject=__key__", "subject"),
        ("regions.us-east.jurisdiction=UK", "no ISO 3166-1 code. Write GB"),
        ("loader.memory_budget=1.5", "1.5 is no size"),
        ("here=[1", "not valid YAML"),
        ("tagging.rules=[{when: {field: a, matches: '('}, tag: {}}]", "no regular expression"),
        ("tagging.rules=[{when: {region: known}, tag: {legal_basis: 5}}]", "no legal basis"),
        ("tagging.rules=[{when: {region: known}, tag: {retention: 9000 years}}]", "thousand"),
        ("loader.lanes=7", "7 lanes do not divide a batch of 12"),
        ("loader.version=foo", "version"),
        ("here=!!int foo", "cannot be read"),
        ("=3", "is no override"),
        ("loader", "is no override"),
        ("here.x=1", "here is no section"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(path, override, told):
    with pytest.raises(ConfigError) as caught:
        load_config(path, [override])
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "told", "line", "column"),
    [
        ("dataset: {name: x\nhere: [", "expected", 2, 5),
        ("here: a\ndataset: {name: x, root: y}\nhere: b\n", "'here' stands twice", 3, 1),
        ("here: a\nloader: !!int foo", "a value that cannot be read", 2, 9),
        ("here: a\nloader: {seed: *x}", "undefined alias", 2, 16),
        ("here: a\nloader: !x 1", "'!x'", 2, 9),
        ("here: a\n  \x07", "a character that YAML does not allow", 2, 3),
        ('here: "\\UFFFFFFFF"', "", None, None),
        ("loader: " + "[" * 5000, "", None, None),
    ],
)
def test_broken_yaml_is_one_line_that_names_file_line_and_column(path, text, told, line, column):
    path.write_text(text)
    with pytest.raises(ConfigError, match="not valid YAML: ") as caught:
        load_config(path)
    assert told in caught.value.message
    where = {} if line is None else {"line": line, "column": column}
    assert caught.value.fields == {"file": str(path), **where}
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_config(path, tmp_path):
    path.write_text("- a list")
    with pytest.raises(ConfigError, match="mapping of sections"):
        load_config(path)
    with pytest.raises(ConfigError, match="no config file.*geodata init"):
        load_config(Path("nowhere.yaml"))
    with pytest.raises(ConfigError, match=r"the config cannot be read: Is a directory \(file"):
        load_config(tmp_path)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("256MiB", 256 << 20), ("2TB", 2 * 10**12), ("1.5 GiB", 3 << 29), ("17", 17), ("8kB", 8000)],
)
def test_sizes(text, nbytes):
    assert parse_size(text) == nbytes


def test_the_json_schema_is_for_editors():
    schema = GeodataConfig.model_json_schema(by_alias=True)
    assert json.loads(json.dumps(schema))["properties"].keys() >= {"dataset", "regions", "loader"}
    assert schema["additionalProperties"] is False
