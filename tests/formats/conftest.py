import pytest

pytest.register_assert_rewrite(
    "conformance_reading",
    "conformance_refusals",
    "conformance_units",
    "conformance_values",
    "records",
    "shard_suite",
)
