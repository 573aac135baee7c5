"""A machine behind a cut cable: a spare machine takes its place, and what goes on behind the cut changes no bit."""

import subprocess
import unittest

from heal_machines_test import SpareJobs
from two_hosts import ThreeHosts, become_root


class CutCable(SpareJobs):
    def setUp(self):
        self.three = ThreeHosts()
        self.addCleanup(self.three.stop)
        for host in self.three.hosts.values():  # UCX looks there; what is mounted shows another network
            subprocess.run(host.command("mount", "-t", "sysfs", "sysfs", "/sys"), check=False)

    def test_takes_the_place_of_a_machine_behind_a_cut_cable(self):
        job = self.lose(rank=3, machine=1, hosts=self.three)
        self.takes_the_place(job)

    def test_over_gloo(self):
        job = self.lose(rank=2, machine=1, hosts=self.three, LOCKSTEP_UPLINK="gloo")
        self.takes_the_place(job)


if __name__ == "__main__":
    become_root()
    unittest.main()
