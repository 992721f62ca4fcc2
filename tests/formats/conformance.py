"""What every shard format must do. Subclass `Conformance` for each format; see test_parquet.py."""

from conformance_reading import Reading
from conformance_refusals import Refusals
from conformance_units import Units
from conformance_values import Values


class Conformance(Values, Units, Reading, Refusals):
    """All suites. A subclass names the format, and whether to read through the index."""
