"""One file from the network, whole and verified, or an error."""

import contextlib
import hashlib
import http.client
import os
import re
import socket
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

from .program import Error
from .progress import ProgressBar

_PIECE = 1 << 16
_MOST_REDIRECTIONS = 10
_FIRST_PAUSE = 1.0  # seconds before the first retry; doubles with each


class _Redirections(urllib.request.HTTPRedirectHandler):
    max_redirections = max_repeats = _MOST_REDIRECTIONS

    def redirect_request(self, request, file, code, message, headers, url):
        if not url.startswith(("http://", "https://")):
            raise urllib.error.HTTPError(url, code, "redirected to an address that is neither http nor https", headers, file)
        return super().redirect_request(request, file, code, message, headers, url)


_OPENER = urllib.request.build_opener(_Redirections)
_OPENER.addheaders = [("User-Agent", "lockstep-data-fetch")]


class _Failure(Exception):
    """A connection brought no more. `may_pass`: whether it is worth another try; None: only if something had arrived before."""

    def __init__(self, what, may_pass):
        super().__init__(" ".join(what.split()))
        self.may_pass = may_pass


class _SendsWholeFilesOnly(Exception):
    """The server does not go on where an earlier connection was cut."""


class _TooLong(Exception):
    pass


def _size_of(path):
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def sha256_of(path):
    """The SHA-256 of a file in hexadecimal."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Error(f"cannot read {path}: {error.strerror}") from None


def _open(url, begin, stall_timeout):
    """The response that brings the file from byte `begin` on."""
    request = urllib.request.Request(url, headers={"Range": f"bytes={begin}-"} if begin else {})
    try:
        response = _OPENER.open(request, timeout=stall_timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if begin and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise _SendsWholeFilesOnly from None
        may_pass = error.code >= 500 or error.code in (http.HTTPStatus.TOO_MANY_REQUESTS, http.HTTPStatus.REQUEST_TIMEOUT)
        raise _Failure(f"the server answers {error.code} {error.reason}", may_pass) from None
    except urllib.error.URLError as error:
        raise _unreached(url, error.reason) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _cut(error) from None
    if begin and (response.status != http.HTTPStatus.PARTIAL_CONTENT or not re.match(rf"bytes {begin}-", response.headers.get("Content-Range", ""))):
        response.close()
        raise _SendsWholeFilesOnly
    return response


def _unreached(url, reason):
    if isinstance(reason, socket.gaierror):
        return _Failure(f"Could not resolve host {urllib.parse.urlsplit(url).hostname}: {reason.strerror}", False)
    if isinstance(reason, TimeoutError):
        return _Failure("no connection in time", True)
    if isinstance(reason, ssl.SSLError):
        return _Failure(str(reason), False)
    return _Failure(f"no connection: {getattr(reason, 'strerror', None) or reason}", None)


def _cut(error):
    if isinstance(error, TimeoutError):
        return _Failure("no byte came for the time of --stall-timeout", True)
    if isinstance(error, (ConnectionError, http.client.IncompleteRead)):
        return _Failure("the connection was cut", True)
    return _Failure(f"the server answers what is not HTTP: {error}", isinstance(error, OSError))


class _Part:
    """NAME.part: what has arrived of a file."""

    def __init__(self, path, expected):
        self.path, self._expected = path, expected
        try:
            self._file = open(path, "ab")
        except OSError as error:
            raise Error(f"cannot write {path}: {error.strerror}") from None
        self.size = _size_of(path)
        if self.size > expected:
            self.restart()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):  # a failed write has been reported
            self._file.close()

    @contextlib.contextmanager
    def _writing(self):
        try:
            yield
        except OSError as error:
            raise Error(f"cannot write {self.path}: {error.strerror}") from None

    def add(self, piece):
        if self.size + len(piece) > self._expected:
            raise _TooLong
        with self._writing():
            self._file.write(piece)
            self._file.flush()
        self.size += len(piece)

    def restart(self):
        with self._writing():
            self._file.truncate(0)
        self.size = 0

    def sync(self):
        with self._writing():
            os.fsync(self._file.fileno())

    def remove(self):
        with contextlib.suppress(OSError):
            os.unlink(self.path)


def _transfer(url, part, expected, bar, stall_timeout):
    """Appends what one connection brings. Returns if the server has sent all that it wanted to send; raises _Failure and others."""
    with _open(url, part.size, stall_timeout) as response:
        while True:
            try:
                piece = response.read1(_PIECE)
            except (OSError, http.client.HTTPException) as error:
                raise _cut(error) from None
            if not piece:
                break
            part.add(piece)
            bar.update(part.size)
        if response.length and part.size < expected:
            raise _Failure("the connection was cut", True)


def _receive(file, part, by_hand, retries, stall_timeout):
    """Until `part` has all bytes; it may hold some."""
    failures = restarts = 0
    with ProgressBar(file.name, file.bytes, part.size) as bar:
        if part.size:
            bar.say(f"{file.name}: going on behind {part.size // 1000000} MB")
        while part.size < file.bytes:
            before, failure = part.size, None
            try:
                _transfer(file.url, part, file.bytes, bar, stall_timeout)
            except _SendsWholeFilesOnly:
                # The first time may be for what an earlier run has left, each other one is for a connection that was cut.
                if restarts <= retries:
                    restarts += 1
                    part.restart()
                    bar.initial = 0
                    continue
                failure = _Failure("the server sends whole files only", False)
            except _TooLong:
                part.remove()
                raise Error(f"{file.url} is longer than the {file.bytes} bytes of the catalog: another file{by_hand}") from None
            except _Failure as error:
                failure = error
            if part.size == file.bytes:  # whatever the server says of what is to follow: the checksum decides
                break
            if failure is None:
                part.remove()
                raise Error(f"{file.url} has {part.size} bytes; the catalog says {file.bytes}: another file{by_hand}")
            failures = 1 if part.size > before else failures + 1
            may_pass = part.size > bar.initial if failure.may_pass is None else failure.may_pass
            if not may_pass or failures > retries:
                if part.size == 0:
                    part.remove()
                raise Error(f"cannot download {file.url}: {failure}{by_hand}")
            pause = _FIRST_PAUSE * 2 ** min(failures - 1, 5)
            bar.say(f"{file.name}: {failure}; again in {pause:.1f} s")
            time.sleep(pause)
    part.sync()


def download(file, folder, retries, stall_timeout):
    """Brings `file` (with url, name, bytes, sha256) into `folder` and returns its path. What is there under this name is verified and kept.

    Bytes arrive in NAME.part, from which a later call goes on. `retries`: after a cut connection or a server's error, as long as nothing more
    arrives. `stall_timeout`: seconds without a byte, and for making a connection. Raises Error, which says what to put where by hand."""
    whole = os.path.join(folder, file.name)
    if os.path.exists(whole):
        found = sha256_of(whole)
        if found == file.sha256:
            return whole
        raise Error(
            f"{whole} has {_size_of(whole)} bytes and the SHA-256 {found}; expected {file.bytes} bytes and {file.sha256}. "
            "Remove it, and it is downloaded"
        )
    by_hand = f". Without the network: get {file.name} ({file.bytes} bytes, SHA-256 {file.sha256}) elsewhere, put it at {whole} and run this again"
    path = whole + ".part"
    is_resumed = _size_of(path) > 0
    while True:
        with _Part(path, file.bytes) as part:
            _receive(file, part, by_hand, retries, stall_timeout)
        found = sha256_of(path)
        if found == file.sha256:
            break
        os.unlink(path)
        if not is_resumed:
            raise Error(f"{file.url} has the SHA-256 {found}; expected {file.sha256}: another file, or damaged on the way{by_hand}")
        print(f"{file.name}: the earlier part does not fit; downloading all of it", file=sys.stderr)
        is_resumed = False
    os.rename(path, whole)
    return whole
