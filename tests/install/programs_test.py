"""Installed programs run where neither the checkout nor its .venv is, with LibTorch and Arrow from another place."""

import os
import re
import subprocess
import sys
import unittest

from installed import HERE, SOURCE, InstalledTest, other_libtorch
from namespaces import in_namespaces

# In a namespace of its own: .venv at another place, an empty folder where the checkout was.
MOVED_AWAY = 'mount --bind "$1" "$2" && mount -t tmpfs none "$3" && shift 3 && exec "$@"'


class InstalledProgramsTest(InstalledTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.venv = cls.work / "environment"
        cls.venv.mkdir()
        cls.torch = next(cls.path_in_venv(path) for path in sys.path if os.path.isdir(os.path.join(path, "torch"))) / "torch"
        (cls.work / "script.py").write_text((HERE.parent / "launcher/allreduce_script.py").read_text())

    @classmethod
    def path_in_venv(cls, path):
        return cls.venv / os.path.relpath(path, sys.prefix)

    def start(self, *command, **environment):
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(self.work), "TMPDIR": str(self.work), **environment}
        return subprocess.run(
            [*in_namespaces("-m"), "sh", "-c", MOVED_AWAY, "sh", sys.prefix, self.venv, SOURCE, *map(str, command)],
            cwd=self.work,
            env={name: str(value) for name, value in environment.items()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def run_well(self, program, *arguments, **environment):
        result = self.start(self.prefix / "bin" / program, *arguments, VIRTUAL_ENV=self.venv, **environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("libtorch", result.stderr)
        return result.stdout

    def test_every_program(self):
        two = ("--standalone", "--nproc-per-node", 2, "--prefix", "off")
        binaries = self.prefix / "bin"
        jobs = {
            "lockrun": (*two, "true"),
            "lockstep": ("--help",),
            "bert_by_hand": ("--help",),
            "bert_classify": ("--help",),
            "bert_ner": ("--help",),
            "bert_nli": ("--help",),
            "bert_qa": ("--help",),
            "bert_recovery": ("--help",),
            "resnet_ddp": ("--help",),
            "translate": ("--help",),
            "toy_ddp": (),
            "messages": (2,),
            "lockstep-bench-rank": None,
            "lockstep-bench-ddp-rank": None,
            "lockstep-bench-ddp-peer.py": None,
            "lockstep-bench-optimizer-rank": None,
            "lockstep-bench-mpi": None,
            "lockstep-checkpoint-convert": None,
            "lockstep-store": None,
            "lockstep-tokenize": None,
        }
        for program in sorted(path.name for path in binaries.iterdir()):
            with self.subTest(program):
                self.assertIn(program, jobs, "say here how this program is tried")
                if jobs[program] is not None:
                    self.run_well(program, *jobs[program])
        with self.subTest("ranks of C++"):
            self.run_well("lockrun", *two, binaries / "toy_ddp")
        with self.subTest("ranks of Python, which meet in lockstep-store"):
            out = self.run_well("lockrun", *two, "script.py", PYTHON_EXEC=self.venv / "bin/python3", OMP_NUM_THREADS=1)
            self.assertEqual(sorted(out.splitlines()), ["rank 0 of 2 sum 3.0 attempt 0", "rank 1 of 2 sum 3.0 attempt 0"])
        with self.subTest("programs that lockstep starts"):
            self.run_well("lockstep", "bench", "all-reduce", "--nproc-per-node", 2, "--sizes", "64")

    def test_env_names_the_libtorch_that_programs_find(self):
        out = self.run_well("lockstep", "env")
        self.assertRegex(out, r"(?m)^libtorch headers +2\.13\.\d+$")
        self.assertRegex(out, rf"(?m)^libtorch at run time +2\.13\.\d+, {re.escape(str(self.venv))}/.*/torch/lib/libtorch_cpu\.so$")
        result = self.start(self.prefix / "bin/lockstep", "env")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"(?m)^libtorch at run time +LibTorch 2\.13 was not found \(.*pip install torch==2\.13")

    def test_data_sets_are_made_without_the_checkout(self):
        """By the commands that `lockstep data` prints, with the system's Python."""
        out = self.run_well("lockstep", "data")
        folder = self.prefix / "share/lockstep/datasets"
        self.assertIn(f"  {folder}\n", out)
        for line in out.splitlines():
            if line.startswith("  python3 "):
                with self.subTest(line):
                    result = self.start("python3", line.split()[1], "--help")
                    self.assertEqual(result.returncode, 0, result.stderr)
        vader = self.work / "vader"
        vader.mkdir()
        lines = [f"{i}_1\t{(-1) ** i * 2}\tsentence {i}\n" for i in range(100)]
        (vader / "movieReviewSnippets_GroundTruth.txt").write_text("".join(lines))
        result = self.start("python3", folder / "sentiment.py", "--input", vader, "--output-dir", self.work / "sentiment")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(sorted(path.name for path in (self.work / "sentiment").iterdir()), ["test.csv", "train.csv", "validation.csv"])
        result = self.start("python3", folder / "fetch.py", "--list")
        self.assertEqual((result.returncode, result.stdout.split()[0]), (0, "cifar10"), result.stderr)

    def outcome(self, **environment):
        """The last line of lockstep-store without arguments, which it refuses as soon as it has LibTorch."""
        result = self.start(self.prefix / "bin/lockstep-store", **environment)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        return result.returncode, result.stderr.removeprefix("lockstep-store: error: ")

    RUNS = (2, "expected the number of a listening socket; this program is started by lockrun\n")

    def test_each_way_to_name_libtorch(self):
        for variable, value in (
            ("VIRTUAL_ENV", self.venv),
            ("PATH", f"{self.venv}/bin:/usr/bin:/bin"),
            ("LOCKSTEP_TORCH_DIR", self.torch),
            ("LOCKSTEP_TORCH_DIR", self.torch / "lib"),
            ("LD_LIBRARY_PATH", self.torch / "lib"),
            ("CMAKE_PREFIX_PATH", f"/nowhere:{self.torch}"),
            ("CMAKE_PREFIX_PATH", self.torch / "share/cmake"),
        ):
            with self.subTest(variable):
                self.assertEqual(self.outcome(**{variable: value}), self.RUNS)

    def test_a_link_to_a_program(self):
        (self.work / "link").symlink_to(self.prefix / "bin/lockstep-store")
        result = self.start(self.work / "link", VIRTUAL_ENV=self.venv)
        self.assertEqual(result.returncode, 2, result.stderr)

    def test_absence_is_one_clear_line(self):
        code, error = self.outcome()
        self.assertEqual(code, 1)
        self.assertRegex(
            error,
            r"^LibTorch 2\.13 was not found \(libtorch_(cpu|cuda)\.so\): run `pip install torch==2\.13\.\*` in a Python "
            r"environment and activate it, or set LOCKSTEP_TORCH_DIR to the directory of LibTorch\b",
        )
        code, error = self.outcome(LOCKSTEP_TORCH_DIR="/nowhere", VIRTUAL_ENV=self.venv)
        self.assertEqual(code, 1)
        self.assertRegex(error, r"^LOCKSTEP_TORCH_DIR=/nowhere holds no LibTorch 2\.13 \(libtorch_(cpu|cuda)\.so\)\n$")
        result = self.start(self.prefix / "bin/bert_classify", "--help", LOCKSTEP_TORCH_DIR=self.torch)
        self.assertEqual((result.returncode, result.stderr.count("\n")), (1, 1), result.stderr)
        self.assertRegex(result.stderr, r"^bert_classify: error: Arrow \d+\.\d+ was not found \(libarrow\.so\.\d+\): ")

    def test_another_version_is_refused(self):
        other = other_libtorch(self.work / "other")
        code, error = self.outcome(LD_LIBRARY_PATH=other / "lib")
        self.assertEqual(code, 1)
        self.assertIn(f"; not used: LibTorch 2.9.0 in {other}/lib. To use another LibTorch, build Lockstep with it: ", error)
        self.assertEqual(self.outcome(LD_LIBRARY_PATH=other / "lib", VIRTUAL_ENV=self.venv), self.RUNS)


if __name__ == "__main__":
    unittest.main()
