"""Jobs on hosts with their own ideas of addresses, interfaces and ways between them."""

import json
import os
import signal
import subprocess
import sys
import unittest

from nodes_support import ALL_REDUCE_RANK, OnHosts
from two_hosts import ThreeHosts, TwoHosts, become_root


class NetworkTest(OnHosts):
    def setUp(self):
        super().setUp()
        (self.directory / "release").touch()

    def write_hosts_file(self, host, *lines):
        path = self.directory / f"hosts_{host}"
        path.write_text("".join(f"{line}\n" for line in ("127.0.0.1 localhost", *lines)))
        self.two.hosts[host].run("mount", "--bind", path, "/etc/hosts")

    def start_all(self, hosts, *flags, address="10.77.0.1", conf=""):
        return [
            self.on(
                host,
                "--nnodes",
                len(hosts),
                "--node-rank",
                node,
                "--master-addr",
                address,
                "--rdzv-conf",
                self.token + conf,
                "--prefix",
                "off",
                *flags,
            )
            for node, host in enumerate(hosts)
        ]


class NamesTest(NetworkTest):
    def setUp(self):
        super().setUp()
        self.two = TwoHosts()
        self.addCleanup(self.two.stop)

    def test_a_name_that_is_loopback_on_its_own_machine_is_refused(self):
        self.write_hosts_file("a", "127.0.1.1 a")
        self.write_hosts_file("b", "10.77.0.1 a")
        (code, _, err), (other, _, _) = self.finish(*self.start_all("ab", "true", address="a", conf=",join_timeout=3"))
        self.assertEqual((code, other), (1, 1), err)
        self.assertIn(
            "a is 127.0.1.1 on this machine (a line of its /etc/hosts), so no other machine could reach the rendezvous there; "
            "give one of this machine's other addresses in place of the name (10.77.0.1)",
            err,
        )

    def test_local_addr_names_where_to_listen_then(self):
        self.write_hosts_file("a", "127.0.1.1 a")
        self.write_hosts_file("b", "10.77.0.1 a")
        first = self.on(
            "a", "--nnodes", 2, "--node-rank", 0, "--master-addr", "a", "--local-addr", "10.77.0.1", "--rdzv-conf", self.token, ALL_REDUCE_RANK
        )
        second = self.on("b", "--nnodes", 2, "--node-rank", 1, "--master-addr", "a", "--rdzv-conf", self.token, ALL_REDUCE_RANK)
        for code, out, err in self.finish(first, second):
            self.assertEqual(code, 0, err)
            self.assertIn("sum 3", out)

    def test_a_name_with_addresses_of_both_families_meets_whichever_comes_first(self):
        for host, number in ("a", 1), ("b", 2):
            self.two.hosts[host].run("ip", "-6", "address", "add", f"fd77::{number}/64", "dev", f"lockrun{number - 1}", "nodad")
        self.write_hosts_file("a", "fd77::1 a", "10.77.0.1 a")
        for family in "10.77.0.1", "fd77::1":
            with self.subTest(family):
                self.write_hosts_file("b", f"{family} a")
                for code, out, err in self.finish(*self.start_all("ab", ALL_REDUCE_RANK, address="a", conf=",join_timeout=20")):
                    self.assertEqual(code, 0, err)
                    self.assertIn("sum 3", out)


class InterfacesTest(NetworkTest):
    def setUp(self):
        super().setUp()
        self.two = TwoHosts()
        self.addCleanup(self.two.stop)
        self.two.add_cable("second", "10.78.0")
        self.environment.update(LOCKSTEP_BACKEND="lockstep", LOCKSTEP_UPLINK="gloo", LOCKSTEP_LOG_LEVEL="info")

    def test_the_users_interface_carries_the_bytes(self):
        for rule, taken in (
            ("second", "second"),
            ("nothing,second", "second"),
            ("=second", "second"),
            ("^lockrun,lo", "second"),
            ("^docker0", "lockrun0"),
        ):
            with self.subTest(rule):
                self.environment["GLOO_SOCKET_IFNAME"] = rule
                (_, _, err), (code, out, second_err) = self.finish(*self.start_all("ab", ALL_REDUCE_RANK))
                self.assertEqual(code, 0, err + second_err)
                self.assertIn("sum 3", out)
                self.assertIn(f"Gloo ({taken}) between", err)

    def test_an_interface_that_is_not_there_is_an_error_that_lists_those_that_are(self):
        self.environment["GLOO_SOCKET_IFNAME"] = "eth7"
        for code, _, err in self.finish(*self.start_all("ab", ALL_REDUCE_RANK)):
            self.assertNotEqual(code, 0)
        self.assertRegex(err, "GLOO_SOCKET_IFNAME=eth7: no such interface with an address here; this machine has lo, lockrun1, second")


class UplinkTest(NetworkTest):
    """Nobody chooses a backend."""

    def setUp(self):
        super().setUp()
        self.two = TwoHosts()
        self.addCleanup(self.two.stop)
        for host in self.two.hosts.values():  # UCX looks there; what is mounted shows another network
            subprocess.run(host.command("mount", "-t", "sysfs", "sysfs", "/sys"), check=False)
        del self.environment["LOCKSTEP_BACKEND"]
        self.environment["LOCKSTEP_LOG_LEVEL"] = "info"

    def run_both(self, code, **variables):
        """Four ranks end with that code; returns what the first machine says."""
        self.environment.update(variables)
        results = self.finish(*self.start_all("ab", "--nproc-per-node", 2, ALL_REDUCE_RANK))
        text = "".join(err for _, _, err in results)
        for found, out, _ in results:
            self.assertEqual((found, out.count("of 4 sum 10\n")), (code, 2 if code == 0 else 0), text)
        return results[0][2]

    def test_it_is_ucx_where_all_machines_have_it(self):
        err = self.run_both(0)
        self.assertRegex(
            err,
            r"4 ranks on 2 machines: shared memory inside, (UCX [\d.]+ \(lockrun0\) between\n"
            r"|Gloo \(lockrun0\) between \(UCX is not used: machine 0 \(10\.77\.0\.1 on lockrun0\): )",
        )

    def test_an_engine_that_carries_nothing_is_replaced_unless_it_was_chosen(self):
        if "shared memory inside, UCX" not in self.run_both(0):
            print("\nskipped: no UCX", file=sys.stderr)
            self.skipTest("no UCX")
        # Each machine has one of its own.
        absent = r"UCX is not used: machine 0 \(10\.77\.0\.1 on lockrun0\): UCX: ucp_init: No such device, with UCX_NET_DEVICES=nothing "
        pair = r"UCX does not carry messages between machine [01] \(10\.77\.0\.[12] on lockrun[01]\) and machine [01] \(10\.77\.0\.[12] on lockrun[01]\): "
        err = self.run_both(0, UCX_NET_DEVICES="lo")
        self.assertEqual(err.count("UCX does not carry messages"), 1, err)
        self.assertRegex(err, pair + ".*; so Gloo does, as LOCKSTEP_UPLINK=gloo chooses without this line\n")
        self.assertIn("4 ranks on 2 machines: shared memory inside, Gloo (lockrun0) between\n", err)
        self.assertRegex(self.run_both(0, UCX_NET_DEVICES="nothing"), absent)
        err = self.run_both(1, LOCKSTEP_UPLINK="ucx", UCX_NET_DEVICES="lo")
        self.assertRegex(err, "LOCKSTEP_UPLINK=ucx, but " + pair)


class WaysTest(NetworkTest):
    """a reaches both; b and c do not reach each other."""

    def setUp(self):
        super().setUp()
        self.two = ThreeHosts()
        self.addCleanup(self.two.stop)

    def part(self, kind):
        self.two.hosts["b"].run("ip", "route", "add", kind, "10.77.0.3/32")
        self.two.hosts["c"].run("ip", "route", "add", kind, "10.77.0.2/32")

    def test_init_names_machines_that_do_not_reach_each_other(self):
        self.part("unreachable")
        results = self.finish(*self.start_all("abc", ALL_REDUCE_RANK))
        text = "".join(err for _, _, err in results)
        self.assertNotIn(0, [code for code, _, _ in results], text)
        self.assertRegex(
            text,
            r"machine 1 \(rank 1, 10\.77\.0\.2 on cable\) does not reach machine 2 \(rank 2, 10\.77\.0\.3 on cable\): "
            "(No route to host|Network is unreachable)",
        )
        self.assertIn("Ranks need all TCP ports between their machines", text)

    def test_machines_that_lose_each_other_are_named_by_the_hang_report(self):
        # The real one needs seconds for LibTorch's symbols.
        (self.directory / "eu-stack").write_text("#!/bin/sh\n")
        (self.directory / "eu-stack").chmod(0o755)
        self.environment["PATH"] = f"{self.directory}:{os.environ['PATH']}"
        (self.directory / "late").touch()  # rank 1 holds all up, after init()
        jobs = self.start_all("abc", "--hang-timeout", 3, "--event-log", "events.jsonl", ALL_REDUCE_RANK)
        self.read_until(jobs[0], "for rank 1, which has started none; rank 1 is on b")
        self.part("blackhole")
        (self.directory / "late").unlink()
        for job in jobs:
            err = self.read_until(job, "do not reach each other")
            self.assertRegex(
                err,
                r"the machine b \(10\.77\.0\.2, rank 1\) and the machine c \(10\.77\.0\.3, rank 2\) do not reach each "
                "other, so the ranks wait for messages that do not come",
            )
        for job in jobs:
            job.send_signal(signal.SIGINT)
        self.finish(*jobs)
        events = [json.loads(line) for line in (self.directory / "events.jsonl").read_text().splitlines()]
        (partition,) = (event for event in events if event["event"] == "partition")
        self.assertEqual((partition["round"], "host" in partition), (1, False), events)
        self.assertRegex(
            partition["reason"], r"^the machine b \(10\.77\.0\.2, rank 1\) and the machine c \(10\.77\.0\.3, rank 2\) do not reach each other"
        )
        done = subprocess.run(
            [os.path.join(os.environ["LOCKSTEP_BIN_DIR"], "lockstep"), "report", self.directory], capture_output=True, text=True, timeout=60
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("do not reach each other", (self.directory / "report.html").read_text())

    def read_until(self, process, text):
        err = ""
        while text not in err:
            line = process.stderr.readline()
            self.assertTrue(line, err)
            err += line
        return err


if __name__ == "__main__":
    become_root()
    unittest.main()
