"""Dropping records of the datasets of tests."""

from editing_cases import config_of

from geodata.config import Condition, parse_flow
from geodata.jobs.drop import drop


def run(root, reference="posts", **options):
    config = None if "/" in reference else config_of(root)
    if isinstance(options.get("where"), str):
        options["where"] = parse_flow(Condition, options["where"], "--where")
    return drop(reference, config=config, **{"workers": 1, **options})
