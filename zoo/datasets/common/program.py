"""What the programs of this folder share: their command line, errors of one line, signals, folders and files."""

import argparse
import codecs
import contextlib
import ctypes
import errno
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time

_LIBC = ctypes.CDLL(None, use_errno=True)


class Error(Exception):
    """Something is wrong with a file, the network or a program: the exit code is 1."""


class UsageError(Error):
    """An argument is wrong: the exit code is 2."""


class Stopped(Exception):
    """A signal has asked the program to end: the exit code is 128 + its number."""

    def __init__(self, number):
        super().__init__(number)
        self.number = number


class Parser(argparse.ArgumentParser):
    """With errors of one line."""

    def __init__(self, description, examples=()):
        lines = [f"  {what}:\n    {command}" for what, command in examples]
        super().__init__(
            description=description, formatter_class=_Help, allow_abbrev=False, epilog="\n".join(["examples:", *lines]) if lines else None
        )

    def error(self, message):
        raise UsageError(f"{message} (--help lists the options)")


def whole_number(least):
    """For an argument's type=."""

    def parse(text):
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"'{text}' is no whole number of {least} or more")
        return int(text)

    return parse


class _Help(argparse.RawDescriptionHelpFormatter):
    """Wraps the description, keeps the lines of the examples, and names the default of each option that has one."""

    def _fill_text(self, text, width, indent):
        if text.startswith("examples:"):
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)

    def _get_help_string(self, action):
        has_default = action.option_strings and action.default not in (None, False, "", argparse.SUPPRESS)
        return action.help + (" (default: %(default)s)" if has_default else "")


def run_main(main):
    """Runs main() and ends the process. An error is one line on standard error."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends the process, without a stack trace
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="surrogateescape")  # a file's name may be any bytes
    try:
        main()
        sys.stdout.flush()
    except Stopped as stopped:
        sys.exit(128 + stopped.number)
    except Error as error:
        name = os.path.basename(sys.argv[0]).removesuffix(".py")
        print(f"{name}: error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except BrokenPipeError:  # of standard output, as in `fetch.py --list | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


_stop_signal = 0


def _note(number, _):
    global _stop_signal
    if number == signal.SIGINT and _stop_signal:  # the second Ctrl-C does not wait
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    _stop_signal = _stop_signal or number


@contextlib.contextmanager
def stop_signals_noted():
    """Meanwhile a signal that asks the process to end is noted for end_if_stopped(), which leaves time to clean up."""
    caught = [number for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT) if signal.getsignal(number) is signal.SIG_DFL]
    for number in caught:
        signal.signal(number, _note)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, signal.SIG_DFL)


def end_if_stopped():
    """Raises Stopped if a signal has been noted."""
    if _stop_signal:
        raise Stopped(_stop_signal)


@contextlib.contextmanager
def temporary_folder(parent=None):
    """A new folder, removed at the end with all that is in it, also after Ctrl-C or SIGTERM. `parent`: the folder to make it in."""
    with stop_signals_noted():
        try:
            path = tempfile.mkdtemp(prefix="lockstep-data.", dir=parent)
        except OSError as error:
            raise Error(f"cannot make a folder in {parent or tempfile.gettempdir()}: {error.strerror}") from None
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def start_program(words, folder, stdout):
    """Starts a program of the system in `folder`, in a process group of its own; it ends if this process is killed."""
    end_if_stopped()
    try:
        return subprocess.Popen(
            words, cwd=folder, stdout=stdout, process_group=0, preexec_fn=lambda: _LIBC.prctl(1, signal.SIGTERM)
        )  # PR_SET_PDEATHSIG
    except OSError as error:
        raise Error(f"cannot start {words[0]}: {error.strerror}") from None


def end_program(process):
    """Ends a program with all that it has started, and waits for at most two seconds until they are gone."""
    for _ in range(100):
        try:
            os.killpg(process.pid, signal.SIGTERM)
        except ProcessLookupError:
            break
        process.poll()
        time.sleep(0.02)
    process.poll()


def run_program(words, folder, advice):
    """Runs a program of the system, with its output on our standard error. Raises Error with `advice` if it fails."""
    process = start_program(words, folder, sys.stderr.fileno())
    while process.poll() is None and not _stop_signal:
        time.sleep(0.02)
    if _stop_signal:
        end_program(process)
    end_if_stopped()
    if process.returncode != 0:
        raise Error(f"{' '.join(words)} failed; {advice}")


def make_folder(path):
    """Makes a folder with those above it. One that is there already is no error."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        reason = os.strerror(errno.ENOTDIR) if error.errno == errno.EEXIST else error.strerror
        raise Error(f"cannot create {path}: {reason}") from None


def read_file(path):
    """The bytes of a file."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except IsADirectoryError:
        raise Error(f"cannot read {path}: it is a directory") from None
    except OSError as error:
        raise Error(f"cannot open {path}: {error.strerror}") from None


def read_text_file(path):
    """The bytes of a file without the byte order mark that some programs write at its start."""
    return read_file(path).removeprefix(codecs.BOM_UTF8)


def write_file(path, content):
    """Replaces a file: a crash leaves the old one or the new one. Raises Error, and then the file is as it was."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(4)}")
    try:
        try:
            with open(temporary, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        descriptor = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise Error(f"cannot write {path}: {error.strerror}") from None


def sync_files_below(folder):
    """Returns when all that was written to the file system of `folder` is on disk."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise Error(f"cannot write {folder}: {error.strerror}") from None
    failed = _LIBC.syncfs(descriptor) != 0
    number = ctypes.get_errno()
    os.close(descriptor)
    if failed:
        raise Error(f"cannot write {folder}: {os.strerror(number)}")
