"""Writes records as a tar, unit by unit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from geodata.errors import SchemaError
from geodata.formats.base import FORMAT_VERSION, stamped
from geodata.formats.units import UnitCutter
from geodata.formats.webdataset.columns import Content, plan
from geodata.formats.webdataset.index import HEAD, TAIL, TOMBSTONE
from geodata.formats.webdataset.jsonvalues import JsonColumn, dumps
from geodata.formats.webdataset.segments import Packer
from geodata.formats.webdataset.tarball import END, header, key_of, padded, padding, stems
from geodata.schema import KEY, to_json


class WebDatasetWriter:
    """Writes one tar shard, through what packs it."""

    def __init__(
        self,
        path: Path,
        schema: pa.Schema,
        units: UnitCutter,
        metadata: Mapping[str, str],
        packer: Packer,
    ):
        if schema.get_field_index(KEY) < 0:
            raise SchemaError("a tar shard needs keys", column=KEY)
        self.nbytes = 0
        self._path, self._schema, self._units, self._packer = path, schema, units, packer
        self._plan = plan(schema)
        self._json = [
            (schema.field(i).name, i, JsonColumn(schema.field(i))) for i in self._plan.json
        ]
        self._slots: list[int] = []
        self._rows = 0
        self._seen: set[bytes] = set()
        self._hash = hashlib.sha256()
        self._sink = pa.OSFile(str(path), "wb")
        self._sink.write(packer.start)
        self._write_head(schema, metadata)

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows, writing the units that they close."""
        for unit in self._units.push(batch):
            self._write_unit(unit)

    def close(self) -> None:
        """Write the last unit and the last member."""
        for unit in self._units.flush():
            self._write_unit(unit)
        told = {"rows": self._rows, "unit_slots": self._slots, "digest": self._hash.hexdigest()}
        content = json.dumps(told).encode()
        self._write([header(TAIL, len(content)), padded(content), END])
        self._sink.write(self._packer.end())
        self.nbytes = self._sink.tell()
        self._sink.close()

    def _write_head(self, schema: pa.Schema, metadata: Mapping[str, str]) -> None:
        about = {
            "format_version": FORMAT_VERSION,
            "metadata": stamped(metadata),
            "schema": to_json(schema),
        }
        content = json.dumps(about).encode()
        self._write([self._header(HEAD, len(content)), padded(content)])
        self._hash.update(content)

    def _write_unit(self, batches: list[pa.RecordBatch]) -> None:
        parts: list[Content] = []
        for batch in batches:
            for name, content in self._members(batch):
                parts += (self._header(name, len(content)), content, padding(len(content)))
        self._slots.append(sum(batch.num_rows for batch in batches))
        self._write(parts)

    def _members(self, batch: pa.RecordBatch) -> Iterator[tuple[bytes, Content]]:
        """Yield name and content of each member of these rows, in order."""
        documents = self._documents(batch)
        columns = [(m, m.encode(batch.column(m.column))) for m in self._plan.members]
        for row, stem in enumerate(stems(batch.column(self._schema.get_field_index(KEY)))):
            self._rows += 1
            if stem is None:
                yield TOMBSTONE + b"%08d" % (self._rows - 1), b""
                continue
            self._check_new(stem)
            yield stem + b".json", documents[row]
            for member, contents in columns:
                content = contents[row]
                if content is not None:
                    yield stem + member.suffix(content), content

    def _documents(self, batch: pa.RecordBatch) -> list[bytes]:
        """Return each record's JSON."""
        names = [name for name, _, _ in self._json]
        columns = [codec.encode(batch.column(i)) for _, i, codec in self._json]
        return [
            dumps({n: v for n, v in zip(names, row, strict=True) if v is not None}).encode()
            for row in zip(*columns, strict=True)
        ]

    def _check_new(self, stem: bytes) -> None:
        if stem in self._seen:
            raise SchemaError("two records of a shard have one key", key=key_of(stem))
        self._seen.add(stem)

    def _header(self, name: bytes, size: int) -> bytes:
        blocks = header(name, size)
        self._hash.update(blocks)
        return blocks

    def _write(self, parts: list[Content]) -> None:
        self._sink.write(self._packer.add(b"".join(parts)))
        self.nbytes = self._sink.tell()
