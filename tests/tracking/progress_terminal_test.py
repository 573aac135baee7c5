"""A progress bar in a window whose width changes: one row remains of it, and the lines that were logged stay above it."""

import fcntl
import os
import pathlib
import pty
import re
import select
import struct
import subprocess
import termios
import time
import unittest

RUNNER = pathlib.Path(os.environ["LOCKSTEP_TEST_BIN_DIR"]) / "progress_runner"
CODES = re.compile(r"\x1b\[(\??)(\d*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n])", re.DOTALL)


class Screen:
    """A terminal. rewraps: a new width wraps old lines anew (VTE, kitty, iTerm); otherwise they are cut (xterm)."""

    def __init__(self, columns, rewraps):
        self.columns, self.rewraps, self.wraps = columns, rewraps, True
        self.rows, self.joined, self.row, self.column = [""], [False], 0, 0  # joined: the row goes on in the next

    def feed(self, text):
        at = 0
        for found in CODES.finditer(text):
            assert found.start() == at, f"no code that is known: {text[at : at + 10]!r}"
            at = found.end()
            private, number, code, carriage_return, line_feed, character = found.groups()
            if carriage_return:
                self.column = 0
            elif line_feed:
                self.down()
            elif character:
                self.put(character)
            elif (private, number) == ("?", "7"):
                self.wraps = code == "h"
            elif code in "JK":
                self.rows[self.row] = self.rows[self.row][: self.column]
                if code == "J":
                    del self.rows[self.row + 1 :], self.joined[self.row + 1 :]
                    self.joined[self.row] = False
            else:
                raise AssertionError(found.group())
        assert at == len(text), text[at:]

    def down(self):
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append("")
            self.joined.append(False)

    def put(self, character):
        if self.column == self.columns:
            if self.wraps:
                self.joined[self.row] = True
                self.down()
                self.column = 0
            else:
                self.column -= 1
        row = self.rows[self.row].ljust(self.column)
        self.rows[self.row] = row[: self.column] + character + row[self.column + 1 :]
        self.column += 1

    def resize(self, columns):
        self.columns = columns
        if not self.rewraps:
            self.rows = [row[:columns] for row in self.rows]
            self.column = min(self.column, columns - 1)
            return
        rows, joined, place, begins = [], [], None, True
        for number, (row, goes_on) in enumerate(zip(self.rows, self.joined)):
            if begins:
                line, cursor = "", None
            if number == self.row:
                cursor = len(line) + self.column
            line += row
            begins = not goes_on
            if begins:
                pieces = [line[at : at + columns] for at in range(0, max(len(line), 1), columns)]
                if cursor is not None:
                    place = (len(rows) + min(cursor // columns, len(pieces) - 1), cursor % columns)
                rows += pieces
                joined += [True] * (len(pieces) - 1) + [False]
        self.rows, self.joined, (self.row, self.column) = rows, joined, place


class ProgressTerminalTest(unittest.TestCase):
    def start(self, columns, rewraps=True, **environment):
        self.screen = Screen(columns, rewraps)
        self.terminal, own = pty.openpty()
        self.addCleanup(os.close, self.terminal)
        self.set_window(columns)
        kept = {
            name: value for name, value in os.environ.items() if name not in ("LOCKSTEP_TERMINAL", "LOCKSTEP_TERMINAL_COLUMNS", "LC_ALL", "LC_CTYPE")
        }
        self.process = subprocess.Popen(
            [RUNNER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=own,
            text=True,
            env={**kept, "TERM": "xterm", "LANG": "C.UTF-8", **environment},
        )
        os.close(own)
        self.addCleanup(self.process.wait, 10)
        self.addCleanup(self.process.stdout.close)
        self.addCleanup(self.process.stdin.close)
        self.addCleanup(self.process.kill)

    def set_window(self, columns):
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def command(self, command):
        """What the bar wrote meanwhile."""
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        self.assertEqual(self.process.stdout.readline(), "done\n")
        written = b""
        while select.select([self.terminal], [], [], 0.05 if written else 5)[0]:
            written += os.read(self.terminal, 65536)
        return written.decode().replace("\r\n", "\n\r")

    def do(self, command):
        self.screen.feed(self.command(command))

    def resize(self, columns):
        self.set_window(columns)
        self.screen.resize(columns)

    def bars(self):
        return [row for row in self.screen.rows if re.search(r"train|%|\|", row)]

    def test_no_row_is_left_behind(self):
        for rewraps in (True, False):
            with self.subTest(rewraps=rewraps):
                self.start(100, rewraps)
                logged = 0
                for step, columns in enumerate((100, 60, 25, 120, 40, 99, 10, 100), 1):
                    self.resize(columns)
                    self.do("advance")
                    self.assertEqual(len(self.bars()), 1, self.screen.rows)
                    self.assertLess(len(self.bars()[0]), columns)
                    self.do("log")
                    logged += 1
                    self.do("advance")
                    self.assertEqual(len(self.bars()), 1, self.screen.rows)
                    self.assertIn(f"{2 * step}%", " ".join(self.bars()) if columns > 12 else f"{2 * step}%")
                text = "".join(self.screen.rows)
                self.assertEqual(text.count("[lockstep]"), logged)  # the narrowest window has left so much of each
                for number in range(1, logged + 1 if rewraps else 1):
                    self.assertIn(f"[lockstep] warning: line {number}", text)
                self.do("finish")
                self.assertEqual((len(self.bars()), self.screen.rows[-1], self.screen.column), (1, "", 0))

    def test_a_bar_that_was_drawn_for_a_wider_window_is_cut(self):
        self.start(100)
        self.do("advance")
        late = self.command("advance")
        self.resize(30)
        self.screen.feed(late)
        self.assertEqual(len(self.bars()), 1, self.screen.rows)
        self.do("advance")
        self.assertEqual(len(self.bars()), 1, self.screen.rows)

    def test_a_wider_window_shows_more(self):
        self.start(40)
        self.do("advance")
        narrow = self.bars()[0]
        self.resize(110)
        self.do("advance")
        self.assertRegex(self.bars()[0], r"^train:   2% \|█ +\|  2/100 it  loss 0.4100  \d+:\d\d left  \d+\.\d it/s$")
        self.assertNotIn("left", narrow)

    def test_under_lockrun_its_width_counts(self):
        self.start(100, LOCKSTEP_TERMINAL_COLUMNS="50")
        self.do("advance")
        self.assertLess(len(self.bars()[0]), 50)

    def test_under_lockrun_it_follows_the_window(self):
        terminal, own = pty.openpty()  # lockrun's, which this process itself does not write to
        self.addCleanup(os.close, terminal)
        self.addCleanup(os.close, own)
        for columns in (50, 30, 90):
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            if columns == 50:
                self.start(100, LOCKSTEP_TERMINAL_COLUMNS="50", LOCKSTEP_TERMINAL=os.ttyname(own))
            self.do("advance")
            self.assertLess(len(self.bars()[0]), columns)
            self.assertGreater(len(self.bars()[0]), columns - 12)

    def test_a_terminal_that_cannot_be_opened_keeps_its_first_width(self):
        self.start(100, LOCKSTEP_TERMINAL_COLUMNS="50", LOCKSTEP_TERMINAL="/nonexistent")
        self.do("advance")
        self.assertLess(len(self.bars()[0]), 50)

    def test_a_terminal_without_codes_gets_lines(self):
        self.start(100, TERM="dumb")
        self.process.stdin.write("advance\nfinish\n")
        self.process.stdin.close()
        written, deadline = b"", time.monotonic() + 20
        while b"1/100" not in written and time.monotonic() < deadline:
            if select.select([self.terminal], [], [], 0.1)[0]:
                written += os.read(self.terminal, 65536)
        self.assertNotIn(b"\x1b", written)
        self.assertIn(b"train: 1%  1/100 it", written)


if __name__ == "__main__":
    unittest.main()
