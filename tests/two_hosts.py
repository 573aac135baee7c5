"""Two or three hosts on this machine: network, mount, IPC, PID and host-name namespaces of their own, joined by a cable."""

import os
import pathlib
import subprocess
import time

import namespaces
from namespaces import in_namespaces

OF_A_HOST = ("-n", "-m", "-i", "-p", "-u", "--fork", "--mount-proc")


def become_root():
    """Without privileges: starts this script anew as root of a user namespace, where hosts can be made.

    Its network is one of its own, since only there a user may lay cables; tests that use no hosts need its loopback.
    """
    namespaces.become_root(OF_A_HOST, ("-n",), "ip link set lo up")


class Host:
    def __init__(self, name):
        self.name = name
        # The first process must reap orphans: SLURM waits for a job's last process, zombies included.
        script = f"hostname {name}; mount -t tmpfs tmpfs /dev/shm; ip link set lo up; echo ready; sleep 1000 & wait"
        self.holder = subprocess.Popen([*in_namespaces(*OF_A_HOST), "--kill-child", "sh", "-c", script], stdout=subprocess.PIPE, text=True)
        if self.holder.stdout.readline() != "ready\n":
            raise RuntimeError(f"host {name} cannot be set up: one of these commands failed: {script}")
        children = pathlib.Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children").read_text().split()
        self.pid = int(children[0])

    def command(self, *arguments):
        return ["nsenter", "-t", str(self.pid), "-n", "-m", "-i", "-p", "-u", *map(str, arguments)]

    def run(self, *arguments):
        subprocess.run(self.command(*arguments), check=True, timeout=20)

    def wait_for(self, device):
        """Linux may need a second until a new cable counts as connected, and UCX does not take it before."""
        end = time.monotonic() + 20
        while True:
            shown = subprocess.run(
                self.command("ip", "-oneline", "link", "show", "dev", device), check=True, capture_output=True, text=True, timeout=20
            ).stdout
            if " state UP " in shown:
                return
            if time.monotonic() > end:
                raise RuntimeError(f"{device} is not connected: {shown}")
            time.sleep(0.02)

    def stop(self):
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()


class TwoHosts:
    """a is 10.77.0.1, b is 10.77.0.2."""

    ADDRESSES = {"a": "10.77.0.1", "b": "10.77.0.2"}

    def __init__(self):
        self.hosts = {name: Host(name) for name in self.ADDRESSES}
        first, second = self.hosts.values()
        subprocess.run(
            ["ip", "link", "add", "lockrun0", "netns", str(first.pid), "type", "veth", "peer", "name", "lockrun1", "netns", str(second.pid)],
            check=True,
        )
        for (name, address), device in zip(self.ADDRESSES.items(), ("lockrun0", "lockrun1")):
            self.hosts[name].run("ip", "address", "add", f"{address}/24", "dev", device)
            self.hosts[name].run("ip", "link", "set", device, "up")
        first.wait_for("lockrun0")
        second.wait_for("lockrun1")

    def add_cable(self, device, network):
        """Another one, which has the same name on both."""
        first, second = self.hosts.values()
        subprocess.run(
            ["ip", "link", "add", device, "netns", str(first.pid), "type", "veth", "peer", "name", device, "netns", str(second.pid)], check=True
        )
        for number, host in enumerate(self.hosts.values(), 1):
            host.run("ip", "address", "add", f"{network}.{number}/24", "dev", device)
            host.run("ip", "link", "set", device, "up")
        for host in self.hosts.values():
            host.wait_for(device)

    def cut_the_cable(self):
        self.hosts["b"].run("ip", "link", "set", "lockrun1", "down")

    def mend_the_cable(self):
        self.hosts["b"].run("ip", "link", "set", "lockrun1", "up")

    def cut_the_way_from(self, source):
        """What it sends goes to a card that nobody has: no error there, and nothing arrives."""
        (target,) = set(self.hosts) - {source}
        self.hosts[source].run(
            "ip",
            "neighbor",
            "replace",
            self.ADDRESSES[target],
            "lladdr",
            "02:00:00:00:00:99",
            "dev",
            "lockrun0" if source == "a" else "lockrun1",
            "nud",
            "permanent",
        )

    def stop(self):
        for host in self.hosts.values():
            host.stop()


class ThreeHosts:
    """a is 10.77.0.1, b 10.77.0.2 and c 10.77.0.3, joined by a switch."""

    NAMES = "abc"

    def __init__(self):
        self.switch = Host("switch")
        self.hosts = {name: Host(name) for name in self.NAMES}
        self.switch.run("ip", "link", "add", "bridge", "type", "bridge")
        self.switch.run("ip", "link", "set", "bridge", "up")
        for number, (name, host) in enumerate(self.hosts.items(), 1):
            subprocess.run(
                ["ip", "link", "add", "cable", "netns", str(host.pid), "type", "veth", "peer", "name", f"port{name}", "netns", str(self.switch.pid)],
                check=True,
            )
            self.switch.run("ip", "link", "set", f"port{name}", "up", "master", "bridge")
            host.run("ip", "address", "add", f"10.77.0.{number}/24", "dev", "cable")
            host.run("ip", "link", "set", "cable", "up")
        for host in self.hosts.values():
            host.wait_for("cable")

    def cut_the_cable_of(self, host):
        self.hosts[host].run("ip", "link", "set", "cable", "down")

    def mend_the_cable_of(self, host):
        self.hosts[host].run("ip", "link", "set", "cable", "up")

    def stop(self):
        for host in [*self.hosts.values(), self.switch]:
            host.stop()


class FourHosts(ThreeHosts):
    """d is 10.77.0.4. Cables can be slow, and cut in one direction."""

    NAMES = "abcd"

    def address_of(self, name):
        return f"10.77.0.{self.NAMES.index(name) + 1}"

    def cut_the_way(self, source, target):
        # To a card that nobody has: no error here, and nothing arrives.
        self.hosts[source].run(
            "ip", "neighbor", "replace", self.address_of(target), "lladdr", "02:00:00:00:00:99", "dev", "cable", "nud", "permanent"
        )

    def mend_the_way(self, source, target):
        self.hosts[source].run("ip", "neighbor", "delete", self.address_of(target), "dev", "cable")

    def slow_down(self, name, kbit):
        """A full packet takes 12 s / kbit: Linux of many containers has no other delay."""
        self.hosts[name].run("tc", "qdisc", "add", "dev", "cable", "root", "tbf", "rate", f"{kbit}kbit", "burst", "2000", "latency", "3s")

    def speed_up(self, name):
        self.hosts[name].run("tc", "qdisc", "delete", "dev", "cable", "root")


def shared_memory_of(pids):
    """(device, inode) of every writable memory that these processes may share, mapped or open."""
    found = set()
    for pid in pids:
        try:
            for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
                fields = line.split()
                if fields[1][1] == "w" and fields[1][3] == "s":
                    found.add((fields[3], int(fields[4])))
            for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
                if "memfd:" in os.readlink(fd) or os.readlink(fd).startswith("/dev/shm/"):
                    status = os.stat(fd)
                    found.add((f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}", status.st_ino))
        except OSError:
            pass
    return found
