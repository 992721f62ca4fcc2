"""TFRecord files for tests, made and read."""

from source_reading import read_all
from tfrecord import example_pb2

from geodata.formats.tfrecord.frames import framed
from geodata.sources import open_source


def example(**features):
    """Return a serialized Example; a feature is a list of bytes, floats or integers, or None."""
    made = example_pb2.Example()
    for name, values in features.items():
        feature = made.features.feature[name]
        if values is None:
            continue
        if values and isinstance(values[0], bytes):
            feature.bytes_list.value.extend(values)
        elif values and isinstance(values[0], float):
            feature.float_list.value.extend(values)
        elif values:
            feature.int64_list.value.extend(values)
        else:
            feature.bytes_list.SetInParent()
    return made.SerializeToString()


def frames(*records):
    return b"".join(bytes(part) for part in framed(records))


def write(path, *records, pack=bytes):
    path.write_bytes(pack(frames(*records)))
    return path


def read(path, target=1 << 30, **options):
    return read_all(open_source(path, kind="tfrecord", source_id="s"), target, **options)
