"""zoo/datasets/icons32.py from packages made here, in place of Debian's."""

import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import peers  # noqa: F401

from programs import command

import numpy as np
from PIL import Image

PACKAGES = (
    "adwaita-icon-theme tango-icon-theme gnome-icon-theme oxygen-icon-theme mate-icon-theme lxde-icon-theme "
    "faenza-icon-theme elementary-xfce-icon-theme gnome-colors-common moka-icon-theme"
).split()
CLASSES = "actions apps categories devices emblems mimetypes places status".split()


def icon(seed, size=32):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size, size, 4)).astype(np.uint8))


class Icons32(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = pathlib.Path(temporary.name)
        self.packages = self.directory / "packages"
        self.packages.mkdir()

    def make_package(self, name, icons, links=()):
        """icons: {path below usr/share/icons: picture}"""
        root = self.directory / ("tree-" + name)
        (root / "DEBIAN").mkdir(parents=True)
        (root / "DEBIAN" / "control").write_text(
            f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: Nobody <nobody@example.com>\nDescription: test\n"
        )
        (root / "usr" / "share" / "icons").mkdir(parents=True)
        for path, picture in icons.items():
            file = root / "usr" / "share" / "icons" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            picture.save(file)
        for path, target in links:
            os.symlink(target, root / "usr" / "share" / "icons" / path)
        subprocess.run(["dpkg-deb", "--build", "-Znone", root, self.packages / f"{name}_1_all.deb"], check=True, capture_output=True)

    def run_tool(self, *more):
        return subprocess.run(
            command("icons32", "--output-dir", self.directory / "set", "--packages", self.packages, *more), capture_output=True, text=True
        )

    def test_a_signal_leaves_nothing_behind(self):
        programs = self.directory / "bin"
        programs.mkdir()
        (programs / "apt-get").write_text(
            "#!/bin/sh\n/bin/sleep 60 &\necho half > half.deb\necho $$ $! > $NUMBERS.new\n/bin/mv $NUMBERS.new $NUMBERS\nwait\n"
        )
        (programs / "apt-get").chmod(0o755)
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            place, numbers = self.directory / f"place{code}", self.directory / f"numbers{code}"
            process = subprocess.Popen(
                command("icons32", "--output-dir", place / "set"), env={"PATH": str(programs), "NUMBERS": str(numbers)}, stdout=subprocess.DEVNULL
            )
            deadline = time.monotonic() + 30
            while not numbers.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            self.assertEqual(len(list(place.iterdir())), 1)
            process.send_signal(number)
            self.assertEqual(process.wait(30), code)
            self.assertEqual(list(place.iterdir()), [])
            for pid in numbers.read_text().split():
                status = pathlib.Path("/proc", pid, "stat")
                self.assertTrue(not status.exists() or status.read_text().split()[2] == "Z", pid)

    def make_all(self):
        shared = icon(1000)
        for number, package in enumerate(PACKAGES):
            icons = {f"Theme/32x32/{name}/icon-{i}.png": icon(100 * number + 10 * c + i) for c, name in enumerate(CLASSES) for i in range(6)}
            icons["Theme/32x32/apps/shared.png"] = shared  # in every package
            icons["Theme/48x48/apps/large.png"] = icon(7, 48)  # of another size
            icons["Theme/32x32/apps/wrong-size.png"] = icon(8, 31)
            icons["Theme/32x32/animations/other.png"] = icon(9000 + number)  # no class
            if package.startswith("elementary"):
                icons["elementary/mimes/32/text.png"] = icon(4321)
            self.make_package(package, icons, [("Theme/32x32/apps/link.png", "icon-0.png")])

    def test_the_set(self):
        self.make_all()
        done = self.run_tool()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("9 with the pixels of another", done.stdout)
        files = sorted((self.directory / "set").rglob("*.png"))
        self.assertEqual(len(files), 10 * 8 * 6 + 1 + 1)
        self.assertEqual({file.parent.name for file in files}, set(CLASSES))
        self.assertEqual(sum(file.name.endswith("shared.png") for file in files), 1)
        # A name is on one side, whatever the theme and the class.
        sides = {}
        for file in files:
            sides.setdefault(file.name.split("--")[2], set()).add(file.parts[-3])
        self.assertTrue(all(len(side) == 1 for side in sides.values()), sides)
        self.assertEqual({side for pair in sides.values() for side in pair}, {"train", "test"})
        text = next(file for file in files if file.name == "elementary-xfce-icon-theme--elementary--text.png")
        self.assertEqual(text.parent.name, "mimetypes")
        pixels = np.asarray(Image.open(text))
        self.assertEqual(pixels.shape, (32, 32, 3))
        source = np.asarray(icon(4321))
        self.assertTrue((pixels[source[..., 3] == 0] == 255).all())  # transparent: white
        opaque = source[..., 3] == 255
        self.assertTrue((pixels[opaque] == source[opaque][:, :3]).all())

    def test_what_cannot_be(self):
        self.make_package(PACKAGES[0], {"Theme/32x32/apps/a.png": icon(1)})
        done = self.run_tool()
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("has no tango-icon-theme_*.deb", done.stderr)
        (self.packages / f"{PACKAGES[0]}_1_all.deb").write_bytes(b"no package")
        done = self.run_tool()
        self.assertRegex(done.stderr, "dpkg-deb --fsys-tarfile .* failed; is the package whole?")
        self.assertFalse((self.directory / "set").exists())
        self.assertEqual(sorted(path.name for path in self.directory.iterdir()), ["packages", "tree-" + PACKAGES[0]])
        (self.directory / "set").mkdir()
        (self.directory / "set" / "file").write_text("mine")
        self.assertIn("set is not empty; name a new directory", self.run_tool().stderr)
        self.assertEqual((self.directory / "set" / "file").read_text(), "mine")
        shutil.rmtree(self.directory / "set")
        (self.directory / "set").touch()
        self.assertIn("set is not a directory; name a new one", self.run_tool().stderr)
        self.assertTrue((self.directory / "set").is_file())


if __name__ == "__main__":
    unittest.main()
