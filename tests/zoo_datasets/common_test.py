"""What the programs of zoo/datasets share: the hash, PNG, files, signals and archives."""

import gzip
import io
import os
import pathlib
import random
import shutil
import stat
import struct
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile
import zlib

import peers  # noqa: F401
import programs

import numpy as np
from PIL import Image

from common import png
from common.program import Error, UsageError, run_program, temporary_folder, write_file
from common.unpack import unpack
from common.xxh3 import xxh3_64


class Hash(unittest.TestCase):
    def test_is_that_of_the_library(self):
        """Each length is another branch of the algorithm, or its end; the values are libxxhash's."""
        wanted = {
            0: 0x2D06800538D394C2,
            1: 0xB95D064157E4A8B4,
            3: 0x4B2BF643AAD9977C,
            4: 0x1A322462CA4049E4,
            8: 0x7B6CBF2B8364E41D,
            9: 0x89EFC25121F13282,
            16: 0x65140316743838F8,
            17: 0xD15EB938F2B03CD0,
            128: 0xB9C0ABE395DFA8A1,
            129: 0x5ECBF4005614DAB4,
            240: 0x84E5622E8F1D582,
            241: 0xE458863EC159B424,
            1024: 0xC5EB3B0E7580130F,
            1025: 0x40846007943E297D,
            4999: 0x3FE726379FC41EB,
        }
        state, data = 12345, bytearray()
        for _ in range(5000):
            state = state * 1103515245 + 12345 & 0xFFFFFFFF
            data.append(state >> 16 & 255)
        self.assertEqual({size: xxh3_64(bytes(data[:size])) for size in wanted}, wanted)


def chunk(kind, content, damage=0):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content) ^ damage)


def picture(color, depth, line, *chunks, height=1):
    """A PNG file with rows of one kind."""
    width = len(line) * 8 // depth // png._CHANNELS[color]
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    return b"".join(
        [
            png.SIGNATURE,
            chunk(b"IHDR", header),
            *(chunk(*each) for each in chunks),
            chunk(b"IDAT", zlib.compress((b"\0" + line) * height)),
            chunk(b"IEND", b""),
        ]
    )


class Png(unittest.TestCase):
    def test_pixels_on_white_are_libpngs(self):
        """The values are those of libpng 1.6.39 (png_image_finish_read with a white background)."""
        line = bytes([10, 100, 200, 0, 10, 100, 200, 1, 10, 100, 200, 127, 10, 100, 200, 254, 10, 100, 200, 255])
        deep = bytes.fromhex("123456789abc0000123456789abc4321123456789abcffff")
        for name, file, pixels in (
            ("alpha", picture(6, 8, line), "ffffffffffffbac5e51566c80a64c8"),
            ("gamma", picture(6, 8, line, (b"gAMA", struct.pack(">I", 55000))), "ffffffffffffbac9e91c76d11276d1"),
            (
                "sRGB comes before gamma",
                picture(6, 8, line, (b"sRGB", b"\0"), (b"gAMA", struct.pack(">I", 100000))),
                "ffffffffffffbac5e51566c80a64c8",
            ),
            ("a damaged chunk that is not needed", picture(6, 8, line, (b"gAMA", struct.pack(">I", 55000), 1)), "ffffffffffffbac5e51566c80a64c8"),
            ("gray and alpha", picture(4, 8, bytes([50, 0, 50, 60, 50, 255])), "ffffffe3e3e3323232"),
            ("16 bits", picture(6, 16, deep), "ffffffe1eaf34c9ccb"),
            ("16 bits, 9 of them significant", picture(6, 16, deep[8:], (b"sBIT", bytes([9] * 4)), (b"sRGB", b"\0")), "dee1ea12569a"),
            (
                "palette",
                picture(3, 4, bytes([0x01, 0x23]), (b"PLTE", bytes([10, 100, 200] * 3)), (b"tRNS", bytes([0, 99]))),
                "ffffffccd4eb0a64c8000000",
            ),
            ("a transparent gray", picture(0, 1, bytes([0b10100000]), (b"tRNS", b"\0\1")), "ffffff000000ffffff000000000000000000000000000000"),
            ("2 bits", picture(0, 2, bytes([0b00011011])), "000000555555aaaaaaffffff"),
            ("a transparent color", picture(2, 8, bytes([1, 2, 3, 4, 5, 6]), (b"tRNS", bytes([0, 4, 0, 5, 0, 6]))), "010203ffffff"),
            ("16 bits of gray", picture(0, 16, bytes.fromhex("00ff80007fff")), "131313babababababa"),
        ):
            with self.subTest(name):
                self.assertEqual(png.read_on_white(file).hex(), pixels)

    def test_opaque_pictures_are_as_pillow_reads_them(self):
        draw = np.random.default_rng(3)
        smooth = np.add.outer(np.arange(32), np.arange(32))[..., None] * np.array([1, 2, 3])
        for name, pixels in (("noise", draw.integers(0, 256, (32, 32, 3))), ("smooth", smooth), ("odd size", draw.integers(0, 256, (5, 7, 3)))):
            image = Image.fromarray(pixels.astype(np.uint8))
            for mode in ("RGB", "L", "P", "1"):
                with self.subTest(f"{name} {mode}"):
                    file = io.BytesIO()
                    image.convert(mode).save(file, "png")
                    self.assertEqual(png.read_on_white(file.getvalue()), image.convert(mode).convert("RGB").tobytes())

    def test_interlaced_pictures(self):
        """Each pixel's value says where it is."""
        for width, height in ((9, 9), (1, 1), (3, 2), (32, 32)):
            raw, pixels = b"", np.zeros((height, width, 3), np.uint8)
            pixels[..., 0], pixels[..., 1] = np.arange(width)[None] * 5, np.arange(height)[:, None] * 7
            for x, y, dx, dy in png._ADAM7:
                part = pixels[y::dy, x::dx]
                raw += b"".join(b"\0" + line.tobytes() for line in part if part.size)
            file = (
                png.SIGNATURE
                + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 1))
                + chunk(b"IDAT", zlib.compress(raw))
                + chunk(b"IEND", b"")
            )
            self.assertEqual(png.read_on_white(file), pixels.tobytes())
            self.assertEqual(np.asarray(Image.open(io.BytesIO(file))).tobytes(), pixels.tobytes())

    def test_bad_pictures_are_refused(self):
        good = picture(2, 8, bytes(range(96)), height=32)
        png.read_on_white(good)
        for name, bad in (
            ("empty", b""),
            ("no picture", b"GIF89a" + bytes(50)),
            ("cut", good[:60]),
            ("damaged", good[:50] + b"x" + good[51:]),
            ("header", good[:20] + b"x" + good[21:]),
            (
                "too few rows",
                picture(2, 8, bytes(96), height=32).replace(
                    chunk(b"IDAT", zlib.compress(bytes(97 * 32))), chunk(b"IDAT", zlib.compress(bytes(97 * 31)))
                ),
            ),
            ("no palette", picture(3, 8, bytes(4))),
            (
                "a filter that is none",
                picture(2, 8, bytes(3)).replace(chunk(b"IDAT", zlib.compress(bytes(4))), chunk(b"IDAT", zlib.compress(b"\5\0\0\0"))),
            ),
        ):
            with self.subTest(name):
                with self.assertRaises(png.BadPicture):
                    png.read_on_white(bad)

    def test_what_is_written_is_read(self):
        draw = random.Random(4)
        steps = bytes(min(255, x * 8 + y) for y in range(32) for x in range(32) for _ in range(3))
        for pixels in (draw.randbytes(32 * 32 * 3), bytes(32 * 32 * 3), steps):
            file = png.write_rgb(pixels, 32, 32)
            self.assertEqual(Image.open(io.BytesIO(file)).tobytes(), pixels)
            self.assertEqual(png.read_on_white(file), pixels)

    def test_the_filters_are_libpngs(self):
        """Those that png_image_write_to_memory of libpng 1.6.39 chose."""
        steps = bytes(min(255, x * 8 + y) for y in range(32) for x in range(32) for _ in range(3))
        file = png.write_rgb(steps, 32, 32)
        raw = zlib.decompress(file[file.index(b"IDAT") + 4 : -16])
        self.assertEqual([raw[97 * y] for y in range(32)], [1] + [2] * 31)


class Files(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def test_a_file_is_replaced_as_a_whole(self):
        umask = os.umask(0o027)
        self.addCleanup(os.umask, umask)
        path = self.directory / "file"
        path.write_bytes(b"old")
        write_file(path, b"new")
        self.assertEqual(path.read_bytes(), b"new")
        self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o640)
        self.assertEqual([entry.name for entry in self.directory.iterdir()], ["file"])
        (self.directory / "folder").mkdir()
        with self.assertRaisesRegex(Error, "cannot write .*folder: Is a directory"):
            write_file(self.directory / "folder", b"x")
        with self.assertRaisesRegex(Error, "cannot write .*nowhere/x: No such file"):
            write_file(self.directory / "nowhere" / "x", b"x")
        self.assertEqual(sorted(entry.name for entry in self.directory.iterdir()), ["file", "folder"])

    def test_a_temporary_folder_goes(self):
        with self.assertRaises(UsageError):
            with temporary_folder(self.directory) as path:
                pathlib.Path(path, "x").touch()
                raise UsageError("an error")
        self.assertEqual(list(self.directory.iterdir()), [])

    def test_a_program_that_fails(self):
        for words, message in (
            (["sh", "-c", "exit 3"], "sh -c exit 3 failed; try another"),
            (["no-such-program"], "cannot start no-such-program: No such file"),
        ):
            with self.assertRaisesRegex(Error, message):
                run_program(words, self.directory, "try another")

    def archive(self, name, make):
        path = self.directory / name
        make(path)
        return str(path)

    def unpacked(self, path):
        target = self.directory / "target"
        target.mkdir()
        unpack(path, str(target))
        return {str(entry.relative_to(target)): entry.read_bytes() for entry in target.rglob("*") if entry.is_file()}

    def refused(self, path, message):
        target = self.directory / "bad"
        target.mkdir(exist_ok=True)
        with self.assertRaisesRegex(Error, f"cannot unpack .*{message}"):
            unpack(path, str(target))

    def test_modes_and_folders(self):
        def make(path):
            with tarfile.open(path, "w:gz") as archive:
                for name, kind, mode in (("d/", tarfile.DIRTYPE, 0o700), ("d/x", tarfile.REGTYPE, 0o4777), ("e/f/y", tarfile.REGTYPE, 0)):
                    info = tarfile.TarInfo(name)
                    info.type, info.mode, info.uid = kind, mode, 12345
                    archive.addfile(info)

        umask = os.umask(0o022)
        self.addCleanup(os.umask, umask)
        self.assertEqual(self.unpacked(self.archive("a.tar.gz", make)), {"d/x": b"", "e/f/y": b""})
        target = self.directory / "target"
        modes = {name: stat.S_IMODE((target / name).stat().st_mode) for name in ("d", "d/x", "e/f/y")}
        self.assertEqual(modes, {"d": 0o755, "d/x": 0o644, "e/f/y": 0o644})
        self.assertEqual((target / "d/x").stat().st_uid, os.getuid())

    def test_entries_that_are_no_files(self):
        def with_entry(kind, link=""):
            def make(path):
                with tarfile.open(path, "w:gz") as archive:
                    info = tarfile.TarInfo("x")
                    info.type, info.linkname = kind, link
                    archive.addfile(info)

            return make

        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            self.refused(self.archive("a.tar.gz", with_entry(kind, "y")), "'x' is neither a file nor a folder")

        def link_in_zip(path):
            with zipfile.ZipFile(path, "w") as archive:
                info = zipfile.ZipInfo("x")
                info.external_attr = (stat.S_IFLNK | 0o777) << 16
                archive.writestr(info, "/etc/passwd")

        self.refused(self.archive("a.zip", link_in_zip), "'x' is neither a file nor a folder")

    def test_names_that_lead_outside(self):
        for name in ("../x", "a/../../x", "/x"):

            def make_zip(path):
                with zipfile.ZipFile(path, "w") as archive:
                    archive.writestr(name, "x")

            self.refused(self.archive("a.zip", make_zip), "lies outside")
        self.assertEqual(list((self.directory / "bad").rglob("*")), [])

    def test_the_same_name_twice(self):
        def make(path):
            with tarfile.open(path, "w:gz") as archive:
                for _ in range(2):
                    archive.addfile(tarfile.TarInfo("x"))

        self.refused(self.archive("a.tar.gz", make), "File exists")

    def test_a_damaged_header_is_not_the_end(self):
        def make(path):
            with tarfile.open(path, mode) as archive:
                for name in ("a", "b", "c"):
                    archive.addfile(tarfile.TarInfo(name))
            is_packed = mode == "w:gz"
            content = bytearray(gzip.decompress(path.read_bytes()) if is_packed else path.read_bytes())
            content[512 * damaged] ^= 1
            path.write_bytes(gzip.compress(content) if is_packed else content)

        for mode, ending in (("w", "tar"), ("w:gz", "tar.gz")):
            for damaged in (1, 2):
                with self.subTest(mode=mode, damaged=damaged):
                    self.refused(self.archive(f"{damaged}.{ending}", make), f"the header at byte {512 * damaged} is damaged")
                    shutil.rmtree(self.directory / "bad")
            damaged = 0
            self.refused(self.archive(f"first.{ending}", make), "bad checksum|not a .* file|invalid header|file could not be opened")

    def test_the_check_sum_of_a_compressed_archive(self):
        def make(path):
            with tarfile.open(path, "w:gz") as archive:
                info = tarfile.TarInfo("a")
                info.size = 30000
                archive.addfile(info, io.BytesIO(b"a line\n" * 5000))
            path.write_bytes(damage(path.read_bytes()))

        for damage, message in (
            (lambda content: content[:-8] + bytes([content[-8] ^ 1]) + content[-7:], "CRC check failed"),
            (lambda content: content[:-8], "ended before the end-of-stream"),
            (lambda content: content[:-1], "ended before the end-of-stream"),
        ):
            self.refused(self.archive("a.tar.gz", make), message)
            shutil.rmtree(self.directory / "bad")

    def test_a_damaged_zip(self):
        def make(path):
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("x", b"content" * 100)
            content = bytearray(path.read_bytes())
            content[100] ^= 1
            path.write_bytes(content)

        self.refused(self.archive("a.zip", make), "Bad CRC-32")

    def test_an_older_python_is_one_line(self):
        check = "import sys; sys.version_info = (3, 10, 0); import common"
        run = subprocess.run([sys.executable, "-c", check], cwd=programs.DATASETS, capture_output=True, text=True)
        self.assertEqual((run.returncode, run.stderr), (1, "error: Lockstep's data sets need Python 3.11 or newer; this is Python 3.10\n"))


if __name__ == "__main__":
    unittest.main()
