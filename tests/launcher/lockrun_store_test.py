"""Unmodified scripts written for torchrun meet through MASTER_PORT."""

import os
import pathlib
import signal
import socket
import sys
import time
import unittest

from lockrun_support import TIMEOUT, LockrunTest, wait_until
from ports import free_port

SCRIPT = pathlib.Path(__file__).with_name("allreduce_script.py")


class StoreTest(LockrunTest):
    def setUp(self):
        super().setUp()
        self.environment["PYTHON_EXEC"] = sys.executable

    def test_torchruns_script_runs(self):
        code, out, err = self.run_lockrun("--standalone", "--nproc-per-node", 2, "--prefix", "off", SCRIPT)
        self.assertEqual(code, 0, err)
        self.assertEqual(sorted(out.splitlines()), ["rank 0 of 2 sum 3.0 attempt 0", "rank 1 of 2 sum 3.0 attempt 0"])

    def test_a_restart_meets_afresh(self):
        self.environment["FAIL_ATTEMPT"] = "0"
        code, out, err = self.run_lockrun("--nproc-per-node", 2, "--max-restarts", 1, "--prefix", "off", SCRIPT)
        self.assertEqual(code, 0, err)
        self.assertEqual(sum("attempt 1" in line for line in out.splitlines()), 2, out)

    def test_pythons_record_tells_the_error(self):
        (self.directory / "script.py").write_text(
            "from torch.distributed.elastic.multiprocessing.errors import record\n@record\ndef main():\n    raise KeyError('lost')\nmain()\n"
        )
        code, _, err = self.run_lockrun("script.py")
        self.assertEqual(code, 1, err)
        self.assertIn("its error:\n    KeyError: 'lost'\n", err)

    def test_a_dead_peer_ends_the_job(self):
        self.environment["FAIL_ATTEMPT"] = "0"
        code, _, err = self.run_lockrun("--nproc-per-node", 2, SCRIPT)
        self.assertEqual(code, 5, err)
        self.assertIn("rank 1 failed first: it ended with exit code 5", err)

    def test_the_port_is_held_from_the_start_on_loopback_only(self):
        port = free_port()
        code, out, err = self.shell(1, "echo $MASTER_PORT; cat /proc/net/tcp", "--master-port", port)
        self.assertEqual(code, 0, err)
        lines = out.splitlines()
        self.assertEqual(lines[0], str(port))
        listening = [line.split()[1] for line in lines[2:] if line.split()[3] == "0A"]
        self.assertEqual([address for address in listening if address.endswith(f":{port:04X}")], [f"0100007F:{port:04X}"])

    def test_strangers_neither_end_the_store_nor_flood_the_log(self):
        (self.directory / "strangers.py").write_text(
            "import os, random, socket, struct, subprocess, sys\n"
            "rnd = random.Random(1)\n"
            "for i in range(60):\n"
            "    with socket.create_connection(('127.0.0.1', int(os.environ['MASTER_PORT']))) as stranger:\n"
            "        magic = b'\\0' + struct.pack('<I', 0x3C85F7CE) if i % 2 else b''\n"
            "        stranger.sendall(magic + bytes(rnd.randrange(20 if i % 2 else 256) for _ in range(300)))\n"
            "os.execv(sys.executable, [sys.executable, sys.argv[1]])\n"
        )
        code, out, err = self.run_lockrun("--nproc-per-node", 1, "--prefix", "off", "strangers.py", SCRIPT)
        self.assertEqual((code, out), (0, "rank 0 of 1 sum 1.0 attempt 0\n"), err)
        self.assertNotIn("frame #", err)
        self.assertEqual(err.count("lockstep-store: warning: MASTER_PORT had a connection that no rank makes"), 1, err)

    def test_a_signal_to_all_processes_does_not_end_the_store(self):
        # As systemd and some of SLURM's plug-ins send it. The ranks may need the store while they save.
        (self.directory / "signaled.py").write_text(
            "import os, pathlib, socket, sys, time\n"
            "socket.create_connection(('127.0.0.1', int(os.environ['MASTER_PORT']))).close()\n"
            "def store():\n"
            "    for pid in pathlib.Path(f'/proc/{os.getppid()}/task/{os.getppid()}/children').read_text().split():\n"
            "        status = dict(line.split(':', 1) for line in open(f'/proc/{pid}/status'))\n"
            "        if status['Name'].strip() == 'lockstep-store' and int(status['SigIgn'], 16) >> 12 & 1: return int(pid)  # SIGPIPE\n"
            "while not store(): time.sleep(0.02)\n"
            "time.sleep(0.1)\n"
            "os.kill(store(), 15)\n"
            "os.execv(sys.executable, [sys.executable, sys.argv[1]])\n"
        )
        code, out, err = self.run_lockrun("--nproc-per-node", 1, "--prefix", "off", "signaled.py", SCRIPT)
        self.assertEqual((code, out), (0, "rank 0 of 1 sum 1.0 attempt 0\n"), err)

    def test_a_store_that_is_stopped_and_continued_goes_on(self):
        # As a batch system suspends all processes of a job.
        script = f"while [ ! -e go ]; do sleep 0.02; done; exec {sys.executable} {SCRIPT}"
        process = self.start(
            "--nproc-per-node", 1, "--prefix", "off", "sh", "-c", "touch port; echo $MASTER_PORT > port.new; mv port.new port;" + script
        )
        self.assertTrue(wait_until(lambda: (self.directory / "port").exists() and (self.directory / "port").read_text()))
        socket.create_connection(("127.0.0.1", int((self.directory / "port").read_text()))).close()
        store = wait_until(lambda: [pid for pid in self.processes() if self.name_of(pid) == "lockstep-store"])
        for number in (signal.SIGSTOP, signal.SIGCONT):
            os.kill(store[0], number)
            time.sleep(0.2)
        (self.directory / "go").touch()
        out, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual((process.returncode, out), (0, "rank 0 of 1 sum 1.0 attempt 0\n"), err)

    @staticmethod
    def name_of(pid):
        try:
            return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:  # it has ended
            return ""

    def test_a_taken_port_is_named(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            code, _, err = self.shell(1, "true", "--master-port", port)
        self.assertEqual(
            (code, err),
            (1, f"lockrun: error: cannot listen on 127.0.0.1:{port}: Address already in use; choose another --master-port, or none for a free one\n"),
        )


if __name__ == "__main__":
    unittest.main()
