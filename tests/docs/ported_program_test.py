"""docs/tutorials/from_libtorch.md: its program, and the one that its diff makes of it, are compiled and trained on files that have MNIST's
format. The second one has the same losses on 1, 2 and 4 ranks, and learns what the first one learns."""

import json
import os
import pathlib
import re
import shlex
import shutil
import struct
import subprocess
import tempfile
import unittest

import numpy

from pages import blocks_of

PAGE = pathlib.Path("docs/tutorials/from_libtorch.md")
BUILD = pathlib.Path(os.environ["LOCKSTEP_BUILD_DIR"])
BIN = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"])
MOST_LINES = 10
# Where the compiler's cache is there, a program that has not changed comes from it, as in the build (LockstepToolchain.cmake).
CACHED = ["ccache"] if shutil.which("ccache") else []
CACHE = {"CCACHE_NOHASHDIR": "1", "CCACHE_SLOPPINESS": "pch_defines,time_macros,include_file_mtime,include_file_ctime"}


def patched(program, diff):
    """`program` with the hunks of `diff`, whose lines must be in it, in order. Also the number of lines that differ."""
    lines, at, changes = program.split("\n"), 0, 0
    for hunk in re.split(r"(?m)^@@.*\n", diff)[1:]:
        marked = [(line[:1] or " ", line[1:]) for line in hunk.rstrip("\n").split("\n")]
        old = [text for mark, text in marked if mark != "+"]
        new = [text for mark, text in marked if mark != "-"]
        while lines[at : at + len(old)] != old:
            at += 1
            if at > len(lines):
                raise AssertionError(f"the program has no such lines, in this order: {old}")
        lines[at : at + len(old)] = new
        at += len(new)
        changes += sum(mark == "+" for mark, _ in marked)
    return "\n".join(lines), changes


def write_digits(folder):
    """Pictures of a bright square whose place is the label, with noise, in the files of MNIST's test set: LibTorch reads no other number
    of pictures than MNIST has, and the training set has six times as many."""
    draw = numpy.random.default_rng(7)
    labels = draw.integers(10, size=10000, dtype=numpy.uint8)
    pictures = draw.integers(90, size=(len(labels), 28, 28), dtype=numpy.uint8)
    for label in range(10):
        top, left = 2 + label // 5 * 14, 1 + label % 5 * 5
        pictures[labels == label, top : top + 8, left : left + 5] = 150
    folder.mkdir()
    (folder / "t10k-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, len(labels), 28, 28) + pictures.tobytes())
    (folder / "t10k-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, len(labels)) + labels.tobytes())


def compile_program(source, to):
    """With the flags and libraries of a recipe. In the folder of the source: its name is another one in each run."""
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    recipe = next(one for one in commands if "/bert_by_hand.dir/" in one["output" if "output" in one else "command"])
    words = [word for word in shlex.split(recipe["command"]) if "ccache" not in word]
    source_at = words.index("-c") + 1
    del words[source_at - 1 : source_at + 1]
    object_at = words.index("-o")
    del words[object_at : object_at + 2]
    done = subprocess.run(
        [*CACHED, *words, "-O1", "-w", "-c", source.name, "-o", f"{to.name}.o"],
        cwd=source.parent,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **CACHE},
    )
    if done.returncode != 0:
        raise AssertionError(done.stderr[-3000:])
    link = (
        subprocess.run(["ninja", "-C", str(BUILD), "-t", "commands", "-s", "bin/bert_by_hand"], capture_output=True, text=True, timeout=60)
        .stdout.strip()
        .split("\n")[-1]
    )
    link = shlex.split(re.sub(r"^: && | && :$", "", link))
    link[link.index("-o") + 1] = str(to)
    link = [word for word in link if not (word.endswith(".o") and "bert_by_hand.dir" in word)]
    link.insert(1, str(to) + ".o")
    done = subprocess.run(link, cwd=BUILD, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise AssertionError(done.stderr[-3000:])


class PortedProgramTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        write_digits(cls.folder / "mnist")
        blocks = blocks_of(PAGE)
        program = next(block.text for block in blocks if block.hint == "program")
        ported, cls.changes = patched(program, next(block.text for block in blocks if block.language == "diff"))
        for name, text in (("single", program), ("ported", ported)):
            read = 'argv[1] : "mnist"'
            assert text.count(read) == 1
            (cls.folder / f"{name}.cpp").write_text(text.replace(read, read + ", torch::data::datasets::MNIST::Mode::kTest"))
            compile_program(cls.folder / f"{name}.cpp", cls.folder / name)

    def losses(self, *command):
        done = subprocess.run(
            list(map(str, command)), cwd=self.folder, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        found = re.findall(r"^epoch \d: loss (\S+)$", done.stdout, re.M)
        self.assertEqual(len(found), 3, done.stdout)
        self.assertTrue((self.folder / "net.pt").stat().st_size > 0)
        return [float(loss) for loss in found]

    def test_few_lines_change(self):
        self.assertLessEqual(self.changes, MOST_LINES)

    def test_losses_do_not_depend_on_the_number_of_ranks(self):
        single = self.losses("./single", "mnist")
        alone = self.losses("./ported", "mnist")
        self.assertLess(single[2], 0.1)
        self.assertLess(alone[2], 0.1)
        for ranks in (2, 4):
            several = self.losses(BIN / "lockrun", "--standalone", "--nproc-per-node", ranks, "--prefix", "off", "./ported", "mnist")
            for ours, theirs in zip(several, alone):
                self.assertAlmostEqual(ours, theirs, delta=1e-4 * max(1, theirs))


if __name__ == "__main__":
    unittest.main()
