#!/usr/bin/env python3
"""Downloads a public data set, once for all ranks of a node, verifies and unpacks it."""

import contextlib
import fcntl
import json
import os
import re
import socket
import time
from dataclasses import dataclass

from common.download import download
from common.program import (
    Error,
    Parser,
    UsageError,
    end_if_stopped,
    make_folder,
    read_file,
    run_main,
    stop_signals_noted,
    sync_files_below,
    whole_number,
)
from common.unpack import remove, unpack

CATALOG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "catalog.json")
LOCK_SECONDS = 2 * 3600


@dataclass
class File:
    url: str
    name: str  # the last part of the address
    bytes: int
    sha256: str  # hexadecimal
    source: str  # the public file that address, size and checksum were copied from


@dataclass
class DataSet:
    """A data set in one part; `part` is empty and `parts` too if it has none."""

    name: str
    about: str
    part: str
    parts: list
    files: list


def read_file_entry(entry, file):
    url = file["url"] if "://" in file["url"] else entry.get("address", "") + file["url"]
    name = re.split("[?#]", url.rsplit("/", 1)[-1])[0]
    if not url.startswith(("http://", "https://")) or not name or name.startswith("."):
        raise UsageError(f"'{url}' is not the address of a file")
    return File(url, name, int(file.get("bytes", 0)), str(file.get("sha256", "")), file.get("source", entry.get("source", "")))


def check_folder_name(name):
    """Names of data sets and parts become names of folders, which are removed when they have been unpacked."""
    if not name or name.startswith(".") or "/" in name or "\0" in name or name == "downloads":
        raise UsageError(
            f"'{name}' cannot be the name of a data set or part; expected a folder's name, without '/' and no dot first, other than downloads"
        )


def read_entry(name, entry, part):
    """A data set of the catalog in a part; "" is the default one."""
    check_folder_name(name)
    parts = sorted(entry.get("parts", ()))
    if "parts" in entry:
        part = part or entry.get("default_part", "")
        if part not in parts:
            raise UsageError(f"{name} has no part '{part}'; there are {', '.join(parts)}")
        check_folder_name(part)
        files = entry["parts"][part]
    elif part:
        raise UsageError(f"{name} has no parts; leave out --part")
    else:
        files = entry["files"]
    return DataSet(name, entry.get("about", ""), part, parts, [read_file_entry(entry, file) for file in files])


def check_verified(data_set):
    """Every file has a name of its own, a size, a checksum and a source."""
    if not data_set.files:
        raise UsageError(f"{data_set.name} has no files")
    urls = {}
    for file in data_set.files:
        if file.name in urls:
            raise UsageError(
                f"{data_set.name}: {urls[file.name]} and {file.url} would have the same name, {file.name}; make them entries of their own"
            )
        urls[file.name] = file.url
    for file in data_set.files:
        missing = ["its SHA-256"] * (not re.fullmatch("[0-9a-f]{64}", file.sha256)) + ["its size"] * (file.bytes <= 0)
        missing += ["the public file that names them"] * (not file.source)
        if missing:
            raise UsageError(f"{data_set.name} is unverified and is not fetched: for {file.url} the catalog lacks {', '.join(missing)}")


class Catalog:
    """JSON: {"NAME": {"about": ..., "files": [{"url", "bytes", "sha256", "source"}, ...]}}. Instead of "files", "parts": {"PART": [files]} and
    "default_part". "address" and "source" of an entry are those of files without."""

    def __init__(self, path):
        self._path = path
        with self._naming_the_catalog():
            self._entries = json.loads(read_file(path))
            if not isinstance(self._entries, dict):
                raise UsageError("expected an object of data sets by name")

    @contextlib.contextmanager
    def _naming_the_catalog(self):
        try:
            yield
        except UsageError as error:
            raise UsageError(str(error) if self._path == CATALOG else f"{self._path}: {error}") from None
        except KeyError as error:
            raise UsageError(f"{self._path} is not a catalog: {error} is missing") from None
        except (ValueError, TypeError, AttributeError) as error:
            raise UsageError(f"{self._path} is not a catalog: {error}") from None

    def data_sets(self):
        """All, each in its default part."""
        with self._naming_the_catalog():
            return [read_entry(name, entry, "") for name, entry in sorted(self._entries.items())]

    def find(self, name, part):
        with self._naming_the_catalog():
            if name not in self._entries:
                raise UsageError(f"there is no data set '{name}'; there are {', '.join(sorted(self._entries))}")
            data_set = read_entry(name, self._entries[name], part)
            check_verified(data_set)
            return data_set


def list_data_sets(catalog):
    for data_set in catalog.data_sets():
        size = sum(file.bytes for file in data_set.files)
        print(f"{data_set.name:12}{size / 1e6:7.1f} MB  {data_set.about}")
        if data_set.parts:
            print(f"{'':24}--part: {' '.join(data_set.parts)} ({data_set.part} unless given)")


def print_files(folder):
    found = [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]
    for path in sorted(found, key=os.fsencode):
        print(f"{os.stat(path).st_size:13}  {path}")


@contextlib.contextmanager
def folder_lock(folder):
    """One process at a time in a folder, which is made if it is not there. The system drops the lock with the process."""
    make_folder(folder)
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise Error(f"cannot open {folder}: {error.strerror}") from None
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while not try_lock(descriptor, folder):
            if time.monotonic() > deadline:
                raise Error(f"waited {LOCK_SECONDS} s for the process that works in {folder}; if it hangs, end it")
            time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def try_lock(descriptor, folder):
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError as error:
        raise Error(f"cannot lock {folder}: {error.strerror}") from None


@contextlib.contextmanager
def unfinished_folder(downloads):
    """A folder to unpack into, removed with what is in it unless it has got another name. It is of this process alone: on some network file systems
    machines do not see each other's locks. Removes what killed processes of this machine have left."""
    with stop_signals_noted():
        of_host = f"unpacked.{socket.gethostname()}."
        for name in os.listdir(downloads):
            if re.fullmatch(re.escape(of_host) + "[0-9]+", name):  # another machine may be called HOST.example
                remove(os.path.join(downloads, name))
        path = os.path.join(downloads, f"{of_host}{os.getpid()}")
        make_folder(path)
        try:
            yield path
        finally:
            remove(path)


def publish(unpacked, target):
    """Only what is on disk gets its name: afterwards the folder is taken for whole."""
    sync_files_below(unpacked)
    end_if_stopped()
    try:
        os.rename(unpacked, target)
    except OSError as error:
        if not os.path.exists(target):  # otherwise another machine has been faster, with the same files
            raise Error(f"cannot create {target}: {error.strerror}") from None


def fetch(data_set, arguments):
    folder = f"{data_set.name}-{data_set.part}" if data_set.part else data_set.name
    target, downloads = os.path.join(arguments.data_dir, folder), os.path.join(arguments.data_dir, "downloads", folder)
    if not os.path.exists(target):
        # Other ranks, and other runs, wait here for the first one. Who comes after it finds the files.
        with folder_lock(downloads):
            if not os.path.exists(target):
                archives = [download(file, downloads, arguments.retries, arguments.stall_timeout) for file in data_set.files]
                with unfinished_folder(downloads) as unpacked:
                    for archive in archives:
                        unpack(archive, unpacked)
                    publish(unpacked, target)
                remove(downloads)
                with contextlib.suppress(OSError):  # another one is being fetched
                    os.rmdir(os.path.dirname(downloads))
                print(f"{target}: {len(archives)} file{'s' * (len(archives) != 1)} verified (sizes and SHA-256 of {data_set.files[0].source})")
                print_files(target)
                return
    print(f"{target} is there already; remove it to fetch it again")


def main():
    parser = Parser(
        __doc__,
        [
            ("The files that resnet_ddp trains on", "python3 fetch.py cifar10"),
            ("Sentences in English and French", "python3 fetch.py opus_books --part en-fr"),
        ],
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="cifar10, cifar100, mnist, multinli or opus_books")
    parser.add_argument("--list", action="store_true", help="print the data sets and their sizes")
    parser.add_argument("--part", default="", metavar="PART", help="which part of a data set that has parts, as en-it of opus_books")
    parser.add_argument("--data-dir", default=".data", metavar="DIR", help="the files lie in DIR/NAME, or DIR/NAME-PART")
    parser.add_argument(
        "--catalog", metavar="FILE", help="a catalog of your own in place of the built-in one: JSON, with each file's url, bytes, sha256, source"
    )
    parser.add_argument("--retries", type=whole_number(0), default=5, metavar="N", help="after a cut connection that brings nothing more")
    parser.add_argument(
        "--stall-timeout", type=whole_number(1), default=60, metavar="SECONDS", help="seconds without a byte after which a connection is given up"
    )
    arguments = parser.parse_args()
    catalog = Catalog(arguments.catalog or CATALOG)
    if arguments.list:
        list_data_sets(catalog)
    elif not arguments.name:
        raise UsageError("which data set? --list shows them")
    else:
        fetch(catalog.find(arguments.name, arguments.part), arguments)


if __name__ == "__main__":
    run_main(main)
