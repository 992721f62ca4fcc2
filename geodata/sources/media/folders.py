"""Images in a folder for each class, or all in one folder; one record a file.

In a zip archive the classes are its first level of folders.

The bytes are stored as they are. The header is read, and whether the file goes on to its end, so
that a truncated or foreign file is rejected; nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from geodata.errors import ConfigError, MissingExtra
from geodata.schema import label_field, media_field
from geodata.sources.base import Piece, Reject, Scan
from geodata.sources.batches import Unfit
from geodata.sources.corpus import Corpus
from geodata.sources.listing import Listing
from geodata.sources.media.headers import image_size
from geodata.sources.options import AS_FOUND, Reading

LABEL = "label"


class ImageFolder(Corpus):
    """Image files. The first level of folders, where there is one, names their classes."""

    kind = "images"
    glances = True
    checks_as_it_reads = True

    def __init__(self, listing: Listing, source_id: str, reading: Reading = AS_FOUND):
        super().__init__(listing, source_id, reading)
        _require_pillow()
        flat = classed = None
        for numbers in self._of_one_class(range(len(self.files))):
            name = self.files.name(numbers.start)
            if self.class_of(name) is None:
                flat = flat or name
            else:
                classed = classed or name
        if flat and classed:
            raise ConfigError(
                f"images lie in the folder itself ('{flat}') and in folders of classes "
                f"('{self.class_of(classed)}')",
                file=str(self.root),
                hint="Move the former into a folder of their class, or convert them on their own",
            )
        self.labelled = classed is not None

    def pieces(self, target_bytes: int) -> list[Piece]:
        """Return runs of whole files."""
        return self.whole_files(target_bytes)

    def scan(self, piece: Piece) -> Scan:
        """Count the files and collect their classes."""
        labels = {LABEL: self._classes(piece)} if self.labelled else {}
        return Scan(piece.files, piece.files, labels=labels, file=piece.file)

    def _classes(self, piece: Piece) -> set[str]:
        classes = set()
        for numbers in self._of_one_class(piece.numbers):
            name = next(filter(self._keyed, map(self.files.name, numbers)), None)
            if name is not None and (folder := self.class_of(name)):
                classes.add(folder)
        return classes

    def _of_one_class(self, numbers: range) -> Iterator[range]:
        """Cut a run of files into such of one class."""
        if self._archives:
            return (range(number, number + 1) for number in numbers)
        return self.files.by_folder(numbers)

    def merge(self, scans: Sequence[Scan], *, first_wins: bool = False) -> pa.Schema:  # noqa: ARG002
        """Return `image`, `label` where there are classes, `width` and `height` in pixels."""
        size = [pa.field("width", pa.int32()), pa.field("height", pa.int32())]
        label = [label_field(LABEL)] if self.labelled else []
        return pa.schema([media_field("image", "image"), *label, *size])

    def read(
        self,
        piece: Piece,
        first_row: int,  # noqa: ARG002
        schema: pa.Schema,
        labels: dict[str, list[str]],
        reject: Callable[[Reject], None],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the files that are whole images; labels are indices into `labels["label"]`."""
        numbers = {name: number for number, name in enumerate(labels.get(LABEL, ()))}

        def examine(name: str, content: memoryview) -> tuple[int | None, int, int]:
            return self._label(name, numbers), *image_size(content)

        for images in self.whole_records(piece, examine, reject):
            about = (LABEL, "width", "height")
            yield images.batch("image", about, schema, self.origin_of(images.keys))

    def _label(self, name: str, numbers: dict[str, int]) -> int | None:
        if not self.labelled:
            return None
        try:
            return numbers[self.class_of(name) or ""]
        except KeyError as error:
            raise Unfit("its class is not among the dataset's labels") from error


def _require_pillow() -> None:
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise MissingExtra.of("pillow", "images") from error
