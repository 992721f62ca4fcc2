"""Datasets of earlier format versions, as their releases wrote them, are read by every later one.

That of version 2 has an added column and origins of records; its digests are BLAKE3.
"""

import json
import shutil
from pathlib import Path

import pytest

import geodata
from geodata.audit import read_segment
from geodata.config import load_config
from geodata.lineage import read_lineage
from geodata.loader import build_loader

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = {"v1": "v000001", "v2": "v000002"}


@pytest.fixture(params=VERSIONS)
def golden(request, tmp_path):
    return Path(shutil.copytree(GOLDEN / request.param, tmp_path / request.param))


def test_the_dataset_verifies_and_holds_what_was_written(golden):
    config = load_config(golden / "geodata.yaml")
    report = geodata.verify("posts", config=config, workers=1)
    assert (report.ok, report.records, report.version) == (
        True,
        12,
        VERSIONS[golden.name],
    )
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
    assert (lineage["dataset"], lineage["version"]) == ("posts", VERSIONS[golden.name])


def test_what_came_with_version_2(tmp_path):
    golden = Path(shutil.copytree(GOLDEN / "v2", tmp_path / "v2"))
    config = load_config(golden / "geodata.yaml")
    shown = geodata.inspect("posts", config=config, head=12).head
    assert all(row["length"] == len(row["text"]) for row in shown if not row["text"].endswith("…"))
    assert [v.operation for v in geodata.history("posts", config=config).versions] == [
        "shard",
        "add-column",
    ]
    first = geodata.inspect("posts@v1", config=config, head=1).head[0]
    assert "length" not in first and "posts.jsonl" in str(first["origin"])
