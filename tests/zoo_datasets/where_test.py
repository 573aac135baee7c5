"""`lockstep data` names each program of zoo/datasets, with a command that the program knows."""

import os
import pathlib
import re
import shlex
import subprocess
import unittest

from programs import DATASETS, command

LOCKSTEP = os.path.join(os.environ["LOCKSTEP_BIN_DIR"], "lockstep")


def flags_of(name):
    run = subprocess.run(command(name, "--help"), capture_output=True, text=True, timeout=60, check=True)
    return set(re.findall(r"--[a-z-]+", run.stdout))


class Where(unittest.TestCase):
    def test_every_program_is_named(self):
        run = subprocess.run([LOCKSTEP, "data"], capture_output=True, text=True, timeout=60)
        self.assertEqual(run.returncode, 0, run.stderr)
        named = [shlex.split(line) for line in run.stdout.splitlines() if line.startswith("  python3 ")]
        there = {path.name for path in pathlib.Path(DATASETS).glob("*.py")}
        self.assertEqual({os.path.basename(words[1]) for words in named}, there)
        for _, path, *arguments in named:
            with self.subTest(path):
                self.assertTrue(os.path.samefile(os.path.dirname(path), DATASETS))
                flags = {word for word in arguments if word.startswith("--")}
                self.assertLessEqual(flags, flags_of(os.path.basename(path).removesuffix(".py")))

    def test_errors_of_the_command_line_are_one_line(self):
        for path in pathlib.Path(DATASETS).glob("*.py"):
            with self.subTest(path.name):
                run = subprocess.run(command(path.stem, "--no-such-flag"), capture_output=True, text=True, timeout=60)
                self.assertEqual((run.returncode, run.stdout, run.stderr.count("\n")), (2, "", 1), run.stderr)
                self.assertTrue(run.stderr.startswith(f"{path.stem}: error: "), run.stderr)


if __name__ == "__main__":
    unittest.main()
