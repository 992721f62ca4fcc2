"""Audio in a folder for each class, or all in one folder; one record a file.

The bytes are stored as they are. The header is read, and whether the file goes on to its end, so
that a truncated or foreign file is rejected; nothing is decoded. What is said in a file becomes its
`transcript` where texts lie beside the files (`transcripts`); null where none does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from geodata.errors import ConfigError
from geodata.schema import label_field, media_field
from geodata.sources.base import OnDisk, Piece, Reject, Scan
from geodata.sources.batches import Unfit
from geodata.sources.corpus import Corpus
from geodata.sources.filelist import FileList, SourceFile
from geodata.sources.kinds import SUFFIXES
from geodata.sources.listing import Listing
from geodata.sources.media.audioheaders import audio_info
from geodata.sources.media.transcripts import Transcripts
from geodata.sources.options import AS_FOUND, Reading

LABEL = "label"
TRANSCRIPT = "transcript"
ABOUT = [
    pa.field("sample_rate", pa.int32()),
    pa.field("channels", pa.int32()),
    pa.field("frames", pa.int64()),
    pa.field("duration", pa.float64()),
]
"""What headers tell: samples a second, channels, samples of each channel, seconds."""

About = tuple[int | None, int | None, int | None, float | None]


def about_audio(data: bytes) -> About:
    """Return the values of `ABOUT`; raise Unfit for what is no whole audio file."""
    info = audio_info(data)
    return info.sample_rate, info.channels, info.frames, info.duration


class AudioFolder:
    """Audio files. The first level of folders, where there is one, names their classes."""

    kind = "audio"
    glances = True
    reads_own_files = False
    checks_as_it_reads = False

    def __init__(self, listing: Listing, source_id: str, reading: Reading = AS_FOUND):
        audio = listing if listing.single else listing.only(SUFFIXES["audio"])
        beside = replace(listing, files=FileList([])) if listing.single else listing
        self._audio = Corpus(audio, source_id, reading)
        self._transcripts = Transcripts(beside, audio.files, reading)
        self.root, self.source_id = listing.root, source_id
        files = FileList([*audio.files.entries(), *self._transcripts.files.entries()])
        self._listed = Corpus(replace(listing, files=files), source_id, reading)
        self.files: Sequence[SourceFile] = files
        self.ignored = dict(Counter(listing.ignored) + self._transcripts.ignored)
        self.transcribed = len(self._transcripts.files) > 0
        class_of = self._audio.class_of
        flat = next((name for name in audio.files.names() if class_of(name) is None), None)
        classed = next((folder for name in audio.files.names() if (folder := class_of(name))), None)
        if flat and classed and not self.transcribed:
            raise ConfigError(
                f"audio lies in the folder itself ('{flat}') and in folders of classes "
                f"('{classed}')",
                file=str(self.root),
                hint="Move the former into a folder of their class, or convert them on their own",
            )
        self.labelled = classed is not None

    def on_disk(self, index: int) -> OnDisk:
        """Return where an audio file or a transcript lies, its size and modification time."""
        return self._listed.on_disk(index)

    def pieces(self, target_bytes: int) -> list[Piece]:
        """Return runs of whole files, numbered without the transcripts."""
        return self._audio.whole_files(target_bytes)

    def scan(self, piece: Piece) -> Scan:
        """Count the files and collect their classes."""
        files = range(piece.file, piece.file + piece.files)
        names = [self._audio.files.name(i) for i in files if self._audio.named_in_utf8(i)]
        classes = {folder for name in names if (folder := self._audio.class_of(name)) is not None}
        labels = {LABEL: classes} if self.labelled else {}
        return Scan(piece.files, piece.files, labels=labels, file=piece.file)

    def merge(self, scans: Sequence[Scan], *, first_wins: bool = False) -> pa.Schema:  # noqa: ARG002
        """Return `audio`, `label` and `transcript` where there are such, and `ABOUT`."""
        label = [label_field(LABEL)] if self.labelled else []
        transcript = [media_field(TRANSCRIPT, "text")] if self.transcribed else []
        return pa.schema([media_field("audio", "audio"), *label, *transcript, *ABOUT])

    def read(
        self,
        piece: Piece,
        first_row: int,  # noqa: ARG002
        schema: pa.Schema,
        labels: dict[str, list[str]],
        reject: Callable[[Reject], None],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the files that are whole audio; labels are indices into `labels["label"]`."""
        numbers = {name: number for number, name in enumerate(labels.get(LABEL, ()))}

        def examine(name: str, content: memoryview) -> tuple[int | None, str | None, *About]:
            about = about_audio(bytes(content))
            return self._label(name, numbers), self._transcripts.of(name), *about

        names = (LABEL, TRANSCRIPT, *(field.name for field in ABOUT))
        for found in self._audio.whole_records(piece, examine, reject):
            yield found.batch("audio", names, schema, self._audio.origin_of(found.keys))

    def _label(self, name: str, numbers: dict[str, int]) -> int | None:
        folder = self._audio.class_of(name)
        if folder is None:
            return None
        try:
            return numbers[folder]
        except KeyError as error:
            raise Unfit("its class is not among the dataset's labels") from error
