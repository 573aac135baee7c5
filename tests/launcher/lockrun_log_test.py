"""Log files, filters, standard input, and what lockrun prints about itself."""

import os
import subprocess
import sys
import unittest

from lockrun_support import LOCKRUN, TIMEOUT, LockrunTest
from namespaces import in_namespaces

SCRIPT = "echo out $RANK; echo err $RANK >&2"


class LogTest(LockrunTest):
    def logs(self):
        (run,) = (self.directory / "logs").iterdir()
        return run

    def run_with_logs(self, *flags):
        code, out, err = self.shell(2, SCRIPT, "--log-dir", "logs", *flags)
        self.assertEqual(code, 0, err)
        self.assertIn(f"lockrun: logs are in {self.directory}/logs/", err)
        return sorted(out.splitlines()), sorted(line for line in err.splitlines() if not line.startswith("lockrun"))

    def test_redirected_streams_leave_the_console(self):
        out, err = self.run_with_logs("--redirects", "1", "--rdzv-id", "run/7")
        self.assertEqual((out, err), ([], ["[rank 0]: err 0", "[rank 1]: err 1"]))
        self.assertTrue(self.logs().name.startswith("run_7_"))
        for rank in range(2):
            self.assertEqual((self.logs() / f"attempt_0/{rank}/stdout.log").read_text(), f"out {rank}\n")
            self.assertFalse((self.logs() / f"attempt_0/{rank}/stderr.log").exists())

    def test_teed_streams_are_in_both(self):
        out, err = self.run_with_logs("--tee", "0:3,1:1", "-r", "3")
        self.assertEqual((out, err), (["[rank 0]: out 0", "[rank 1]: out 1"], ["[rank 0]: err 0"]))
        self.assertEqual((self.logs() / "attempt_0/1/stderr.log").read_text(), "err 1\n")
        self.assertEqual((self.logs() / "attempt_0/0/stdout.log").read_text(), "out 0\n")

    def test_filters(self):
        out, err = self.run_with_logs("--local-ranks-filter", "1", "--duplicate-stdout-filters", "0,nothing", "--duplicate-stderr-filters", "err")
        self.assertEqual((out, err), (["[rank 1]: out 1"], ["[rank 1]: err 1"]))
        self.assertEqual((self.logs() / "attempt_0/filtered_stdout.log").read_text(), "[rank 0]: out 0\n")
        lines = (self.logs() / "attempt_0/filtered_stderr.log").read_text().splitlines()
        self.assertEqual(sorted(lines), ["[rank 0]: err 0", "[rank 1]: err 1"])

    def test_every_attempt_has_its_own_logs(self):
        code, _, err = self.shell(
            1,
            'echo $TORCHELASTIC_RESTART_COUNT; echo \'{"message": "why"}\' > $TORCHELASTIC_ERROR_FILE; exit 3',
            "--log-dir",
            "logs",
            "-t",
            "3",
            "--max-restarts",
            "1",
        )
        self.assertEqual(code, 3, err)
        for attempt in range(2):
            self.assertEqual((self.logs() / f"attempt_{attempt}/0/stdout.log").read_text(), f"{attempt}\n")
            self.assertTrue((self.logs() / f"attempt_{attempt}/0/error.json").exists())

    def test_without_a_directory_one_is_made(self):
        code, _, err = self.shell(1, "echo a", "-r", "3")
        self.assertEqual(code, 0, err)
        (made,) = self.scratch.iterdir()
        self.assertEqual([path.read_text() for path in made.glob("*/attempt_0/0/stdout.log")], ["a\n"])
        for path in sorted(made.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        made.rmdir()

    def test_a_full_log_disk_does_not_end_the_job(self):
        # A file system of 64 KiB for the logs, in a mount namespace of its own.
        (self.directory / "logs").mkdir()
        command = f"mount -t tmpfs -o size=64k tmpfs logs && exec {LOCKRUN} --nproc-per-node 2 --log-dir logs -t 1 sh -c 'yes | head -n 100000'"
        result = subprocess.run(
            [*in_namespaces("-m"), "sh", "-c", command], cwd=self.directory, env=self.environment, capture_output=True, text=True, timeout=TIMEOUT
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.count("]: y\n"), 200000)
        self.assertEqual(result.stderr.count("stdout.log cannot be written: No space left on device"), 2, result.stderr)

    def test_a_directory_that_cannot_be_made_is_named(self):
        (self.directory / "file").write_text("")
        code, _, err = self.shell(1, "true", "--log-dir", "file/logs")
        self.assertEqual(
            (code, err), (1, f"lockrun: error: --log-dir file/logs: cannot create the directory {self.directory}/file/logs: Not a directory\n")
        )


class StdinTest(LockrunTest):
    def lines_of(self, *flags):
        process = self.start("--nproc-per-node", 2, *flags, "sh", "-c", "echo got $(cat)", stdin=subprocess.PIPE)
        out, err = process.communicate("hello", timeout=TIMEOUT)
        self.assertEqual(process.returncode, 0, err)
        return sorted(out.splitlines())

    def test_owners(self):
        self.assertEqual(self.lines_of("--stdin", "1"), ["[rank 0]: got", "[rank 1]: got hello"])
        self.assertEqual(self.lines_of("--stdin", "none"), ["[rank 0]: got", "[rank 1]: got"])
        self.assertEqual(self.lines_of("--stdin", "all"), ["[rank 0]: got hello", "[rank 1]: got hello"])

    def test_copies_of_much_input_reach_all(self):
        process = self.start(
            "--nproc-per-node", 2, "--stdin", "all", "sh", "-c", "[ $RANK = 0 ] && head -c 10 > /dev/null; wc -c; true", stdin=subprocess.PIPE
        )
        out, err = process.communicate("x" * 5_000_000, timeout=TIMEOUT)
        self.assertEqual(process.returncode, 0, err)
        self.assertIn("[rank 1]: 5000000", out)


class ProgramTest(LockrunTest):
    def setUp(self):
        super().setUp()
        self.environment["PYTHON_EXEC"] = sys.executable
        (self.directory / "script.py").write_text("import sys; print(__name__, sys.argv, flush=True)")

    def test_older_forms(self):
        self.assertEqual(self.run_lockrun("--run-path", "--no-python", "script.py", "-x")[:2], (0, "__main__ ['script.py', '-x']\n"))
        self.assertEqual(self.run_lockrun("--use-env", "script.py", "-x")[:2], (0, "__main__ ['script.py', '-x']\n"))
        code, out, err = self.run_lockrun("-np", "2", "--local_rank", "--prefix", "off", "script.py", "-x")
        self.assertEqual((code, sorted(out.splitlines())), (0, [f"__main__ ['script.py', '--local-rank={rank}', '-x']" for rank in range(2)]), err)
        self.assertEqual(self.run_lockrun("-np", "2", "-H", "localhost:2", "--prefix", "off", "sh", "-c", "echo $WORLD_SIZE")[:2], (0, "2\n2\n"))
        (self.directory / "hosts").write_text("127.0.0.1 slots=3\n")
        self.assertEqual(self.run_lockrun("--hostfile", "hosts", "--prefix", "off", "true")[0], 0)

    def test_no_python(self):
        (self.directory / "run.py").write_text("#!/bin/sh\necho shell\n")
        (self.directory / "run.py").chmod(0o755)
        self.assertEqual(self.run_lockrun("--no-python", "./run.py")[:2], (0, "shell\n"))

    def test_virtual_local_ranks(self):
        code, out, err = self.shell(2, "echo $LOCAL_RANK $CUDA_VISIBLE_DEVICES", "--virtual-local-rank")
        self.assertEqual((code, sorted(out.splitlines())), (0, ["[rank 0]: 0 0", "[rank 1]: 0 1"]), err)

    def test_numa_binding(self):
        code, out, err = self.shell(1, "grep Cpus_allowed_list /proc/self/status", "--numa-binding", "node")
        self.assertEqual(code, 0, err)
        for how in ("socket", "core-complex"):
            self.assertEqual(self.shell(2, "true", "--numa-binding", how)[0], 0)
        if os.cpu_count() > 1:
            code, out, err = self.shell(2, "grep Cpus_allowed_list /proc/self/status", "--numa-binding", "exclusive")
            self.assertEqual(len({line.split()[-1] for line in out.splitlines()}), 2, out)

    def test_torchruns_exit_code(self):
        self.assertEqual(self.shell(1, "exit 7", "--torchrun-exit-code")[0], 1)
        self.assertEqual(self.shell(1, "exit 0", "--torchrun-exit-code")[0], 0)

    def test_dry_run_starts_nothing(self):
        code, out, err = self.shell(2, "touch started", "--dry-run", "--log-dir", "logs", "-t", "0:3")
        self.assertEqual((code, err), (0, ""))
        self.assertIn("sh -c 'touch started'", out)
        self.assertIn("  rank 0, stdout to the console and a log, stderr to the console and a log, standard input\n  rank 1\n", out)
        self.assertFalse((self.directory / "started").exists() or (self.directory / "logs").exists())
        code, out, _ = self.run_lockrun("--dry-run", "--nnodes", "3", "--node-rank", "1", "--master-addr", "far", "script.py")
        self.assertEqual(code, 0)
        self.assertRegex(out, r"machines:   3, which meet at far:29500; this one \(.*\) is number 1\n")

    def test_completions_load_and_complete(self):
        (self.directory / "bash").write_text(self.run_lockrun("--print", "bash")[1])
        script = (
            "source ./bash; COMP_WORDS=(lockrun --nproc); COMP_CWORD=1; _lockrun; echo ${COMPREPLY[@]};"
            "COMP_WORDS=(lockrun --prefix c); COMP_CWORD=2; _lockrun; echo ${COMPREPLY[@]}"
        )
        out = subprocess.run(["bash", "-c", script], cwd=self.directory, capture_output=True, text=True, check=True).stdout
        self.assertEqual(out.splitlines(), ["--nproc-per-node", "color"])
        self.assertTrue(self.run_lockrun("--print", "zsh")[1].startswith("#compdef lockrun\n"))
        self.assertTrue(self.run_lockrun("--print", "man")[1].startswith(".TH LOCKRUN 1"))


if __name__ == "__main__":
    unittest.main()
