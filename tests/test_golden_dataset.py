"""Files of format version 1, as the first release wrote them, are read by every later one."""

import json
import shutil
from pathlib import Path

import pytest

import geodata
from geodata.audit import read_segment
from geodata.config import load_config
from geodata.lineage import read_lineage
from geodata.loader import build_loader

GOLDEN = Path(__file__).parent / "golden/v1"


@pytest.fixture
def golden(tmp_path):
    return Path(shutil.copytree(GOLDEN, tmp_path / "v1"))


def test_the_dataset_verifies_and_holds_what_was_written(golden):
    config = load_config(golden / "geodata.yaml")
    report = geodata.verify("posts", config=config, workers=1)
    assert (report.ok, report.records, report.version) == (True, 12, "v000001")
    texts = {
        json.loads(line)["text"]
        for line in (golden / "posts.jsonl").read_text(encoding="utf-8").splitlines()
    }
    shown = geodata.inspect("posts", config=config, head=12)
    assert {row["text"] for row in shown.head} <= texts
    assert sum(region["records"] for region in shown.regions.values()) == 12


def test_the_order_and_its_state_are_those_of_the_first_release(golden):
    order = json.loads((golden / "order.json").read_text())
    loader = build_loader(golden / "geodata.yaml", split="train")
    loader.load_state_dict(order["state"], order["excluded"])
    assert [batch["sample"].tolist() for batch in loader] == order["steps"]


def test_audit_and_lineage_are_read(golden):
    events = list(read_segment(golden / "audit.jsonl"))
    assert events[0]["format_version"] == 1 and len(events) > 3
    lineage = read_lineage(golden / "lineage.json")
    assert (lineage["dataset"], lineage["version"]) == ("posts", "v000001")
