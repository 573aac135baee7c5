"""A planned change, or a signal to lockrun, that meets a rank which is just being replaced: all ranks save when that rank is back, after the
same step, and no step is lost. Machines are lockruns on this one; ranks are a Trainer's."""

import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest

from heal_machines_test import has_joined
from heal_test import until
from heal_trainer_test import ARGUMENTS, LOCKRUN, PROGRAM
from ports import free_port

KILL = int(signal.SIGKILL)
DEATH, STOP = 8, 12  # steps that have ended when a rank dies, and before which each rank is asked to stop
LONGEST = 600
references = {}


class HealPlannedTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        token = self.folder / "token"
        token.write_text("0123456789abcdef0123456789abcdef\n")
        token.chmod(0o600)
        self.port = free_port()
        self.flags = [
            "--nnodes",
            "2:3",
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            f"127.0.0.1:{self.port}",
            "--rdzv-conf",
            f"token_file={token},last_call_timeout=1,keep_alive_interval=0.5,keep_alive_max_attempt=30",
        ]
        self.jobs = []
        self.addCleanup(self.end)

    def anew(self):
        """For another subtest."""
        self.jobs = []
        for file in ("waits", "go", "death0"):
            (self.folder / file).unlink(missing_ok=True)

    def end(self):
        for job in self.jobs:
            job.kill()
            job.wait()

    def train(self, name, **arguments):
        """The arguments of a training in a folder of its own."""
        file = self.folder / f"{name}.json"
        file.write_text(
            json.dumps({**ARGUMENTS, "num_train_epochs": 4, "resume_from_checkpoint": "auto", **arguments, "output_dir": str(self.folder / name)})
        )
        return file

    def start(self, file, flags, ranks=1, kills=f"1:{DEATH}:forward:{KILL}"):
        number = len(self.jobs)
        environment = {
            **os.environ,
            "LOCKSTEP_BACKEND": "lockstep",
            "LOCKSTEP_REPLACEMENT_TIMEOUT": str(LONGEST),
            "HEAL_DIR": str(self.folder),
            "HEAL_KILLS": kills,
            "HEAL_WAITS": str(STOP) if kills else "",
            "OMP_NUM_THREADS": "1",
        }
        with open(self.folder / f"out{number}", "w") as out, open(self.folder / f"err{number}", "w") as err:
            self.jobs.append(
                subprocess.Popen(
                    [
                        LOCKRUN,
                        *flags,
                        "--nproc-per-node",
                        str(ranks),
                        "--prefix",
                        "off",
                        "--event-log",
                        self.folder / "events",
                        "--max-replacements",
                        "4",
                        "--shutdown-timeout",
                        str(LONGEST),
                        PROGRAM,
                        file,
                    ],
                    env=environment,
                    stdout=out,
                    stderr=err,
                )
            )
        return number

    def said(self, number):
        return (self.folder / f"out{number}").read_text() + (self.folder / f"err{number}").read_text()

    def told(self):
        return "\n".join(f"-- lockrun {number}, {job.poll()}:\n{self.said(number)}" for number, job in enumerate(self.jobs))

    def wait(self, condition):
        deadline = time.monotonic() + LONGEST
        while not condition():
            self.assertLess(time.monotonic(), deadline, self.told())
            time.sleep(0.02)

    def wait_until_said(self, number, text):
        self.wait(lambda: text in self.said(number) or self.jobs[number].poll() is not None)
        self.assertIn(text, self.said(number), self.told())

    def wait_for_new_process(self):
        self.wait((self.folder / "waits").exists)

    def number_of(self, machine):
        """The lockrun that is machine `machine`."""
        return next(number for number in range(2) if f"machine {machine} of 2" in self.said(number))

    def finish(self, *codes):
        self.assertEqual([job.wait(timeout=LONGEST) for job in self.jobs], list(codes), self.told())

    def has_the_weights_of_an_undisturbed_training(self, name, **arguments):
        key = json.dumps(arguments, sort_keys=True)
        if key not in references:
            self.jobs = []
            self.start(self.train("undisturbed", **arguments), ["--standalone"], ranks=2, kills="")
            self.finish(0)
            references[key] = (self.folder / "undisturbed/final/model.safetensors").read_bytes()
        self.assertTrue((self.folder / name / "final/model.safetensors").read_bytes() == references[key], "the weights differ")

    def has_saved(self):
        """Once, after a step that all ranks have ended. Returns it."""
        said = self.told()
        steps = re.findall(r"stopped by SIG(?:TERM|USR1) after step (\d+); checkpoint-\1 is saved", said)
        self.assertEqual(len(steps), 1, said)
        self.assertIn(int(steps[0]), range(DEATH + 1, STOP + 2), said)
        self.assertRegex(said, r"(rank 1 .*; replaced|machine .* was lost: .*; this machine has taken its place) in [\d.]+ s, no step lost")
        return int(steps[0])

    def has_resumed(self, step):
        self.assertIn(f"checkpoint-{step}, step {step}/", self.told())

    def goes_on(self, file, flags, machines, ranks):
        """The job that has ended with 75 is started again."""
        step = self.has_saved()
        self.jobs = []
        for _ in range(machines):
            self.start(file, flags, ranks=ranks, kills="")
        self.finish(*[0] * machines)
        self.has_resumed(step)
        self.has_the_weights_of_an_undisturbed_training(file.stem)

    def test_a_machine_joins(self):
        file = self.train("joins", deterministic_world=4, num_train_epochs=6)
        self.start(file, self.flags)
        self.start(file, self.flags)
        self.wait_for_new_process()
        self.start(file, self.flags, ranks=2)
        for number in range(2):
            self.wait_until_said(number, "joins the job; a rank is just being replaced, so the ranks here are asked to save and end when it is back")
        (self.folder / "go").touch()
        self.finish(0, 0, 0)
        self.has_resumed(self.has_saved())
        said = self.told()
        self.assertEqual(len(re.findall(r"rank \d of 4: steps \d+ hash", said)), 4, said)
        self.has_the_weights_of_an_undisturbed_training("joins", deterministic_world=4, num_train_epochs=6)

    def test_another_death_while_a_machine_joins(self):
        file = self.train("joins", deterministic_world=4, num_train_epochs=6)
        self.start(file, self.flags)
        self.start(file, self.flags)
        self.wait_for_new_process()
        self.start(file, self.flags, ranks=2)
        for number in range(2):
            self.wait_until_said(number, "joins the job; a rank is just being replaced, so the ranks here are asked to save and end when it is back")
        lockrun = self.number_of(1)
        before = self.ranks(lockrun)
        os.kill(before[0], signal.SIGKILL)
        until(lambda: before != self.ranks(lockrun), "the new process is not replaced")
        (self.folder / "go").touch()
        self.finish(0, 0, 0)
        self.has_resumed(self.has_saved())
        self.has_the_weights_of_an_undisturbed_training("joins", deterministic_world=4, num_train_epochs=6)

    def leaves(self, machine):
        file = self.train(f"leaves{machine}")
        for _ in range(2):
            self.start(file, self.flags)
        self.wait_for_new_process()
        leaver = self.number_of(machine)
        self.jobs[leaver].send_signal(signal.SIGTERM)
        self.wait_until_said(leaver, "SIGTERM received; a rank is just being replaced, so it is passed on when it is back")
        (self.folder / "go").touch()
        self.finish(75, 75)
        self.goes_on(file, self.flags, machines=2, ranks=1)

    def test_the_machine_of_that_rank_leaves(self):
        self.leaves(machine=1)

    def test_another_machine_leaves(self):
        self.leaves(machine=0)

    def test_a_machine_leaves_while_a_spare_machine_takes_a_place(self):
        file, flags, kills = self.train("spare"), ["--nnodes", "2", *self.flags[2:]], f"1:{DEATH}:forward:hold"
        self.start(file, flags, kills=kills)
        self.wait(lambda: has_joined(self.folder / "events"))  # with number 0
        self.start(file, flags, kills=kills)
        self.wait((self.folder / "death0").exists)
        self.start(file, flags, kills=kills)
        self.wait_until_said(2, "waits as a spare")
        leaver, lost = self.number_of(0), self.number_of(1)
        self.jobs[lost].kill()
        self.wait_for_new_process()
        self.jobs[leaver].send_signal(signal.SIGTERM)
        self.wait_until_said(leaver, "SIGTERM received; a rank is just being replaced, so it is passed on when it is back")
        (self.folder / "go").touch()
        self.finish(*[-KILL if number == lost else 75 for number in range(3)])
        self.goes_on(file, flags, machines=2, ranks=1)

    def meets_a_replacement(self, name, number):
        """On one machine: a signal that asks the ranks to save comes while a rank is replaced."""
        file = self.train(name)
        self.start(file, ["--standalone"], ranks=2)
        self.wait_for_new_process()
        self.jobs[0].send_signal(number)
        self.wait_until_said(0, f"{number.name} received; a rank is just being replaced, so it is passed on when it is back")
        (self.folder / "go").touch()
        self.finish(75)
        self.goes_on(file, ["--standalone"], machines=1, ranks=2)

    def test_a_signal_on_one_machine(self):
        self.meets_a_replacement("alone", signal.SIGTERM)

    def test_a_signal_that_is_passed_on(self):
        """A new process has no handler of it yet."""
        self.meets_a_replacement("passed", signal.SIGUSR1)

    def ranks(self, number=0):
        """The pids of a lockrun's, in the order of their start."""

        def of(process):
            found = pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()
            return [*found, *(below for child in found for below in of(child))]

        def look():
            try:
                return [int(pid) for pid in of(self.jobs[number].pid) if os.readlink(f"/proc/{pid}/exe") == str(PROGRAM.resolve())]
            except FileNotFoundError:
                return []

        return until(look, self.told())

    def test_a_signal_to_each_process(self):
        """As scancel sends it."""
        for name in ("SIGTERM", "SIGUSR1"):
            with self.subTest(name=name):
                self.anew()
                file, signal_ = self.train(name), getattr(signal, name)
                self.start(file, ["--standalone"], ranks=2)
                self.wait_for_new_process()
                ranks = self.ranks()
                self.jobs[0].send_signal(signal_)
                self.wait_until_said(0, f"{name} received; a rank is just being replaced")
                for pid in ranks:
                    os.kill(pid, signal_)
                until(lambda: set(self.ranks()) != set(ranks), "the new process is not replaced")
                (self.folder / "go").touch()
                self.finish(75)
                self.assertIn(f"was killed by {name} at step {DEATH}; replaced in", self.said(0))
                self.goes_on(file, ["--standalone"], machines=1, ranks=2)

    def test_another_death_while_a_signal_waits(self):
        file = self.train("dies")
        self.start(file, ["--standalone"], ranks=2)
        self.wait_for_new_process()
        ranks = self.ranks()
        self.jobs[0].send_signal(signal.SIGTERM)
        self.wait_until_said(0, "so it is passed on when it is back")
        os.kill(ranks[-1], signal.SIGKILL)  # started last
        until(lambda: set(self.ranks()) != set(ranks), "the new process is not replaced")
        (self.folder / "go").touch()
        self.finish(75)
        self.goes_on(file, ["--standalone"], machines=1, ranks=2)

    def test_a_second_signal_does_not_wait(self):
        self.start(self.train("insists"), ["--standalone"], ranks=2)
        self.wait_for_new_process()
        self.jobs[0].send_signal(signal.SIGINT)
        self.wait_until_said(0, "so it is passed on when it is back")
        self.jobs[0].send_signal(signal.SIGINT)
        self.wait_until_said(0, "SIGINT received and passed on; the ranks have")
        self.finish(128 + int(signal.SIGINT))


if __name__ == "__main__":
    unittest.main()
