#!/usr/bin/env python3
"""Pictures of 32x32 pixels in 8 classes, from Debian's icon themes: train/CLASS/*.png and test/CLASS/*.png, for machines that reach Debian's
packages but no public data sets. Every icon is there once: one with the pixels of another is left out."""

import os
import subprocess
import tarfile

from common import png
from common.program import (
    Error,
    Parser,
    end_if_stopped,
    end_program,
    make_folder,
    run_main,
    run_program,
    start_program,
    sync_files_below,
    temporary_folder,
)
from common.xxh3 import xxh3_64

# In the order in which a picture that several hold is taken.
PACKAGES = (
    "adwaita-icon-theme",
    "tango-icon-theme",
    "gnome-icon-theme",
    "oxygen-icon-theme",
    "mate-icon-theme",
    "lxde-icon-theme",
    "faenza-icon-theme",
    "elementary-xfce-icon-theme",
    "gnome-colors-common",
    "moka-icon-theme",
)
# The contexts of freedesktop's icon themes that are classes.
CLASSES = ("actions", "apps", "categories", "devices", "emblems", "mimetypes", "places", "status")
SIDES = ("train", "test")
ICONS = "./usr/share/icons/"
SIDE = 32


def icon_class(folders):
    """The class of an icon by the folders of its path, such as ("Tango", "32x32", "apps"); None for other sizes and contexts."""
    names = ["mimetypes" if name == "mimes" else name for name in folders]  # elementary's word
    contexts = [name for name in names if name in CLASSES]
    has_size = "32x32" in names or "32" in names
    return contexts[0] if has_size and len(contexts) == 1 else None


def is_test_icon(name):
    """Whether icons of this name (without theme, folder and .png) are for the test: the same motif is on one side in all themes."""
    return xxh3_64(os.fsencode(name)) % 5 == 0


def read_archive(stream):
    """The icons of a package's files: path below usr/share/icons -> content. Symbolic links are left out. None if there is no such folder."""
    found, has_icons = {}, False
    with tarfile.open(fileobj=stream, mode="r|", encoding="utf-8", errors="surrogateescape") as archive:
        for entry in archive:
            end_if_stopped()
            has_icons = has_icons or entry.name.startswith(ICONS) or entry.name + "/" == ICONS
            path = entry.name.removeprefix(ICONS)
            if path == entry.name or not path.endswith(".png") or os.path.basename(path) == ".png":
                continue
            if entry.islnk():  # another name of a file that came before
                found[path] = found.get(entry.linkname.removeprefix(ICONS), b"")
            elif entry.isreg():
                content = archive.extractfile(entry).read()
                found[path] = content if png.size_of(content) == (SIDE, SIDE) else b""
    return found if has_icons else None


def unpack(package):
    """The icons of a .deb file, as read_archive()."""
    words = ["dpkg-deb", "--fsys-tarfile", package]
    process = start_program(words, None, subprocess.PIPE)
    try:
        try:
            found, broken = read_archive(process.stdout), None
        except (tarfile.TarError, EOFError, OSError) as error:
            found, broken = None, error
        process.stdout.read()
        process.stdout.close()
        if process.wait() != 0 or broken is not None:
            raise Error(f"{' '.join(words)} failed; is the package whole?")
    finally:
        if process.poll() is None:
            end_program(process)
    return found


class IconSet:
    """The pictures of a set, in the folder `target`."""

    def __init__(self, target):
        self._target = target
        self._seen = set()
        self.duplicates = 0
        self.counts = {}  # class -> [train, test]

    def add(self, package, icons):
        """Takes the icons of a package into train/CLASS and test/CLASS, on white. Returns how many."""
        taken = 0
        for path in sorted(icons, key=lambda path: os.fsencode(path).split(b"/")):
            end_if_stopped()
            *folders, file = path.split("/")
            category = icon_class(folders)
            if category and icons[path]:
                taken += self._take(package, folders[0], category, file.removesuffix(".png"), icons[path])
        return taken

    def _take(self, package, theme, category, name, content):
        try:
            pixels = png.read_on_white(content)
        except png.BadPicture:
            return 0
        if pixels in self._seen:
            self.duplicates += 1
            return 0
        self._seen.add(pixels)
        tests = is_test_icon(name)
        folder = os.path.join(self._target, SIDES[tests], category)
        make_folder(folder)
        path = os.path.join(folder, f"{package}--{theme}--{name}.png")  # a theme may have variants of one name
        try:
            with open(path, "wb") as file:
                file.write(png.write_rgb(pixels, SIDE, SIDE))
        except OSError as error:
            raise Error(f"cannot write {path}: {error.strerror}") from None
        self.counts.setdefault(category, [0, 0])[tests] += 1
        return 1

    def print_counts(self):
        rows = sorted(self.counts.items()) + [("all", [sum(counts) for counts in zip(*self.counts.values())])]
        print(f"{'class':12}{'train':>8}{'test':>8}")
        for name, (train, test) in rows:
            print(f"{name:12}{train:8}{test:8}")


def find_packages(folder):
    """The .deb files of a folder by package: a file is called PACKAGE_VERSION_ARCHITECTURE.deb."""
    found = {}
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise Error(f"cannot read {folder}: {error.strerror}") from None
    for name in names:
        package = name.split("_")[0]
        if not name.endswith(".deb") or package not in PACKAGES:
            continue
        if package in found:
            raise Error(f"{folder} holds two versions of {package}: {os.path.basename(found[package])} and {name}; leave one")
        found[package] = os.path.abspath(os.path.join(folder, name))
    return found


def download(folder):
    words = ["apt-get", "download", "-o", "Acquire::Retries=3"]
    if os.geteuid() == 0:
        words += ["-o", "APT::Sandbox::User=root"]
    print(f"fetching {len(PACKAGES)} packages (about 146 MB)", flush=True)
    run_program([*words, *PACKAGES], folder, "run apt-get update first; or fetch the packages elsewhere and give their directory: --packages DIR")


def check_output(path):
    """`path` may not hold anything yet."""
    if os.path.exists(path) and not os.path.isdir(path):
        raise Error(f"{path} is not a directory; name a new one")
    if os.path.isdir(path) and os.listdir(path):
        raise Error(f"{path} is not empty; name a new directory")


def publish(made, output):
    """Gives a finished set its name, once it is on disk."""
    end_if_stopped()
    sync_files_below(made)
    try:
        if os.path.isdir(output):
            os.rmdir(output)
        os.rename(made, output)
    except OSError as error:
        raise Error(f"cannot create {output}: {error.strerror}") from None


def make_set(source, target):
    packages = find_packages(source)
    icons = IconSet(target)
    for package in PACKAGES:
        if package not in packages:
            raise Error(f"{source} has no {package}_*.deb; expected the packages {', '.join(PACKAGES)}")
        found = unpack(packages[package])
        if found is None:
            raise Error(f"{package} has no usr/share/icons")
        print(f"{package:28}{icons.add(package, found):6} pictures", flush=True)
    if len(icons.counts) != len(CLASSES):
        raise Error(f"the packages of this system hold icons of {len(icons.counts)} classes only; expected {len(CLASSES)}")
    return icons


def main():
    parser = Parser(
        __doc__,
        [("Make a set and train on it", "python3 icons32.py --output-dir icons32 && lockrun --nproc-per-node 2 resnet_ddp --data-dir icons32")],
    )
    parser.add_argument("--output-dir", required=True, metavar="DIR", help="directory to write; it may not hold anything yet")
    parser.add_argument("--packages", metavar="DIR", help="directory with the packages' .deb files (default: fetched with apt-get download)")
    arguments = parser.parse_args()
    output = os.path.abspath(arguments.output_dir)
    check_output(output)
    make_folder(os.path.dirname(output))
    with temporary_folder(os.path.dirname(output)) as temporary:
        source = arguments.packages
        if source is None:
            source = os.path.join(temporary, "work")
            make_folder(source)
            download(source)
        made = os.path.join(temporary, "set")
        make_folder(made)
        icons = make_set(source, made)
        publish(made, output)
    icons.print_counts()
    print(f"left out: {icons.duplicates} with the pixels of another\nwritten to {output}")


if __name__ == "__main__":
    run_main(main)
