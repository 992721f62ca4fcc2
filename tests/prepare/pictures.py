"""Pictures with what cameras and editors add, and where a picture's colours lie."""

import functools
import io
import struct
import warnings
from zlib import crc32

import numpy as np
from PIL import Image, ImageCms

SECRETS = (b"Leica", b"SECRET", b"52.5200")
"""What must be in no stripped file."""
TURNS = range(1, 9)
COLOURS = {
    "red": (250, 10, 10),
    "green": (10, 250, 10),
    "blue": (10, 10, 250),
    "white": (250, 250, 250),
}


@functools.cache
def profile():
    """Return a colour profile; it says the time when it was made."""
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def corners(width=48, height=32):
    """Return an image whose corners are, from the upper left on, red, green, blue and white."""
    pixels = np.zeros((height, width, 3), np.uint8)
    middle, centre = height // 2, width // 2
    pixels[:middle, :centre], pixels[:middle, centre:] = COLOURS["red"], COLOURS["green"]
    pixels[middle:, :centre], pixels[middle:, centre:] = COLOURS["blue"], COLOURS["white"]
    return Image.fromarray(pixels)


def seen(image):
    """Return the names of the colours in the four corners."""
    rgb, (width, height) = image.convert("RGB"), image.size
    places = [(1, 1), (width - 2, 1), (1, height - 2), (width - 2, height - 2)]
    return [nearest(rgb.getpixel(place)) for place in places]


def nearest(pixel):
    def distance(name):
        return sum(abs(a - b) for a, b in zip(COLOURS[name], pixel, strict=True))

    return min(COLOURS, key=distance)


def stored_turned(image, orientation):
    """Return the pixels of an upright image as a camera held that way stores them."""
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
    return image if orientation == 1 else image.transpose(Image.Transpose(undo[orientation]))


def exif(orientation=1):
    block = Image.Exif()
    block[0x0112], block[0x010F], block[0x0132] = orientation, "Leica SECRET", "2024:01:02 03:04:05"
    block.get_ifd(0x8825)[1] = "52.5200 N"
    return block.tobytes()


def encoded(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def segment(marker, body):
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def jpeg(image=None, orientation=1, **options):
    """Return a JPEG as a phone writes it: Exif, XMP, IPTC, a comment, a second picture behind."""
    image = corners() if image is None else image
    plain = encoded(
        image,
        "JPEG",
        exif=exif(orientation),
        icc_profile=profile(),
        comment=b"SECRET comment",
        quality=95,
        subsampling=0,
        **options,
    )
    extra = segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x>SECRET</x>")
    extra += segment(0xED, b"Photoshop 3.0\0SECRET") + segment(0xE2, b"MPF\0SECRET")
    return plain[:2] + extra + plain[2:] + b"\xff\xd8SECRET trailer\xff\xd9"


def chunk(name, body):
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", crc32(name + body))


def png(image=None, orientation=1):
    image = corners() if image is None else image
    plain = encoded(image, "PNG", exif=exif(orientation), icc_profile=profile())
    extra = chunk(b"tEXt", b"Author\0SECRET") + chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0SECRET")
    extra += chunk(b"tIME", bytes(7)) + chunk(b"prVt", b"SECRET")
    return plain[:33] + extra + plain[33:] + b"SECRET trailer"


def webp(image=None, orientation=1):
    image = corners() if image is None else image
    xmp = b"<x>SECRET</x>"
    options = {"exif": exif(orientation), "icc_profile": profile(), "xmp": xmp, "lossless": True}
    return encoded(image, "WEBP", **options) + b"SECRET trailer"


def gif():
    frames = [corners().quantize(8), corners().rotate(90).quantize(8)]
    plain = encoded(
        frames[0], "GIF", save_all=True, append_images=frames[1:], loop=0, comment=b"SECRET"
    )
    xmp = b"\x21\xff\x0bXMP DataXMP" + b"\x06SECRET" + b"\0"
    at = 13 + (3 << (plain[10] & 7) + 1 if plain[10] & 0x80 else 0)
    return plain[:at] + xmp + plain[at:] + b"SECRET trailer"


MAKERS = {"jpeg": jpeg, "png": png, "webp": webp}


def opened(data):
    """Return a decoded image; Pillow warns of a second picture that is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        image = Image.open(io.BytesIO(data))
        image.load()
    return image
