"""What is read of a foreign HDF5 file, in a process that may die of it (`guarded`).

Each function answers one request about the file at `path`. A fault of all of it is told by
`broken`, with what to do about it. Before what may end the process, `at` tells how far the answer
had come; `next` tells behind which row, or which link of a group, the last part of it ends.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from geodata.sources.columns import Stated, stated
from geodata.sources.corpus import CHANGED, Broken
from geodata.sources.guard.frames import send
from geodata.sources.guard.guarded import Say, shut_files
from geodata.sources.hdf5.arrays import Arrays
from geodata.sources.hdf5.file import FAULTS, close_file, load_plugins, open_file, sample_file
from geodata.sources.hdf5.layout import samples_in
from geodata.sources.hdf5.samples import Samples
from geodata.sources.hdf5.types import Refused, media_kind

SAMPLES = "a group for each record"
_PEEKED = 16


def cuts(asked: dict[str, Any], say: Say) -> None:
    """Tell where the file may be cut into pieces of `target` bytes, and what is `ignored` in it."""
    ignored: Counter[str] = Counter()
    with _opened(asked, say, ignored) as found:
        made = list(found.cuts(asked["target"])) if found else []
        say({"cuts": made, "ignored": +ignored})


def scan(asked: dict[str, Any], say: Say) -> None:
    """Tell what the records from `start` to `stop` hold; not of those to `skip`.

    Of arrays it may be `bare`: their types alone. `several` asks for the range of integers too.
    """
    with _opened(asked, say, Counter()) as found:
        if found is not None:
            _scan(found, asked, say)


def read(asked: dict[str, Any], say: Say) -> None:
    """Tell the records from `start` to `stop`, in batches; of those to `skip` that they are lost.

    Samples have keys that start with `key`; of arrays at most `step` rows are read at first.
    """
    with _opened(asked, say, Counter()) as found:
        if found is not None:
            _read(found, asked, say)


def _scan(found: Arrays | Samples, asked: dict[str, Any], say: Say) -> None:
    start, stop = asked["start"], asked["stop"]
    if isinstance(found, Samples):
        looked = found.look(start, stop, asked["skip"], say)
        _tell(looked.stated(), looked.media, SAMPLES, looked.rows, say)
        return
    media: dict[str, set[str]] = {}
    spans = {}
    if not asked["bare"]:
        media = _media(found, start, min(start + _PEEKED, stop), say)
        spans = found.spans(start, stop, say) if asked["several"] else {}
    _tell(stated(found.schema, spans), media, found.layout, stop - start, say)


def _read(found: Arrays | Samples, asked: dict[str, Any], say: Say) -> None:
    start, stop, skip = asked["start"], asked["stop"], asked["skip"]
    if isinstance(found, Samples):
        found.batches(start, stop, asked["key"], say, skip=skip)
    else:
        found.batches(start, stop, say, step=asked["step"], skip=skip)


@contextmanager
def _opened(
    asked: dict[str, Any], say: Say, ignored: Counter[str]
) -> Iterator[Arrays | Samples | None]:
    """Open a file as what it is laid out as; None, and said why, where it is nothing."""
    path = Path(asked["path"])
    with ExitStack() as closing:
        found = None
        try:
            file = open_file(path)
            closing.callback(close_file, file)
            shut_files()
            found = _laid_out(file, path, ignored)
            if asked["stop"] > found.count:
                found = None
                raise Broken(CHANGED)
        except Broken as error:
            say({"broken": error.args})
        yield found


def _laid_out(file: Any, path: Path, ignored: Counter[str]) -> Arrays | Samples:
    try:
        group = samples_in(file["/"].id)
        return Arrays(file, path, ignored) if group is None else Samples(group, path)
    except Refused as error:
        raise Broken(str(error), error.hint) from None
    except FAULTS:
        raise Broken("the file is damaged") from None


def _media(found: Arrays, start: int, stop: int, say: Say) -> dict[str, set[str]]:
    """Return the kinds of media that the first rows of each column of bytes hold."""
    kinds: dict[str, set[str]] = {}
    names = [field.name for field in found.schema if field.type == pa.binary()]

    def look(what: Any) -> None:
        if isinstance(what, pa.RecordBatch):
            for name in names:
                values = what.column(what.schema.names.index(name)).drop_null().to_pylist()
                kinds.setdefault(name, set()).update(media_kind(v[:16]) for v in values if v)
        elif "at" in what:
            say(what)

    if names:
        found.batches(start, stop, look)
    return kinds


def _warm_up() -> None:
    """Do once what is done with files: libraries load some of their parts only then."""
    load_plugins()
    for grouped in (False, True):
        file = sample_file(grouped=grouped)
        with open(os.devnull, "wb") as out:  # noqa: PTH123
            found = _laid_out(file, Path(os.devnull), Counter())
            asked = {"start": 0, "stop": 2, "key": "", "step": 0, "skip": [], "bare": False}
            _scan(found, {**asked, "several": True}, partial(send, out))
            _read(found, asked, partial(send, out))
        file.close()


def _tell(
    columns: list[Stated], media: dict[str, set[str]], layout: str, rows: int, say: Say
) -> None:
    """Send what was found: the types as those of the columns of an empty batch."""
    types = [pa.nulls(0, kind) for column in columns for kind, _ in column.types]
    places = [[row for _, row in column.types] for column in columns]
    say(pa.RecordBatch.from_arrays(types, [str(number) for number in range(len(types))]))
    say(
        {
            "names": [column.field.name for column in columns],
            "places": places,
            "spans": [column.span for column in columns],
            "media": {name: sorted(found) for name, found in media.items()},
            "layout": layout,
            "rows": rows,
        }
    )


_warm_up()
