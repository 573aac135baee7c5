"""A rank killed in the middle of training: lockrun names it and exits non-zero, and nothing stays behind."""

import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
import uuid

import tiny


def processes_with(marker):
    """{pid: environment} of the processes that carry `marker` in their environment."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
            alive = (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            continue
        if marker.encode() in environment and alive:
            found[int(entry.name)] = environment
    return found


class KilledRankTest(unittest.TestCase):
    def test_killed_rank(self):
        directory = pathlib.Path(tempfile.mkdtemp(prefix="lockstep_killed_"))
        self.addCleanup(shutil.rmtree, directory)
        model = tiny.make_model(directory / "model")
        train = tiny.write_csv(directory / "train.csv", tiny.make_rows(64, seed=1))
        segments = set(os.listdir("/dev/shm"))
        marker = f"LOCKSTEP_TEST_MARKER={uuid.uuid4()}"
        line = tiny.command(
            {"--model-name-or-path": model, "--train-file": train, "--output-dir": directory / "out", "--max-steps": 1000000, "--logging-steps": 10},
            ranks=2,
        )
        job = subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, marker.split("=")[0]: marker.split("=")[1]}
        )
        self.addCleanup(lambda: job.poll() is None and job.kill())
        log = directory / "out/log.jsonl"
        deadline = time.monotonic() + 60
        while not (log.exists() and log.stat().st_size > 0):  # training is under way
            self.assertLess(time.monotonic(), deadline)
            self.assertIsNone(job.poll())
            time.sleep(0.05)
        victim = [pid for pid, environment in processes_with(marker).items() if b"RANK=1" in environment]
        self.assertEqual(len(victim), 1)
        os.kill(victim[0], signal.SIGKILL)
        output, _ = job.communicate(timeout=60)
        self.assertNotEqual(job.returncode, 0)
        self.assertRegex(output, r"rank 1 .*SIGKILL")
        deadline = time.monotonic() + 10
        while processes_with(marker) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(processes_with(marker), {})
        self.assertEqual(set(os.listdir("/dev/shm")) - segments, set())
        self.assertFalse((directory / "out/model.safetensors").exists())


if __name__ == "__main__":
    unittest.main()
