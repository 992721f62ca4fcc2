"""Zip archives for tests."""

import io
import zipfile

from PIL import Image

STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED


def zipped(path, members, how=DEFLATED):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def png(size=(7, 5)):
    out = io.BytesIO()
    Image.new("RGB", size, (1, 2, 3)).save(out, "PNG")
    return out.getvalue()


def faults_of(read):
    return [(r.file, r.reason) for r in read.rejects]
