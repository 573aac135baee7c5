"""Small PNG pictures: reading them on a white background, and writing them. Pixel by pixel and byte by byte what libpng's simplified interface
(png_image_begin_read_from_memory, png_image_write_to_memory) gives, so that a set is the same on every machine."""

import functools
import math
import struct
import zlib

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GRAY, _RGB, _PALETTE, _GRAY_ALPHA, _RGB_ALPHA = 0, 2, 3, 4, 6
_CHANNELS = {_GRAY: 1, _RGB: 3, _PALETTE: 1, _GRAY_ALPHA: 2, _RGB_ALPHA: 4}
_DEPTHS = {_GRAY: (1, 2, 4, 8, 16), _RGB: (8, 16), _PALETTE: (1, 2, 4, 8), _GRAY_ALPHA: (8, 16), _RGB_ALPHA: (8, 16)}
_WHOLE = ((0, 0, 1, 1),)  # first column and row, steps
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
# Gamma values are whole numbers of 1/100000, as in the file format.
_ONE, _SRGB, _SCREEN = 100000, 45455, 220000


class BadPicture(Exception):
    """Not a PNG picture, or a damaged one."""


def size_of(data):
    """Width and height; None for what is not a PNG picture."""
    if not data.startswith(SIGNATURE) or data[12:16] != b"IHDR" or len(data) < 33:
        return None
    return struct.unpack(">II", data[16:24])


def read_on_white(data):
    """The pixels as red, green and blue bytes, row by row. Raises BadPicture."""
    header, chunks = _read_chunks(data)
    width, height, depth, color, compression, filtering, interlace = header
    if color not in _DEPTHS or depth not in _DEPTHS[color] or compression or filtering or interlace > 1 or not width or not height:
        raise BadPicture("the header is not valid")
    samples = _read_samples(header, chunks["IDAT"])
    gamma = chunks.get("gamma", _ONE if depth == 16 else _SRGB)
    if color == _PALETTE:
        colors = [_on_white8(*entry, gamma) for entry in _read_palette(chunks)]
        return b"".join([colors[index] for index in samples])
    if depth < 8:
        samples = bytes([sample * 255 // (2**depth - 1) for sample in samples])
    pixels = _with_alpha(samples, header, chunks.get("tRNS"))
    if depth == 16:
        has_alpha = color & 4 or "tRNS" in chunks
        return _on_white16(pixels, gamma, _table_shift(chunks.get("sBIT", b""), color), has_alpha)
    tables = _blend_tables(gamma)
    out = bytearray()
    for red, green, blue, alpha in pixels:
        table = tables[alpha]
        out += bytes((table[red], table[green], table[blue]))
    return bytes(out)


def _read_chunks(data):
    """The header, and what there is of IDAT, PLTE, tRNS, sBIT and "gamma". A damaged chunk that a reader may do without is left out."""
    if size_of(data) is None:
        raise BadPicture("not a PNG picture")
    chunks, is_srgb, is_final, at = {"IDAT": b""}, False, False, 8  # is_final: nothing changes the gamma value any more
    header = None
    while at + 12 <= len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, content, check = data[at + 4 : at + 8], data[at + 8 : at + 8 + size], data[at + 8 + size : at + 12 + size]
        if kind == b"IDAT" and len(content) < size:
            chunks["IDAT"] += content  # it may be enough
            break
        is_whole = check == zlib.crc32(kind + content).to_bytes(4, "big")
        if not is_whole and not kind[0] & 0x20:
            raise BadPicture("a chunk is damaged")
        at += 12 + size
        if kind == b"IEND":
            break
        if not is_whole:
            continue
        if kind == b"IHDR" and size == 13:
            header = struct.unpack(">IIBBBBB", content)
        elif kind == b"IDAT":
            chunks["IDAT"] += content
        elif kind == b"sRGB" and not is_final:
            chunks["gamma"], is_srgb = _SRGB, True
        elif kind == b"gAMA" and size == 4 and not is_final:
            (gamma,) = struct.unpack(">I", content)
            is_final = not 16 <= gamma <= 625000000
            if not is_final and not (is_srgb and _matters(_SRGB * _ONE / gamma)):
                chunks["gamma"] = gamma
        elif kind in (b"PLTE", b"tRNS", b"sBIT"):
            chunks[kind.decode()] = content
        elif not kind[0] & 0x20:
            raise BadPicture("a chunk of an unknown kind")
    if header is None:
        raise BadPicture("no header")
    return header, chunks


def _read_samples(header, compressed):
    """One number for each channel of each pixel, row by row."""
    width, height, depth, color, *_, interlace = header
    channels = _CHANNELS[color]
    passes = [(x, y, dx, dy, -(-(width - x) // dx), -(-(height - y) // dy)) for x, y, dx, dy in (_ADAM7 if interlace else _WHOLE)]
    passes = [(x, y, dx, dy, columns, rows) for x, y, dx, dy, columns, rows in passes if columns > 0 and rows > 0]
    sizes = [(columns * channels * depth + 7) // 8 for *_, columns, _ in passes]
    needed = sum((size + 1) * rows for size, (*_, rows) in zip(sizes, passes))
    try:
        raw = zlib.decompressobj().decompress(compressed, needed)
    except zlib.error as error:
        raise BadPicture(str(error)) from None
    if len(raw) < needed:
        raise BadPicture("the picture is cut off")
    rows_of_picture = [[0] * (width * channels) for _ in range(height)]
    at = 0
    for size, (x, y, dx, dy, columns, rows) in zip(sizes, passes):
        before = bytes(size)
        for row in range(rows):
            before = _unfilter(raw[at], raw[at + 1 : at + 1 + size], before, max(1, channels * depth // 8))
            at += 1 + size
            unpacked = _unpack(before, depth, columns * channels)
            line = rows_of_picture[y + row * dy]
            for channel in range(channels):
                line[x * channels + channel :: dx * channels] = unpacked[channel::channels]
    joined = [sample for line in rows_of_picture for sample in line]
    return joined if depth == 16 else bytes(joined)


def _unfilter(kind, line, before, step):
    if kind == 0:
        return line
    if kind == 2:
        return bytes([a + b & 255 for a, b in zip(line, before)])
    out = bytearray(step) + line  # the pixel to the left of the first is 0
    above = bytes(step) + before
    if kind == 1:
        for i in range(step, len(out)):
            out[i] = out[i] + out[i - step] & 255
    elif kind == 3:
        for i in range(step, len(out)):
            out[i] = out[i] + (out[i - step] + above[i] >> 1) & 255
    elif kind == 4:
        for i in range(step, len(out)):
            a, b, c = out[i - step], above[i], above[i - step]
            out[i] = out[i] + _paeth(a, b, c) & 255
    else:
        raise BadPicture("a filter of an unknown kind")
    return bytes(out[step:])


def _paeth(a, b, c):
    """Whichever of left, above and above left is nearest to left + above - above left."""
    to_a, to_b = b - c, a - c
    to_c = abs(to_a + to_b)
    to_a, to_b = abs(to_a), abs(to_b)
    if to_a <= to_b and to_a <= to_c:
        return a
    return b if to_b <= to_c else c


def _unpack(line, depth, count):
    if depth == 8:
        return line
    if depth == 16:
        return struct.unpack(f">{count}H", line)
    mask = (1 << depth) - 1
    return [byte >> shift & mask for byte in line for shift in range(8 - depth, -1, -depth)][:count]


def _read_palette(chunks):
    """256 entries of red, green, blue and alpha; those that the picture lacks are black."""
    colors, alphas = chunks.get("PLTE", b""), chunks.get("tRNS", b"")
    if not colors or len(colors) % 3 or len(colors) > 768:
        raise BadPicture("the palette is not valid")
    count = len(colors) // 3
    entries = [(*colors[3 * i : 3 * i + 3], alphas[i] if i < len(alphas) else 255) for i in range(count)]
    return entries + [(0, 0, 0, 255)] * (256 - count)


def _with_alpha(samples, header, transparent):
    """Pixels of red, green, blue and alpha, as deep as the samples. `transparent`: the chunk that names the one color that is transparent."""
    depth, color = header[2], header[3]
    opaque = (1 << max(depth, 8)) - 1
    if color == _RGB_ALPHA:
        return zip(samples[0::4], samples[1::4], samples[2::4], samples[3::4])
    if color == _GRAY_ALPHA:
        return zip(samples[0::2], samples[0::2], samples[0::2], samples[1::2])
    channels = [samples[i::3] for i in range(3)] if color == _RGB else [samples] * 3
    size = 6 if color == _RGB else 2
    if transparent is None or len(transparent) != size:
        return ((*pixel, opaque) for pixel in zip(*channels))
    key = [number & (1 << depth) - 1 for number in struct.unpack(f">{size // 2}H", transparent)]
    key = [number * 255 // ((1 << depth) - 1) if depth < 8 else number for number in key] * (1 if color == _RGB else 3)
    return ((*pixel, 0 if list(pixel) == key else opaque) for pixel in zip(*channels))


def _matters(gamma):
    """Whether a gamma value differs from 1 so much that samples are corrected."""
    return gamma < _ONE - 5000 or gamma > _ONE + 5000


def _reciprocal(one, two=_ONE):
    return math.floor(1e15 / one / two + 0.5)


def _corrected(value, most, gamma):
    return value if value in (0, most) else math.floor(most * math.pow(value / float(most), gamma * 0.00001) + 0.5)


@functools.cache
def _table8(gamma):
    return bytes([_corrected(value, 255, gamma) if _matters(gamma) else value for value in range(256)])


@functools.cache
def _blend_tables(gamma):
    """A table for each alpha: what becomes of a sample on white. Colors are mixed as linear light."""
    to_screen, to_linear, from_linear = _table8(_reciprocal(gamma, _SCREEN)), _table8(_reciprocal(gamma)), _table8(_reciprocal(_SCREEN))
    tables = [bytes([255] * 256)]
    for alpha in range(1, 255):
        mixed = [to_linear[value] * alpha + 255 * (255 - alpha) + 128 for value in range(256)]
        tables.append(bytes([from_linear[number + (number >> 8) >> 8] for number in mixed]))
    return [*tables, to_screen]


def _on_white8(red, green, blue, alpha, gamma):
    table = _blend_tables(gamma)[alpha]
    return bytes((table[red], table[green], table[blue]))


def _table_shift(significant, color):
    """How many low bits of 16 do not choose an entry of a table."""
    bits = max(significant[:3] if color in (_RGB, _RGB_ALPHA) else significant[:1], default=0)
    return min(max(16 - bits if 0 < bits < 16 else 0, 5), 8)


@functools.cache
def _table16(gamma, shift):
    """16 to 16 bits, indexed by the upper 16 - shift bits."""
    most = (1 << 16 - shift) - 1
    if _matters(gamma):
        return [math.floor(65535.0 * math.pow(value * (1.0 / most), gamma * 0.00001) + 0.5) for value in range(most + 1)]
    return [(value * 65535 + (1 << 15 - shift)) // most for value in range(most + 1)]


@functools.cache
def _table16_of_8(gamma, shift):
    """16 bits to the nearest multiple of 257, indexed by the upper 16 - shift bits. `gamma` leads from the output to the input."""
    most = (1 << 16 - shift) - 1
    table = []
    for value in range(255):
        bound = (_corrected(value * 257 + 128, 65535, gamma) * most + 32768) // 65535 + 1
        table += [value * 257] * (bound - len(table))
    return table + [65535] * (most + 1 - len(table))


def _on_white16(pixels, gamma, shift, has_alpha):
    overall = math.floor(gamma * 1e-5 * _SCREEN + 0.5)
    to_screen = _table16_of_8(overall, shift) if has_alpha or _matters(overall) else None
    to_linear, from_linear = _table16(_reciprocal(gamma), shift), _table16(_reciprocal(_SCREEN), shift)
    out = bytearray()
    for *colors, alpha in pixels:
        for value in colors:
            if alpha == 0:
                value = 65535
            elif alpha < 65535:
                mixed = (to_linear[value >> shift] * alpha + 65535 * (65535 - alpha) + 32768) & 0xFFFFFFFF
                mixed = (mixed + (mixed >> 16) & 0xFFFFFFFF) >> 16
                value = from_linear[mixed >> shift]
            elif to_screen is not None:
                value = to_screen[value >> shift]
            out.append(value * 255 + 32895 >> 16)
    return bytes(out)


def write_rgb(pixels, width, height):
    """A PNG file of red, green and blue bytes, marked as sRGB."""
    size = 3 * width
    whole = (size + 1) * height
    window = 15
    while window > 8 and whole <= 16384 and whole + 262 <= 1 << window - 1:
        window -= 1
    deflate = zlib.compressobj(-1, zlib.DEFLATED, window, 8, zlib.Z_FILTERED)
    compressed, before = b"", bytes(size)
    for at in range(0, len(pixels), size):
        line = pixels[at : at + size]
        compressed += deflate.compress(_filter(line, before, width > 1, height > 1))
        before = line
    compressed += deflate.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, _RGB, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"sRGB", b"\0"), (b"IDAT", compressed), (b"IEND", b"")]
    return SIGNATURE + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content)) for kind, content in chunks
    )


# The distance of a byte from 0, if 128 and above count as negative.
_DISTANCE = bytes([value if value < 128 else 256 - value for value in range(256)])


def _filter(line, before, has_columns, has_rows):
    """The line behind the number of the filter that makes the sum of its distances from 0 smallest; of equal ones the first."""
    left, above_left = bytes(3) + line[:-3], bytes(3) + before[:-3]
    candidates = [line]
    candidates.append(bytes([x - a & 255 for x, a in zip(line, left)]))
    candidates.append(bytes([x - b & 255 for x, b in zip(line, before)]))
    candidates.append(bytes([x - (a + b >> 1) & 255 for x, a, b in zip(line, left, before)]))
    candidates.append(bytes([x - _paeth(a, b, c) & 255 for x, a, b, c in zip(line, left, before, above_left)]))
    allowed = [0] + [1] * has_columns + [2] * has_rows + [3, 4] * (has_columns and has_rows)
    sums = [sum(candidate.translate(_DISTANCE)) for candidate in candidates]
    best = min(allowed, key=lambda number: (sums[number], number))
    return bytes([best]) + candidates[best]
