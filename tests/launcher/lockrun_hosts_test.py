"""Lists of hosts: one lockrun starts those on the other machines through ssh. The machines are namespaces; ssh is a script that
runs the command there."""

import os
import pathlib
import shutil
import signal
import subprocess
import unittest

from lockrun_support import LOCKRUN, TIMEOUT, UNHURRIED, LockrunTest, wait_until
from two_hosts import TwoHosts, become_root

# Enters the host's namespaces as sshd would: a shell there, with little in its environment. Writes down what it was given.
SSH = """#!/bin/sh
printf '%s\\n' "$@" >> $SSH_LOG
env > $SSH_LOG.environment
while [ "$1" != -- ]; do shift; done
case $2 in
  10.77.0.1) pid=$SSH_PID_A ;;
  10.77.0.2) pid=$SSH_PID_B ;;
  refused) printf 'ssh: connect to host refused port 22: Connection refused\\r\\n' >&2; exit 255 ;;
  silent) exec sleep 60 ;;
  empty) exec sh -c 'exec /nowhere/lockrun --assigned' ;;
  noisy) echo "Welcome to noisy"; echo "Last login: never"; pid=$SSH_PID_B ;;
esac
exec nsenter -t $pid -n -m -i -p -u env -i HOME=/ PATH=/usr/bin:/bin LOCKRUN_TEST_MARKER=$LOCKRUN_TEST_MARKER sh -c "$3"
"""
A, B = "10.77.0.1", "10.77.0.2"
WAIT = "touch up$RANK; while [ ! -e release ]; do sleep 0.02; done"


class HostsTest(LockrunTest):
    def setUp(self):
        super().setUp()
        self.two = TwoHosts()
        self.addCleanup(self.two.stop)
        self.place = self.directory  # where lockrun is typed
        programs = self.directory / "bin"
        programs.mkdir()
        (programs / "ssh").write_text(SSH)
        (programs / "ssh").chmod(0o755)
        self.log = self.directory / "ssh.log"
        self.environment.update(
            PATH=f"{programs}:{os.environ['PATH']}",
            SSH_LOG=str(self.log),
            SSH_PID_A=str(self.two.hosts["a"].pid),
            SSH_PID_B=str(self.two.hosts["b"].pid),
        )

    def on(self, host, *arguments):
        """lockrun, typed on that host; it keeps this process's PID namespace, from which ssh can enter the other host's."""
        enter = [shutil.which("nsenter"), "-t", str(self.two.hosts[host].pid), "-n", "-u", shutil.which("env"), "-C", str(self.place), LOCKRUN]
        process = subprocess.Popen(
            [*enter, *map(str, arguments)], env=self.environment, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.addCleanup(lambda: (process.stdout.close(), process.stderr.close()))
        return process

    def run_on(self, host, *arguments):
        process = self.on(host, *arguments)
        out, err = process.communicate(timeout=TIMEOUT)
        return process.returncode, out, err

    def lockruns(self):
        """Pids of the lockruns that were typed or started by ssh, by host."""
        found = {"a": [], "b": []}
        spaces = {os.readlink(f"/proc/{host.pid}/ns/net"): name for name, host in self.two.hosts.items()}
        for pid in self.processes():
            try:
                with open(f"/proc/{pid}/comm") as name:
                    if name.read() == "lockrun\n":
                        found[spaces[os.readlink(f"/proc/{pid}/ns/net")]].append(pid)
            except (OSError, KeyError):
                pass
        return found

    def fake_ssh(self):
        """Pid of the nsenter that it has become."""
        found = []
        for pid in self.processes():
            try:
                line = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:  # gone meanwhile
                continue
            if b"nsenter" in line and b"--assigned" in line:
                found.append(pid)
        (ssh,) = found
        return ssh

    def start_waiting(self, *flags):
        process = self.on("a", "-np", 3, "-H", f"{A}:1,{B}:2", *flags, "sh", "-c", WAIT)
        for rank in range(3):
            self.wait_for_file(f"up{rank}")
        return process

    def test_ranks_that_share_a_machine_meet_at_its_store(self):
        (self.directory / "release").touch()
        for hosts in (f"{A}:2,{B}:2", f"{A}:2,noisy:1,{B}:1"):
            code, out, err = self.run_on("a", "-np", 4, "-H", hosts, os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "all_reduce_rank"))
            self.assertEqual(code, 0, err)
            self.assertEqual(sorted(out.splitlines()), [f"[rank {rank}]: rank {rank} of 4 sum 10" for rank in range(4)])

    def test_pods_are_reached_as_the_page_says(self):
        (self.directory / "bin" / "kubectl").write_text(
            "#!/bin/sh\n[ \"$1 $2 $4\" = 'exec -i --' ] || exit 1\nshift 4\n"
            'exec nsenter -t $SSH_PID_B -n -m -i -p -u env -i HOME=/ PATH=/usr/bin:/bin LOCKRUN_TEST_MARKER=$LOCKRUN_TEST_MARKER "$@"\n'
        )
        page = (pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"]) / "docs/lockrun/machines.md").read_text()
        line = page[page.index("exec kubectl") :].partition("`")[0]
        (self.directory / "bin" / "to_pod").write_text(f"#!/bin/sh\n{line}\n")
        for name in ("kubectl", "to_pod"):
            (self.directory / "bin" / name).chmod(0o755)
        self.environment["LOCKRUN_RSH"] = "to_pod"
        self.assertEqual(self.run_on("a", "-H", f"{B}:1", "hostname")[:2], (0, "b\n"))

    def test_ranks_run_on_both_with_what_was_typed_once(self):
        self.environment.update(MINE="it's mine", PET_MAX_RESTARTS="0", LOCKSTEP_BACKEND="gloo")
        code, out, err = self.run_on(
            "a",
            "-np",
            4,
            "-H",
            f"{A}:2,{B}:9",
            "--role",
            "two words",
            "sh",
            "-c",
            'echo "$RANK $LOCAL_RANK $WORLD_SIZE $(hostname) $ROLE_NAME $MINE $(pwd) $1"',
            "x",
            "a 'b'",
        )
        self.assertEqual(code, 0, err)
        self.assertEqual(
            sorted(out.splitlines()),
            [f"[rank {rank}]: {rank} {rank % 2} 4 {'ab'[rank // 2]} two words it's mine {self.directory} a 'b'" for rank in range(4)],
        )
        # The secret, and what was typed, are nobody else's business.
        self.assertEqual(self.log.read_text().splitlines(), ["-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "--", B, f"exec {LOCKRUN} --assigned"])
        self.assertNotIn("no secret is set", err)

    def test_the_secret_is_in_no_environment_and_on_no_command_line(self):
        token = self.directory / "token"
        token.write_text("0123456789abcdef0123456789abcdef\n")
        token.chmod(0o600)
        process = self.start_waiting("--rdzv-conf", f"token_file={token}")
        token.unlink()  # it is read here only
        looked_at = 0
        for pid in self.processes():
            for name in ("cmdline", "environ"):
                try:
                    self.assertNotIn(b"0123456789abcdef", pathlib.Path(f"/proc/{pid}/{name}").read_bytes())
                    looked_at += 1
                except OSError:  # gone meanwhile
                    pass
        self.assertGreater(looked_at, 12)  # lockruns, guardians, ssh and ranks
        (self.directory / "release").touch()
        _, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 0, err)

    def test_a_hang_of_both_machines_is_told_once(self):
        stub = self.directory / "bin" / "eu-stack"
        stub.write_text("#!/bin/sh\n")
        stub.chmod(0o755)
        (self.directory / "late").touch()
        code, _, err = self.run_on(
            "a",
            "-H",
            f"{A}:1,{B}:1",
            "--hang-timeout",
            UNHURRIED,
            "--hang-action",
            "end",
            os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "all_reduce_rank"),
        )
        self.assertEqual(code, 1, err)
        self.assertRegex(
            err, r"lockrun on 10\.77\.0\.2: warning: no collective was started for \d+ s: rank 0 waits .* for rank 1, .*; rank 1 is on b; ending"
        )
        self.assertEqual(err.count("; ending the job (--hang-action end)"), 1, err)
        for rank in range(2):
            self.assertIn(f"\nrank {rank} (pid ", err)

    def test_a_list_without_this_machine(self):
        code, out, err = self.run_on("a", "-H", f"{B}:2", "sh", "-c", "echo $RANK of $WORLD_SIZE on $(hostname); echo complaint >&2; exit 7")
        self.assertEqual(code, 7, err)
        # Whichever fails first may end the other before it says anything.
        self.assertIn(out.splitlines()[0], ("[rank 0]: 0 of 2 on b", "[rank 1]: 1 of 2 on b"))
        self.assertRegex(err, r"lockrun on 10\.77\.0\.2: rank \d failed first: it ended with exit code 7")
        self.assertIn("complaint", err)
        self.environment["SSH_PID_A"] = str(self.two.hosts["b"].pid)  # two names of one machine, none of them a's
        code, out, err = self.run_on("a", "-H", f"noisy:1,{B}:1", "sh", "-c", "echo $RANK of $WORLD_SIZE on $(hostname)")
        self.assertEqual((code, sorted(out.splitlines())), (0, ["[rank 0]: 0 of 2 on b", "[rank 1]: 1 of 2 on b"]), err)

    def test_the_first_failure_ends_all_with_its_code(self):
        script = "if [ $RANK = 2 ]; then while [ ! -e up0 ]; do sleep 0.02; done; echo last words >&2; exit 9; fi;" + WAIT
        code, _, err = self.run_on("a", "-H", f"{A}:1,{B}:2", "sh", "-c", script)
        self.assertEqual(code, 9, err)
        self.assertIn("lockrun on 10.77.0.2: rank 2 failed first: it ended with exit code 9", err)
        self.assertRegex(err, r"lockrun: rank 2 on b ended with exit code 9; ending the ranks here\n(.*\n)*lockrun: the job has failed\n")
        self.assertIn("[rank 2]: last words", err)
        self.assertEqual(err.count("ending the ranks here"), 1, err)

    def test_a_failure_at_once_is_told_with_its_code(self):
        # The lockrun there may have ended before the one here has heard that the ranks are to start.
        for _ in range(5):
            code, _, err = self.run_on("a", "-H", f"{A}:1,{B}:1", "sh", "-c", "[ $RANK = 1 ] && exit 9; exec sleep 60")
            self.assertEqual(code, 9, err)
            self.assertIn("lockrun on 10.77.0.2: rank 1 failed: it ended with exit code 9", err)
            self.assertRegex(err, r"lockrun: the job has failed(: rank 1 on b ended with exit code 9)?\n")

    def test_a_failure_restarts_all(self):
        script = "echo attempt $TORCHELASTIC_RESTART_COUNT; [ $RANK$TORCHELASTIC_RESTART_COUNT = 10 ] && exit 5; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exec sleep 60"
        code, out, err = self.run_on("a", "-H", f"{A}:1,{B}:1", "--max-restarts", 1, "sh", "-c", script)
        self.assertEqual(code, 0, err)
        self.assertEqual(out.count("attempt 1"), 2, out)
        self.assertEqual(err.count("starting all ranks again"), 1, err)

    def test_when_this_lockrun_is_killed_all_of_it_ends(self):
        process = self.start_waiting()
        process.kill()
        self.assertTrue(wait_until(lambda: not any(self.lockruns().values()) and not self.processes()), self.processes())
        process.wait(TIMEOUT)

    def test_when_ssh_is_killed_all_of_it_ends(self):
        process = self.start_waiting()
        os.kill(self.fake_ssh(), signal.SIGKILL)
        _, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 1, err)
        self.assertIn("the machine b (10.77.0.2, ranks 1 to 2) was lost", err)

    def test_when_the_other_lockrun_is_killed_all_of_it_ends(self):
        process = self.start_waiting()
        (other,) = self.lockruns()["b"]
        os.kill(other, signal.SIGKILL)
        _, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 1, err)
        self.assertIn("the machine b (10.77.0.2, ranks 1 to 2) was lost", err)

    def test_signals_reach_all(self):
        script = "trap 'touch usr$RANK' USR1; trap 'touch term$RANK; exit 0' TERM; touch up$RANK; while :; do sleep 0.02; done"
        process = self.on("a", "-H", f"{A}:1,{B}:2", "sh", "-c", script)
        for rank in range(3):
            self.wait_for_file(f"up{rank}")
        process.send_signal(signal.SIGUSR1)
        for rank in range(3):
            self.wait_for_file(f"usr{rank}")
        process.terminate()
        _, err = process.communicate(timeout=TIMEOUT)
        for rank in range(3):
            self.assertTrue((self.directory / f"term{rank}").exists(), err)

    def test_all_are_suspended_and_go_on(self):
        process = self.on(
            "a",
            "-H",
            f"{A}:1,{B}:1",
            "--rdzv-conf",
            "keep_alive_interval=0.5,keep_alive_max_attempt=6",
            "sh",
            "-c",
            "while [ ! -e release ]; do echo >> ticks$RANK; sleep 0.02; done",
        )
        for rank in range(2):
            self.wait_for_file(f"ticks{rank}")
        (other,) = self.lockruns()["b"]
        process.send_signal(signal.SIGTSTP)

        def stopped(pid):
            with open(f"/proc/{pid}/stat") as file:
                return file.read().rsplit(")", 1)[1].split()[0] == "T"

        self.assertTrue(wait_until(lambda: stopped(process.pid) and stopped(other)))
        sizes = [(self.directory / f"ticks{rank}").stat().st_size for rank in range(2)]
        self.assertFalse(wait_until(lambda: not stopped(process.pid) or not stopped(other), 4.5))  # more than six intervals
        self.assertEqual([(self.directory / f"ticks{rank}").stat().st_size for rank in range(2)], sizes)
        process.send_signal(signal.SIGCONT)
        self.assertTrue(wait_until(lambda: not stopped(other)))
        os.kill(self.fake_ssh(), signal.SIGCONT)  # nsenter stops itself when what it runs does
        (self.directory / "release").touch()
        _, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual((process.returncode, "lost" in err), (0, False), err)

    def test_a_host_that_does_not_come_is_named(self):
        code, _, err = self.run_on("a", "--rdzv-conf", "join_timeout=3", "-H", f"{A}:1,{B}:1,silent:1", "--master-addr", A, "true")
        self.assertEqual(code, 1)
        self.assertIn("lockrun: error: too few machines came within 3 s: 2 of 3 here (a, b); missing: silent\n", err)

    def test_hosts_that_cannot_be_reached_are_named_with_the_reason(self):
        flags = ["--master-addr", A, "true"]
        code, _, err = self.run_on("a", "-H", f"{A}:1,{B}:1,refused:1", *flags)
        self.assertEqual(code, 1)
        self.assertIn(
            "lockrun: error: cannot start lockrun on refused: ssh ended with exit code 255 (ssh: connect to host refused port 22: "
            "Connection refused); check that `ssh refused true` works and asks nothing\n",
            err,
        )
        code, _, err = self.run_on("a", "-H", f"{A}:1,empty:1", *flags)
        self.assertEqual(code, 1)
        self.assertRegex(err, f"cannot start lockrun on empty: ssh ended with exit code 127 .*; it must be at {LOCKRUN} there, as it is here\n")
        code, _, err = self.run_on("a", "-H", "refused:1", "true")
        self.assertEqual(code, 1)
        self.assertIn("cannot start lockrun on refused", err)
        code, _, err = self.run_on("a", "-H", f"{A}:1,no-such-host.invalid:1", "true")
        self.assertEqual(code, 1)
        self.assertIn("--master-addr names the address of this machine that the hosts can reach", err)
        (self.directory / "bin" / "ssh").unlink()
        self.environment["PATH"] = str(self.directory / "bin")
        code, _, err = self.run_on("a", "-H", f"{A}:1,{B}:1", "/bin/true")
        self.assertEqual(code, 1)
        self.assertIn("cannot find the program ssh in PATH", err)

    def test_a_directory_that_is_not_there(self):
        self.place = self.directory / "place"
        self.place.mkdir()
        self.two.hosts["b"].run("mount", "-t", "tmpfs", "tmpfs", self.directory)
        code, _, err = self.run_on("a", "-H", f"{A}:1,{B}:1", "true")
        self.assertEqual(code, 1, err)
        self.assertRegex(err, rf"lockrun on {B}: error: cannot work in {self.place}, .*: No such file or directory")

    def test_lockrun_rsh_takes_the_place_of_ssh(self):
        (self.directory / "bin" / "ssh").rename(self.directory / "bin" / "other")
        self.environment["LOCKRUN_RSH"] = "other -x --"
        code, out, err = self.run_on("a", "-H", f"{B}:1", "hostname")
        self.assertEqual((code, out), (0, "b\n"), err)
        self.assertEqual(self.log.read_text().splitlines()[:2], ["-x", "--"])

    def test_a_hostfile_and_a_dry_run(self):
        (self.directory / "hosts").write_text(f"# ours\n{A} slots=1\n{B} slots=2\n")
        code, out, err = self.run_on("a", "--hostfile", "hosts", "--ssh-port", 2222, "--dry-run", "true")
        self.assertEqual(code, 0, err)
        self.assertIn(
            f"  {A}: rank 0, this machine\n  {B}: ranks 1 to 2, by: ssh -o BatchMode=yes -o ConnectTimeout=20 -p 2222 -- {B} "
            f"'exec {LOCKRUN} --assigned'\n",
            out,
        )
        self.assertFalse(self.log.exists())
        code, out, err = self.run_on("a", "--hostfile", "hosts", "--prefix", "off", "sh", "-c", "echo $RANK $(hostname)")
        self.assertEqual((code, sorted(out.splitlines())), (0, ["0 a", "1 b", "2 b"]), err)


if __name__ == "__main__":
    become_root()
    unittest.main()
