"""Adding columns to the datasets of tests."""

import pyarrow as pa
import pyarrow.compute as pc
from editing_cases import config_of, raw

from geodata.jobs.addcolumn import add_column


def add(root, name="length", reference="posts", made="length", **options):
    config = None if "/" in reference else config_of(root)
    if made is not None:
        options["function"] = f"column_functions:{made}"
    return add_column(reference, name, config=config, **{"workers": 1, **options})


def loud(text):
    return pc.utf8_upper(pa.scalar(text)).as_py()


def lengths(found):
    """Assert that the column holds the length of the text wherever it is held."""
    for row in found.values():
        assert row["length"] == (None if row["text"] is None else len(row["text"]))


def table_of(root, name, lines):
    (root / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return root / name


def join(root, name, table, on, reference=None, **options):
    return add_column(reference or raw(root), name, join=table, on=on, **{"workers": 1, **options})
