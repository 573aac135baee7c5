"""How far a download is: a bar on a terminal, and otherwise a line from time to time."""

import fcntl
import os
import struct
import sys
import termios
import time

_REDRAW_SECONDS = 0.1
_FIRST_LINE_SECONDS, _LONGEST_SECONDS = 5, 600
_SHORTEST_BAR, _LONGEST_BAR = 8, 50
_EIGHTHS = " ▏▎▍▌▋▊▉"


def format_bytes(count):
    """1234567 as "1.23 MB"."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while count >= 1000 and len(units) > 1:
        count /= 1000
        units.pop(0)
    return f"{count:.0f} B" if units[0] == "B" else f"{count:.3g} {units[0]}"


def format_duration(seconds):
    """ "0:07", "12:34" or "1:02:03"."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _columns():
    """The width of the terminal behind standard error, or of lockrun's, whose workers write into pipes; 0: none that can show a bar."""
    given = os.environ.get("LOCKSTEP_TERMINAL_COLUMNS", "")
    if given.isdecimal():
        return int(given)
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return 0
    try:
        return struct.unpack("HHHH", fcntl.ioctl(sys.stderr.fileno(), termios.TIOCGWINSZ, bytes(8)))[1] or 80
    except OSError:
        return 80


def _draws_unicode():
    locale = next((os.environ[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if name in os.environ), "")
    return "UTF8" in locale.upper().replace("-", "")


class ProgressBar:
    """`with ProgressBar(label, total, initial) as bar: ...; bar.update(done)`. `initial`: what an earlier run had done, no part of the rate."""

    def __init__(self, label, total, initial):
        self._label, self._total, self.initial = label, total, initial
        self._done, self._start = initial, time.monotonic()
        self._is_live, self._interval = _columns() > 0, _FIRST_LINE_SECONDS
        self._next = self._start + (0 if self._is_live else self._interval)
        self._is_drawn = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._clear()

    def update(self, done):
        self._done = done
        now = time.monotonic()
        if now < self._next:
            return
        if self._is_live:
            self._draw()
            self._next = now + _REDRAW_SECONDS
        else:
            self._write(f"{self._label}: {100 * done / self._total:.0f}%  {'  '.join(self._fields())}\n")
            self._interval = min(2 * self._interval, _LONGEST_SECONDS)
            self._next = now + self._interval

    def say(self, line):
        """Writes a line that stays, above the bar."""
        was_drawn = self._is_drawn
        self._clear()
        self._write(line + "\n")
        if was_drawn:
            self._draw()

    def _write(self, text):
        sys.stderr.write(text)
        sys.stderr.flush()

    def _clear(self):
        if self._is_drawn:
            self._write("\r\x1b[J")
        self._is_drawn = False

    def _fields(self):
        seconds = time.monotonic() - self._start
        rate = max(self._done - self.initial, 0) / seconds if seconds > 0 else 0
        fields = [f"{format_bytes(self._done)}/{format_bytes(self._total)}"]
        if self._done < self._total and rate > 0:
            fields.append(format_duration((self._total - self._done) / rate) + " left")
        else:
            fields.append(format_duration(seconds))
        return fields + [format_bytes(rate) + "/s"] * (rate > 0)

    def _draw(self):
        share, fields = min(self._done / self._total, 1), self._fields()
        head = f"{self._label}: {int(100 * share):3}%"
        columns = _columns() - 1
        while len(fields) > 1 and len(head) + sum(len(field) + 2 for field in fields) + 3 + _SHORTEST_BAR > columns:
            fields.pop()  # in a narrow window the last ones go first, then the bar
        room = columns - len(head) - sum(len(field) + 2 for field in fields) - 3
        bar = f" |{_bar(share, min(room, _LONGEST_BAR))}|" if room >= _SHORTEST_BAR else ""
        # Without wrapping at the edge; the cursor rests at the beginning, so that a change of the window's width leaves nothing behind.
        self._write("\r\x1b[?7l" + "  ".join([head + bar, *fields])[: max(columns, 0)] + "\x1b[J\x1b[?7h\r")
        self._is_drawn = True


def _bar(share, width):
    if not _draws_unicode():
        return ("#" * int(share * width)).ljust(width, ".")
    eighths = int(share * width * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8] * (eighths % 8 > 0)).ljust(width)
