"""Pixels of PNG and JPEG files against Pillow's."""

import io
import os
import struct
import tempfile
import unittest
import zlib

import peers  # noqa: F401

import numpy as np
from PIL import Image

from vision_probe import ask


def photo(height, width, channels=3, seed=0):
    """Smooth colors with edges and some noise: what chroma subsampling changes."""
    draw = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    planes = [np.sin(x / (3.1 + c)) * 60 + np.cos(y / (2.3 + c)) * 60 + ((x // 5 + y // 7 + c) % 2) * 80 for c in range(channels)]
    return np.clip(np.stack(planes, -1) + draw.normal(0, 12, (height, width, channels)) + 90, 0, 255).astype(np.uint8)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, depth, color, rows, extra=b""):
    """A PNG written by hand: Pillow does not write every depth and type. `rows`: packed bytes of each row."""
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def saved(image, **options):
    out = io.BytesIO()
    image.save(out, **options)
    return out.getvalue()


class DecodeParity(unittest.TestCase):
    def compare(self, files, tolerance):
        """files: {name: bytes}. The largest difference to Pillow's pixels of any."""
        with tempfile.TemporaryDirectory() as directory:
            questions = []
            for name, content in files.items():
                path = os.path.join(directory, name)
                with open(path, "wb") as file:
                    file.write(content)
                questions.append(dict(ask="decode", path=path, output=path + ".raw"))
            for (name, content), question, answer in zip(files.items(), questions, ask(questions), strict=True):
                with self.subTest(name):
                    wanted = np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).transpose(2, 0, 1).astype(int)
                    self.assertEqual(list(wanted.shape), answer)
                    pixels = np.fromfile(question["output"], np.uint8).reshape(wanted.shape).astype(int)
                    self.assertLessEqual(np.abs(pixels - wanted).max(), tolerance)

    def test_png_of_every_type_and_depth_equals_pillow(self):
        draw = np.random.default_rng(1)
        files = {}
        for width, height in ((1, 1), (7, 5), (33, 20)):
            for color, channels, depths in ((0, 1, (1, 2, 4, 8, 16)), (2, 3, (8, 16)), (3, 1, (1, 2, 4, 8)), (4, 2, (8, 16)), (6, 4, (8, 16))):
                for depth in depths:
                    rows = [draw.bytes((width * channels * depth + 7) // 8) for _ in range(height)]
                    palette = chunk(b"PLTE", draw.bytes(3 * 2**depth)) if color == 3 else b""
                    files[f"{color}-{depth}-{width}.png"] = png(width, height, depth, color, rows, palette)
                    if color == 3:  # and with transparent colors
                        files[f"{color}-{depth}-{width}-t.png"] = png(
                            width, height, depth, color, rows, palette + chunk(b"tRNS", bytes(range(2**depth)))
                        )
        files["t-gray.png"] = png(4, 2, 8, 0, [b"\1\2\3\4", b"\5\6\7\1"], chunk(b"tRNS", b"\0\1"))
        files["t-gray16.png"] = png(2, 1, 16, 0, [b"\0\1\2\3"], chunk(b"tRNS", b"\0\1"))
        files["t-rgb.png"] = png(2, 1, 8, 2, [b"\1\2\3\4\5\6"], chunk(b"tRNS", b"\0\1\0\2\0\3"))
        files["gamma.png"] = png(4, 1, 8, 0, [b"\x10\x40\x80\xf0"], chunk(b"gAMA", struct.pack(">I", 100000)))
        files["low16.png"] = png(3, 1, 16, 0, [struct.pack(">HHH", 0, 100, 255)])
        for mode in ("RGB", "RGBA", "L", "LA", "P", "1"):
            files[f"{mode}.png"] = saved(Image.fromarray(photo(40, 50)).convert(mode), format="PNG")
        self.compare(files, 0)

    def test_interlaced_png_equals_pillow(self):
        # Adam7 by hand: seven passes of an 8 x 8 picture in gray.
        pixels = photo(8, 8)[..., 0]
        passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
        data = b"".join(b"\0" + row.tobytes() for top, left, down, right in passes for row in pixels[top::down, left::right])
        header = struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 1)
        content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")
        self.compare({"adam7.png": content}, 0)

    def test_jpeg_of_every_subsampling_is_within_two_levels_of_pillow(self):
        files = {}
        for height, width in ((1, 1), (17, 31), (64, 48)):
            image = Image.fromarray(photo(height, width, seed=height))
            for subsampling in ("4:4:4", "4:2:2", "4:2:0", "4:1:1"):
                for quality in (30, 75, 95):
                    for progressive in (False, True):
                        name = f"{height}-{subsampling.replace(':', '')}-{quality}-{progressive}.jpg"
                        files[name] = saved(image, format="JPEG", subsampling=subsampling, quality=quality, progressive=progressive)
            files[f"{height}-gray.jpg"] = saved(image.convert("L"), format="JPEG")
            files[f"{height}-cmyk.jpg"] = saved(image.convert("CMYK"), format="JPEG")
            files[f"{height}-rgb.jpg"] = saved(image, format="JPEG", keep_rgb=True)
        self.compare(files, 2)

    def test_what_does_not_decode_is_an_error_that_names_the_file(self):
        good_png = saved(Image.fromarray(photo(20, 20)), format="PNG")
        good_jpeg = saved(Image.fromarray(photo(60, 60)), format="JPEG")
        broken = bytearray(good_png)
        broken[60] ^= 0xFF
        files = {
            "empty.png": (b"", "is empty"),
            "text.png": (b"no picture at all", "neither a PNG nor a JPEG"),
            "gif.png": (saved(Image.fromarray(photo(4, 4)), format="GIF"), "neither a PNG nor a JPEG"),
            "cut.png": (good_png[: len(good_png) // 2], "no valid PNG"),
            "cut-header.png": (good_png[:20], "no valid PNG"),
            "no-end.png": (good_png[:-12], "no valid PNG"),
            "broken.png": (bytes(broken), "no valid PNG"),
            "bomb.png": (png(60000, 60000, 8, 0, [b"\0"]), "60000 x 60000 pixels"),
            "cut.jpg": (good_jpeg[: len(good_jpeg) // 2], "no valid JPEG"),
            "cut-header.jpg": (good_jpeg[:30], "no valid JPEG"),
        }
        with tempfile.TemporaryDirectory() as directory:
            questions = []
            for name, (content, _) in files.items():
                os.makedirs(os.path.join(directory, name, "train", "a"))
                path = os.path.join(directory, name, "train", "a", name)
                with open(path, "wb") as file:
                    file.write(content)
                questions.append(
                    dict(
                        ask="batches",
                        directory=os.path.join(directory, name),
                        split="train",
                        transforms={},
                        seed=0,
                        epoch=0,
                        samples=[0],
                        batch_size=1,
                        workers=1,
                        output=os.path.join(directory, "out"),
                    )
                )
            for (name, (_, wanted)), answer in zip(files.items(), ask(questions), strict=True):
                with self.subTest(name):
                    self.assertIsInstance(answer, Exception)
                    self.assertIn(f"/train/a/{name}", str(answer))
                    self.assertIn(wanted, str(answer))
                    self.assertIn("(sample 0)", str(answer))
                    self.assertNotIn("\n", str(answer))


if __name__ == "__main__":
    unittest.main()
