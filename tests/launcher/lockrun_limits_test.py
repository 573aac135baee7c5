"""Limits of the machine: open files, processes, memory, and a sandbox without memfd_create."""

import os
import pathlib
import shutil
import subprocess
import sys
import unittest

from lockrun_support import LOCKRUN, TIMEOUT, LockrunTest

ALL_REDUCE_RANK = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "all_reduce_rank")
MEMORY_GROUPS = (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max"))


class LimitsTest(LockrunTest):
    def run_by(self, *command):
        return subprocess.run(list(map(str, command)), env=self.environment, cwd=self.directory, text=True, capture_output=True, timeout=TIMEOUT)

    def test_the_limit_of_open_files_is_raised(self):
        # A rank takes three pipes and a pidfd.
        result = self.run_by("prlimit", "--nofile=64:4096", LOCKRUN, "--nproc-per-node", 32, "true")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_too_many_processes_are_named_with_the_limit(self):
        if os.geteuid() != 0:  # root has no such limit, and nobody else may become another user
            return
        for path in self.directory, self.scratch:
            path.chmod(0o777)
        pathlib.Path(self.directory).parent.chmod(0o755)
        lockrun = shutil.copy(LOCKRUN, self.directory)  # root's checkout may be root's alone
        result = self.run_by("setpriv", "--reuid", 65533, "--clear-groups", "prlimit", "--nproc=12", lockrun, "--nproc-per-node", 16, "sleep", 1)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(
            result.stderr,
            r"rank \d+ could not be started: cannot make a process \(fork\): Resource temporarily unavailable; "
            r"user 65533 may have 12 processes and threads \(ulimit -u\)",
        )

    def test_out_of_memory_is_told_from_kill(self):
        code, _, err = self.run_lockrun("sh", "-c", "kill -9 $$")
        self.assertEqual(code, 137)
        self.assertNotIn("out of memory", err)
        root, limit = next(
            (
                each
                for each in MEMORY_GROUPS
                if os.access(each[0], os.W_OK)
                and (each[1] != "memory.max" or "memory" in pathlib.Path(each[0], "cgroup.subtree_control").read_text())
            ),
            (None, None),
        )
        if root is None or os.geteuid() != 0:  # oom_watch_test has recorded trees
            return
        group = pathlib.Path(root, f"lockrun_limits_test.{os.getpid()}")
        group.mkdir()
        try:
            (group / limit).write_text("100M")
            result = self.run_by(
                "sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", LOCKRUN, sys.executable, "-c", "print(len(bytearray(400 << 20)))"
            )
        finally:
            group.rmdir()
        self.assertEqual(result.returncode, 137, result.stderr)
        self.assertRegex(
            result.stderr,
            r"was killed by SIGKILL \(out of memory: the kernel's OOM killer chose it; its control group may have "
            rf"100 MiB \({group}/{limit}\)\)",
        )

    def test_without_memfd_create_there_is_a_file_without_a_name(self):
        (self.directory / "release").touch()
        before = set(os.listdir("/dev/shm"))
        self.environment["LOCKSTEP_NO_MEMFD"] = "1"
        code, out, err = self.run_lockrun("--nproc-per-node", 3, "--prefix", "off", ALL_REDUCE_RANK)
        self.assertEqual(code, 0, err)
        self.assertEqual(out.count("sum 6"), 3)
        self.assertEqual(err.count("memfd_create is forbidden here, so the ranks share memory by a file without a name in /dev/shm"), 1)
        self.assertEqual([name for name in set(os.listdir("/dev/shm")) - before if name.startswith("lockstep")], [])


if __name__ == "__main__":
    unittest.main()
