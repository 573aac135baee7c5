"""lockrun --max-replacements on several machines, played by lockruns of one: a rank that dies on any of them is replaced, and the weights end
with the bits of an undisturbed job."""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from extent import first_of
from heal_test import LOCKRUN, TRAINING, hashes
from ports import free_port

KILL, SEGV = int(signal.SIGKILL), int(signal.SIGSEGV)
references = {}


def has_joined(events):
    """Is the machine that serves in its own job? It may be later than others that find it."""
    return events.exists() and '"join"' in events.read_text()


def family(pid):
    """The process and all that it has started, and those."""
    parents = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


class Job:
    """What the lockruns of all machines have said."""

    def __init__(self, machines, kills, flags, optimizer, steps, replacements_of, models, subgroups, environment):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with tempfile.TemporaryDirectory() as folder:
            token = pathlib.Path(folder) / "token"
            token.write_text("0123456789abcdef0123456789abcdef\n")
            token.chmod(0o600)
            environment = {
                **os.environ,
                "LOCKSTEP_BACKEND": "lockstep",
                **environment,
                "HEAL_KILLS": kills,
                "HEAL_DIR": folder,
                "OMP_NUM_THREADS": "1",
            }
            processes = []
            for number, ranks in enumerate(machines):
                healing = ["--max-replacements", replacements_of[number]] if replacements_of[number] else []
                command = [
                    LOCKRUN,
                    "--nnodes",
                    len(machines),
                    "--node-rank",
                    number,
                    "--master-port",
                    port,
                    "--rdzv-conf",
                    f"token_file={token}",
                    "--nproc-per-node",
                    ranks,
                    "--prefix",
                    "off",
                    *healing,
                    *flags,
                    TRAINING,
                    "--steps",
                    steps,
                    "--optimizer",
                    optimizer,
                    "--models",
                    models,
                    "--subgroups",
                    subgroups,
                ]
                if "--spares" in flags:  # a rank dies when a spare waits on its machine
                    log = str(pathlib.Path(folder) / f"events{number}.jsonl")
                    command[1:1] = ["--event-log", log]
                    environment = {**environment, "HEAL_EVENTS": log}
                processes.append(
                    subprocess.Popen([str(word) for word in command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                )
            try:
                said = [process.communicate(timeout=400) for process in processes]
            finally:
                for process in processes:
                    process.kill()
                    process.wait()
        self.returncodes = [process.returncode for process in processes]
        self.stdout = "".join(out for out, _ in said)
        self.errors = [err for _, err in said]
        self.stderr = "".join(self.errors)
        self.told = f"{machines}, {optimizer}, HEAL_KILLS='{kills}'\n{self.stdout}" + "".join(
            f"-- machine {number}, code {process.returncode}:\n{err}" for number, (process, (_, err)) in enumerate(zip(processes, said))
        )

    def replaced(self):
        return len(re.findall(r"replaced (?:by spare \d+ )?in [\d.]+ s, no step lost", self.stderr))


def run(machines, kills="", *flags, optimizer="adam", steps=12, replacements=20, replacements_of=None, models=1, subgroups="no", **environment):
    return Job(machines, kills, flags, optimizer, steps, replacements_of or [replacements] * len(machines), models, subgroups, environment)


class Jobs(unittest.TestCase):
    def reference(self, machines, **options):
        key = (*machines, *sorted(options.items()))
        if key not in references:
            job = run(machines, replacements=0, **options)
            self.assertEqual(job.returncodes, [0] * len(machines), job.told)
            self.assertEqual(len({line[2] for line in hashes(job)}), 1, job.told)
            references[key] = hashes(job)
        return references[key]

    def heals(self, machines, kills, *flags, deaths=None, environment=None, **options):
        job = run(machines, kills, *flags, **options, **(environment or {}))
        self.assertEqual(job.returncodes, [0] * len(machines), job.told)
        self.assertEqual(hashes(job), self.reference(machines, **options), job.told)
        self.assertEqual(job.replaced(), len(kills.split()) if deaths is None else deaths, job.told)
        return job


class Heal(Jobs):
    def test_without_a_death(self):
        job = self.heals([2, 2], "", environment={"HEAL_TELLS": "outlives"})
        # Machines with numbers: no other one ever comes, so nothing is told for one (kNoMachineWaits).
        self.assertEqual(len(re.findall(r"rank \d: outlives_machine 4", job.stdout)), 4, job.told)

    def test_each_rank(self):
        kills = [
            f"{rank}:{3 + rank}:{place}:{how}"
            for rank, (place, how) in enumerate(  # leaders and others of their machines
                (("data", KILL), ("forward", SEGV), ("backward", "exit"), ("after", KILL))
            )
        ]
        for job in (" ".join(kills), *first_of(kills, 0)):
            with self.subTest(job):
                self.heals([2, 2], job)

    def test_again_and_again(self):
        self.heals([2, 1], f"2:1:before:{KILL} 0:3:between:{KILL} 1:5:forward:{SEGV} 2:7:backward:{KILL} 0:10:after:exit", optimizer="our_adamw")

    def test_one_rank_a_machine(self):
        self.heals([1, 1], f"1:4:backward:{KILL} 0:7:data:exit")

    def test_divided_optimizers(self):
        for optimizer in ("fused_zero", "zero", "shared_zero"):
            with self.subTest(optimizer=optimizer):
                self.heals([2, 1], f"1:3:backward:{KILL} 2:5:after:{KILL} 0:8:before:{SEGV}", optimizer=optimizer)

    def test_two_models(self):
        self.heals([2, 2], f"3:2:backward:{KILL} 0:5:before:{KILL} 2:7:updated:{KILL}", models=2)

    def test_the_new_process_dies_again(self):
        self.heals([2, 2], f"1:4:backward:{KILL} 1:0:again:{KILL}", deaths=1)

    def test_two_ranks_at_once(self):
        self.heals([2, 2], f"1:4:data:{KILL} 3:4:data:{KILL} 0:8:backward:{KILL} 1:8:forward:{SEGV}")

    def test_what_is_left_of_connections(self):
        job = self.heals(
            [2, 1],
            f"1:1:data:{KILL} 2:5:data:{KILL} 1:6:data:{KILL} 2:7:data:{KILL} 1:9:data:{KILL} 2:10:data:{KILL}",
            environment={"LOCKSTEP_UPLINK": "gloo", "HEAL_TELLS": "threads"},
        )
        threads = dict(re.findall(r"rank 0 after step (\d+): (\d+) threads", job.stdout))
        self.assertEqual(int(threads["12"]), int(threads["4"]), job.told)

    def test_spares(self):
        job = self.heals([2, 2], f"2:5:backward:{KILL} 1:7:data:{KILL}", "--spares", 1)
        self.assertEqual(len(re.findall(r"replaced by spare 0 in [\d.]+ s, no step lost", job.stderr)), 2, job.told)

    def test_operations_before_recovery_that_nobody_waits_for(self):
        self.heals([2, 1], f"1:2:forward:{KILL} 0:4:data:{KILL}", environment={"HEAL_UNWAITED": "yes"})


class Connecting(Jobs):
    """Gloo does not notice a death while it connects: the others wait for two minutes."""

    def test_a_death_while_the_machines_connect(self):
        for environment in ({}, {"LOCKSTEP_UPLINK": "gloo"}):  # the first: UCX, if it is there
            with self.subTest(environment=environment):
                self.heals([2, 1], f"2:4:backward:{KILL} 1:0:cleared:{KILL}", environment=environment)

    def test_when_nobody_is_left_all_restart(self):
        job = run([1, 1], f"1:4:data:{KILL} 0:0:cleared:{KILL}", "--max-restarts", 1)
        self.assertEqual(job.returncodes, [0, 0], job.told)
        self.assertIn("and is not replaced: no rank is left that has the job's state", job.stderr, job.told)
        self.assertEqual(len(hashes(job)), 2, job.told)


class SpareJobs(Jobs):
    """Machines of c10d, a further one of which waits."""

    def lose(
        self,
        rank,
        machine,
        how=signal.SIGKILL,
        kills="{rank}:5:backward:hold",
        optimizer="adam",
        subgroups="no",
        of_spare=None,
        codes=(0, 0),
        hosts=None,
        **environment,
    ):
        """Rank `rank` stays in a step; then its machine, the `machine`th that has come, is lost. `of_spare`: environment of the third one.
        With `hosts` (ThreeHosts) each machine is one of them, and the cable of the lost one is cut."""
        # Hosts have a /dev/shm of their own.
        with tempfile.TemporaryDirectory(dir="/tmp" if hosts else None) as name:
            folder = pathlib.Path(name)
            token = folder / "token"
            token.write_text("0123456789abcdef0123456789abcdef\n")
            token.chmod(0o600)
            port = free_port()
            environment = {
                **os.environ,
                "LOCKSTEP_BACKEND": "lockstep",
                **environment,
                "HEAL_KILLS": kills.format(rank=rank),
                "HEAL_DIR": name,
                "OMP_NUM_THREADS": "1",
                **({"TMPDIR": name} if hosts else {}),
            }
            # A machine that is silent is lost soon, but not one that does not run for a second.
            conf = f"token_file={token},last_call_timeout=1,keep_alive_interval=0.5,keep_alive_max_attempt=16"
            jobs, silenced = [], []
            endpoint = "10.77.0.1" if hosts else "127.0.0.1"

            def start():
                number = len(jobs)
                inside = hosts.hosts["abc"[number]].command() if hosts else []
                with open(folder / f"out{number}", "w") as out, open(folder / f"err{number}", "w") as err:
                    jobs.append(
                        subprocess.Popen(
                            [
                                *inside,
                                LOCKRUN,
                                "--nnodes",
                                "2",
                                "--rdzv-backend",
                                "c10d",
                                "--rdzv-endpoint",
                                f"{endpoint}:{port}",
                                "--rdzv-conf",
                                conf,
                                "--nproc-per-node",
                                "2",
                                "--prefix",
                                "off",
                                "--max-replacements",
                                "8",
                                "--event-log",
                                folder / "events",
                                "--max-restarts",
                                "1",
                                TRAINING,
                                "--steps",
                                "12",
                                "--optimizer",
                                optimizer,
                                "--subgroups",
                                subgroups,
                            ],
                            env={**environment, **(of_spare or {} if number == 2 else {})},
                            stdout=out,
                            stderr=err,
                        )
                    )

            def said(number):
                return (folder / f"err{number}").read_text()

            def wait(condition):
                deadline = time.monotonic() + 200
                while not condition():
                    self.assertTrue(
                        time.monotonic() < deadline and all(job.poll() is None for job in jobs), [said(number) for number in range(len(jobs))]
                    )
                    time.sleep(0.02)

            try:
                start()
                wait(lambda: has_joined(folder / "events"))
                start()
                wait((folder / "death0").exists)
                start()
                wait(lambda: "waits as a spare" in said(2))
                lost = [number for number in (0, 1) if f"machine {machine} of 2" in said(number)][0]
                if hosts:
                    hosts.cut_the_cable_of("abc"[lost])
                else:
                    silenced = family(jobs[lost].pid) if how == signal.SIGSTOP else []
                    for pid in silenced or [jobs[lost].pid]:
                        os.kill(pid, how)
                others = [job for number, job in enumerate(jobs) if number != lost]
                for job in others:
                    job.wait(timeout=300)
            finally:
                for job in jobs:
                    job.kill()
                    job.wait()
                for pid in silenced[1:]:  # the guardian ends the ranks
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGCONT)
            numbers = range(len(jobs))
            # Behind a cut cable lockrun goes on, and tries to come back.
            result = subprocess.CompletedProcess(
                [],
                0,
                "".join((folder / f"out{number}").read_text() for number in numbers),
                "".join(said(number) for number in numbers if not (hosts and number == lost)),
            )
            result.told = "\n".join([result.stdout, *map(said, numbers)])
            result.events = [json.loads(line) for line in (folder / "events").read_text().splitlines()]
            self.assertEqual([job.returncode for job in others], list(codes), result.told)
            return result

    def takes_the_place(self, job, **options):
        self.assertEqual(hashes(job), self.reference([2, 2], **options), job.told)
        self.assertRegex(job.stderr, r"was lost: .*; this machine has taken its place in [\d.]+ s, no step lost", job.told)
        self.assertNotIn("starting all ranks again", job.stderr, job.told)


class SpareMachine(SpareJobs):
    def test_takes_the_place_of_a_machine_that_is_killed(self):
        job = self.lose(rank=2, machine=1)
        self.takes_the_place(job)
        events = [event for event in job.events if event["event"] == "replace"]
        self.assertEqual(sorted(event["rank"] for event in events), [2, 3], events)
        for event in events:
            self.assertRegex(event["reason"], r"the machine .*, ranks 2 to 3\) was lost")

    def test_sums_that_travel_in_another_form(self):
        job = self.lose(rank=2, machine=1, of_spare={"LOCKSTEP_WIRE_DTYPE": "bf16"}, codes=(1, 1))
        self.assertRegex(job.stderr, r"LOCKSTEP_WIRE_DTYPE is bf16 for this process, and was exact for the one of rank [23] whose place it takes")

    def test_has_the_groups_of_the_lost_machine(self):
        self.takes_the_place(self.lose(rank=3, machine=1, subgroups="yes", LOCKSTEP_UPLINK="gloo"), subgroups="yes")

    def test_places_and_optimizers(self):
        for kill, optimizer in (("{rank}:1:after:hold", "adam"), ("{rank}:0:data:hold", "momentum")):
            with self.subTest(kill=kill):
                self.takes_the_place(self.lose(rank=3, machine=1, kills=kill, optimizer=optimizer), optimizer=optimizer)

    def test_takes_the_place_of_a_machine_that_is_silent(self):
        # As after a cut cable: no connection is closed.
        self.takes_the_place(self.lose(rank=3, machine=1, how=signal.SIGSTOP))

    def test_a_rank_dies_behind_that(self):
        job = self.lose(rank=2, machine=1, kills="{rank}:5:backward:hold 3:8:data:9 0:9:backward:9")
        self.takes_the_place(job)
        self.assertEqual(len(re.findall(r"rank \d .*; replaced in [\d.]+ s, no step lost", job.stderr)), 2, job.told)

    def test_all_restart_where_ranks_have_state_of_their_own(self):
        job = self.lose(rank=2, machine=1, optimizer="zero")
        self.assertIn("and is not replaced: each rank has state of its own, which was lost with it", job.stderr, job.told)
        self.assertIn("starting all ranks again", job.stderr, job.told)

    def test_all_restart_where_the_first_machine_is_lost(self):
        job = self.lose(rank=0, machine=0)
        self.assertIn("no spare machine takes the place of the one that serves the rendezvous", job.stderr, job.told)
        self.assertIn("starting all ranks again", job.stderr, job.told)


class Fallback(unittest.TestCase):
    def test_used_up_on_another_machine(self):
        job = run([2, 2], f"1:3:data:{KILL} 3:6:data:{KILL}", replacements=1)
        self.assertNotIn(0, job.returncodes, job.told)
        self.assertEqual(job.replaced(), 1, job.told)
        self.assertIn("rank 3 was killed by SIGKILL and is not replaced: --max-replacements 1 are used up", job.errors[1])

    def test_ranks_of_another_machine_that_do_not_go_on(self):
        for how, told in (("leaves", "rank 1 does not hand its state over"), ("deserts", "rank 1 (has ended|no longer hands its state over)")):
            with self.subTest(how=how):
                job = run([1, 1], f"0:0:parting:{KILL}", HEAL_PARTS=how)
                self.assertEqual(job.returncodes, [128 + KILL] * 2, job.told)
                self.assertRegex(job.errors[1], f"rank 0 on .* was killed by SIGKILL and is not replaced: {told}", job.told)

    def test_a_group_that_others_have_dropped_is_named(self):
        job = run([1, 1], f"1:4:data:{KILL}", HEAL_DROPS="yes")
        self.assertNotIn(0, job.returncodes, job.told)
        self.assertRegex(job.stderr, r"rank 0 lacks a process group of ranks 0, 1 \(.*\), which rank 1 has", job.told)

    def test_a_death_before_recovery_restarts_all(self):
        job = run([2, 2], f"3:0:setup:{KILL}", "--max-restarts", 1)
        self.assertEqual(job.returncodes, [0, 0], job.told)
        self.assertIn("is not replaced: the program has not reached lockstep::Recovery", job.errors[1])

    def test_another_backend_restarts_all(self):
        job = run([2, 2], f"2:4:backward:{KILL}", "--max-restarts", 1, LOCKSTEP_BACKEND="gloo")
        self.assertEqual(job.returncodes, [0, 0], job.told)
        self.assertIn("and is not replaced: the program", job.errors[1])
        self.assertIn("lockrun --max-replacements: ranks that die are not replaced, because the backend is not lockstep", job.errors[0])

    def test_a_machine_without_the_flag_is_told_at_the_start(self):
        job = run([1, 1], replacements_of=[1, 0])
        self.assertEqual(job.returncodes, [0, 0], job.told)
        self.assertIn("ranks that die are not replaced, because the lockrun of another machine has no such flag", job.errors[0])

    def test_an_exception_in_the_body_is_no_death(self):
        job = run([2, 1], "1:4:data:throw 2:7:updated:throw 2:9:before:throw", models=2, HEAL_CATCHES="yes")
        self.assertEqual(job.returncodes, [0, 0], job.told)
        self.assertEqual([line[:2] for line in hashes(job)], [("0", "12"), ("1", "12"), ("2", "12")], job.told)


if __name__ == "__main__":
    unittest.main()
