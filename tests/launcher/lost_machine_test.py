"""Ranks with shared memory on each of two hosts made of namespaces: one that dies or stops, and a cable that is cut."""

import os
import pathlib
import random
import signal
import subprocess
import time
import unittest

from lockrun_support import processes_with, wait_until
from two_hosts import TwoHosts, become_root

CASES = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "ending_cases")
RANKS = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]  # host, local rank
LONGEST = 30  # seconds until a loss is noticed, on a busy machine; silence is one after 4.5 s, a death is told before that


class LostMachineTest(unittest.TestCase):
    UPLINK = "gloo"

    def setUp(self):
        self.two = TwoHosts()
        self.addCleanup(self.two.stop)
        for host in self.two.hosts.values():  # UCX looks there; what is mounted shows another network
            subprocess.run(host.command("mount", "-t", "sysfs", "sysfs", "/sys"), check=False)
        self.marker = f"LOST_MACHINE_TEST={os.getpid()}.{time.monotonic_ns()}"
        self.addCleanup(lambda: [os.kill(pid, signal.SIGKILL) for pid in processes_with(self.marker)])

    def start(self, count, **variables):
        self.ranks = []
        for rank, (host, local) in enumerate(RANKS):
            place = {
                "RANK": rank,
                "WORLD_SIZE": 4,
                "LOCAL_RANK": local,
                "LOCAL_WORLD_SIZE": 2,
                "GROUP_RANK": "ab".index(host),
                "GROUP_WORLD_SIZE": 2,
                "MASTER_ADDR": "10.77.0.1",
                "MASTER_PORT": 29500,
            }
            name, value = self.marker.split("=")
            environment = {
                **os.environ,
                "LOCKSTEP_BACKEND": "lockstep",
                "OMP_NUM_THREADS": "1",
                "TEST_COUNT": str(count),
                name: value,
                "LOCKSTEP_UPLINK": self.UPLINK,
                **variables,
                **{name: str(value) for name, value in place.items()},
            }
            process = subprocess.Popen(
                self.two.hosts[host].command(CASES, "--gtest_filter=Ending.UntilOneIsLost"),
                env=environment,
                text=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            self.addCleanup(process.stdout.close)
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
            self.ranks.append(process)
        for rank, process in enumerate(self.ranks):
            line = ""
            while line != f"rank {rank} is ready\n":
                line = process.stdout.readline()
                self.assertNotEqual(line, "", f"rank {rank} has ended")
        time.sleep(0.5)

    def kill(self, rank, with_signal):
        """Not the process that has entered the namespaces for it."""
        wanted = f"\0RANK={rank}\0".encode()
        for pid in processes_with(self.marker):
            status = pathlib.Path(f"/proc/{pid}")
            if (status / "comm").read_text() == "ending_cases\n" and wanted in b"\0" + (status / "environ").read_bytes():
                return os.kill(pid, with_signal)
        self.fail(f"there is no process of rank {rank}")

    def check_death(self, since, ranks, *texts):
        """It is told as one, not as silence. Returns whom `ranks` name."""
        return self.check(since, ranks, *texts, but_not="no heartbeat")

    def check(self, since, ranks, *texts, but_not=None):
        """Each of `ranks` has noticed a loss, and says `texts`. Returns whom they name."""
        named = []
        for rank in ranks:
            lines = self.ranks[rank].communicate(timeout=60)[0].splitlines()
            told = [line for line in lines if line[:1].isdigit()]
            self.assertEqual(len(told), 1, "\n".join(lines))
            when, who, text = told[0].split(" ", 2)
            print(f"rank {rank}: {float(when) - since:.2f} s, rank {who}: {text}")
            self.assertLess(float(when) - since, LONGEST, text)
            if but_not:
                self.assertNotIn(but_not, text)
            for wanted in texts:
                self.assertIn(wanted, text)
            named.append(int(who))
        return named

    def test_a_stop_of_three_seconds_is_no_loss_and_a_death_is_one(self):
        self.start(1000)
        self.kill(2, signal.SIGSTOP)
        time.sleep(3)
        self.kill(2, signal.SIGCONT)
        self.ranks[2].send_signal(signal.SIGCONT)  # nsenter stops with its child
        time.sleep(1)
        for rank in self.ranks:
            self.assertIsNone(rank.poll())
        since = time.monotonic()
        self.kill(3, signal.SIGKILL)
        named = self.check_death(since, (0, 1, 2), "all_reduce (float32[1000]")
        self.assertEqual(named, [3, 3, 3])

    def test_a_cut_cable_is_named_on_both_sides_while_data_is_sent(self):
        self.start(4000000)
        since = time.monotonic()
        self.two.cut_the_cable()
        here = self.check(since, (0, 1), "machine 1 (10.77.0.2, ranks 2, 3) was lost: no heartbeat for ", "all_reduce (float32[4000000]")
        there = self.check(since, (2, 3), "machine 0 (10.77.0.1, ranks 0, 1) was lost: no heartbeat for ")
        self.assertEqual((here, there), ([2, 2], [0, 0]))

    def test_a_cable_that_is_cut_one_way_is_named_on_both_sides(self):
        self.start(4000000)
        since = time.monotonic()
        self.two.cut_the_way_from("b")
        # Who hears nothing notices it first. What that one says is never acknowledged, so it reaches nobody after a while.
        named = self.check(since, range(4))
        self.assertEqual(named[:2], [2, 2])
        self.assertLessEqual(set(named[2:]), {0, 2})  # what they see, or what the others tell them

    def random_loss(self, seed):
        """One of what `scripts/soak lost_machines` does, at a random moment; with a stop before it, sometimes."""
        draw = random.Random(seed)
        count, what = draw.choice((1, 1000, 300000, 4000000)), draw.choice(("kill", "kill", "cut", "cut one way"))
        self.start(count, LOCKSTEP_UPLINK=os.environ.get("LOCKSTEP_UPLINK", self.UPLINK))
        stopped = draw.randrange(4) if draw.random() < 0.3 else None
        time.sleep(draw.random())
        if stopped is not None:
            self.kill(stopped, signal.SIGSTOP)
            time.sleep(draw.uniform(0, 3))
            self.kill(stopped, signal.SIGCONT)
            self.ranks[stopped].send_signal(signal.SIGCONT)
            time.sleep(draw.uniform(0.2, 1))
        since = time.monotonic()
        if what == "cut":
            self.two.cut_the_cable()
            named = self.check(since, range(4))
            self.assertEqual(named, [2, 2, 0, 0])
        elif what == "cut one way":
            self.two.cut_the_way_from(draw.choice("ab"))
            named = self.check(since, range(4))
            self.assertLessEqual(set(named), {0, 2})  # what they see, or what the others tell them
        else:
            dead = draw.randrange(4)
            self.kill(dead, signal.SIGKILL)
            named = self.check_death(since, [rank for rank in range(4) if rank != dead])
            self.assertEqual(named, 3 * [dead])
        print(f"survived: {what} with {count} elements{'' if stopped is None else f', rank {stopped} stopped before'}")

    def test_random_loss(self):
        self.random_loss(int(os.environ.get("LOCKSTEP_TEST_SEED", 1)))

    def sent_by(self, device):
        table = pathlib.Path(f"/proc/{self.two.hosts['a'].pid}/net/dev").read_text().splitlines()
        (line,) = [line for line in table if line.strip().startswith(device + ":")]
        return int(line.split(":")[1].split()[8])

    def test_of_two_networks_the_named_one_is_used(self):
        self.two.add_cable("second", "10.78.0")
        for uplink in ("gloo", "ucx"):
            with self.subTest(uplink=uplink):
                first, second = self.sent_by("lockrun0"), self.sent_by("second")
                try:
                    self.start(4000000, GLOO_SOCKET_IFNAME="second", LOCKSTEP_UPLINK=uplink)
                except AssertionError:
                    if uplink == "ucx" and any("cannot use UCX" in rank.communicate(timeout=60)[0] for rank in self.ranks):
                        continue
                    raise
                self.assertTrue(wait_until(lambda: self.sent_by("second") - second > 16_000_000))
                self.kill(3, signal.SIGKILL)
                # The first word comes from its machine's shared memory or from a control connection.
                self.assertEqual(self.check_death(time.monotonic(), (0, 1, 2), "ranks 2, 3)"), [3, 3, 3])
                self.assertLess(self.sent_by("lockrun0") - first, 1_000_000)


class LostMachineOverTheBestUplinkTest(LostMachineTest):
    """UCX where it is installed: what sends must end there, too. The network that is named is tried above."""

    UPLINK = ""
    test_of_two_networks_the_named_one_is_used = None


if __name__ == "__main__":
    become_root()
    unittest.main()
