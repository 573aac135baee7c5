"""The files of an archive."""

import contextlib
import gzip
import os
import shutil
import stat
import tarfile
import zipfile
import zlib

from .program import Error, end_if_stopped

_PIECE = 1 << 20


def _check_end(archive):
    """tarfile takes a damaged header for the end of the archive. The true end is a block of zeros, or that of the file. What is compressed has
    its check sum behind that, which is looked at there."""
    archive.fileobj.seek(archive.offset)
    block = archive.fileobj.read(tarfile.BLOCKSIZE)
    if block.strip(b"\0"):
        raise tarfile.ReadError(f"the header at byte {archive.offset} is damaged")
    while archive.fileobj.read(_PIECE):
        end_if_stopped()


def _is_leftover(name):
    """What macOS adds to archives."""
    return name.split("/")[0] == "__MACOSX" or os.path.basename(name) in (".DS_Store", "Icon\r")


def _stays_inside(name):
    return bool(name) and not name.startswith("/") and ".." not in name.split("/")


def _is_gzip(path):
    with open(path, "rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _entries(path):
    """What is in an archive, as (name, kind, opens the content); the kind is "file", "folder" or "other"."""
    if path.endswith(".gz") and not path.endswith(".tar.gz"):
        yield os.path.basename(path).removesuffix(".gz"), "file", lambda: gzip.open(path)
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path, metadata_encoding="utf-8") as archive:
            for entry in archive.infolist():
                has_kind = stat.S_IFMT(entry.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
                kind = "other" if not has_kind else "folder" if entry.is_dir() else "file"
                yield entry.filename, kind, lambda entry=entry: archive.open(entry)
    else:
        with tarfile.open(path, "r:gz" if _is_gzip(path) else "r:", encoding="utf-8", errors="strict") as archive:
            for entry in archive:
                kind = "folder" if entry.isdir() else "file" if entry.isreg() else "other"
                yield entry.name, kind, lambda entry=entry: archive.extractfile(entry)
            _check_end(archive)


def _write(source, to):
    os.makedirs(os.path.dirname(to), exist_ok=True)
    with open(to, "xb") as file:
        while piece := source.read(_PIECE):
            end_if_stopped()
            file.write(piece)


def unpack(path, folder):
    """Unpacks a .tar.gz, a .zip, or a single file's .gz (NAME.gz becomes NAME) into `folder`, which exists. Only files and folders within it are
    made; others (links, paths that lead outside) are an error. Raises Error, which names the archive, and Stopped."""
    try:
        for name, kind, open_content in _entries(path):
            end_if_stopped()
            if not _stays_inside(name):
                raise Error(f"cannot unpack {path}: '{name}' lies outside")
            if _is_leftover(name):
                continue
            if kind == "other":
                raise Error(f"cannot unpack {path}: '{name}' is neither a file nor a folder")
            to = os.path.join(os.fsencode(folder), name.encode("utf-8"))
            if kind == "folder":
                os.makedirs(to, exist_ok=True)
                continue
            with contextlib.closing(open_content()) as source:
                _write(source, to)
    except UnicodeError:
        raise Error(f"cannot unpack {path}: a file's name is not UTF-8") from None
    except (OSError, EOFError, RuntimeError, NotImplementedError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        what = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise Error(f"cannot unpack {path}: {what}") from None


def remove(folder):
    """Removes a folder with all that is in it, as far as that is possible."""
    shutil.rmtree(folder, ignore_errors=True)
