"""lockstep.Recovery: a Python rank that dies is replaced, and the weights of a DDP model end with the bits of an undisturbed job."""

import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import unittest

from extent import first_of

LOCKRUN = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"]) / "lockrun"
RANK = pathlib.Path(__file__).parent / "recovery_rank.py"


class Job:
    def __init__(self, ranks, kills="", *trainings, replacements=9, spares=0, **variables):
        self.folder = tempfile.TemporaryDirectory()
        environment = {
            **os.environ,
            "LOCKSTEP_REPLACEMENT_TIMEOUT": "600",
            "HEAL_KILLS": kills,
            "HEAL_DIR": self.folder.name,
            "OMP_NUM_THREADS": "1",
            "PYTHON_EXEC": sys.executable,
            **variables,
        }
        healing = ["--max-replacements", str(replacements)] if replacements else []
        if spares:
            events = pathlib.Path(self.folder.name) / "events.jsonl"
            environment["HEAL_EVENTS"] = str(events)
            healing += ["--spares", str(spares), "--event-log", events]
        self.process = subprocess.Popen(
            [LOCKRUN, "--standalone", "--nproc-per-node", str(ranks), "--prefix", "off", *healing, RANK, *trainings],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self):
        self.out, self.err = self.process.communicate(timeout=600)
        self.folder.cleanup()
        self.told = self.out + self.err
        return self.process.returncode

    def hashes(self, training):
        return sorted(re.findall(rf"^{re.escape(training)}: rank (\d+): steps (\d+) hash (\w+)", self.out, re.M))


class OverMachines(Job):
    """Two machines with a rank each, played by lockruns of this one."""

    def __init__(self, kills, training):
        self.folder = tempfile.TemporaryDirectory()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        token = pathlib.Path(self.folder.name) / "token"
        token.write_text("0123456789abcdef0123456789abcdef\n")
        token.chmod(0o600)
        environment = {**os.environ, "HEAL_KILLS": kills, "HEAL_DIR": self.folder.name, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": sys.executable}
        self.processes = [
            subprocess.Popen(
                [
                    LOCKRUN,
                    "--nnodes",
                    "2",
                    "--node-rank",
                    str(number),
                    "--master-port",
                    str(port),
                    "--rdzv-conf",
                    f"token_file={token}",
                    "--nproc-per-node",
                    "1",
                    "--prefix",
                    "off",
                    "--max-replacements",
                    "9",
                    RANK,
                    training,
                ],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in (0, 1)
        ]

    def end(self):
        said = [process.communicate(timeout=600) for process in self.processes]
        self.folder.cleanup()
        self.out = "".join(out for out, _ in said)
        self.told = self.out + "".join(err for _, err in said)
        self.codes = [process.returncode for process in self.processes]


class Healed(unittest.TestCase):
    maxDiff = None
    trainings = ()

    @classmethod
    def setUpClass(cls):
        """All trainings without a death, in one job: each start of Python takes seconds of processor time."""
        cls.calm = Job(2, "", *cls.trainings, replacements=0)
        if cls.calm.end() != 0:
            raise RuntimeError(f"the trainings without a death ended with exit code {cls.calm.process.returncode}:\n{cls.calm.told}")

    def undisturbed(self, training):
        hashes = self.calm.hashes(training)
        self.assertEqual([(rank, steps) for rank, steps, _ in hashes], [("0", "10"), ("1", "10")], self.calm.told)
        # Statistics of a rank's own batches differ, sent around they still do until the next forward.
        self.assertEqual(len({hashed for _, _, hashed in hashes}), 2 if "batch_norm" in training else 1, self.calm.told)
        return hashes

    def heals(self, kills, training, replaced=r"replaced in [\d.]+ s, no step lost", **options):
        killed = Job(2, " ".join(kills), training, **options)
        self.assertEqual(killed.end(), 0, killed.told)
        self.assertEqual(killed.hashes(training), self.undisturbed(training), killed.told)
        self.assertEqual(len(re.findall(replaced, killed.err)), len(kills), killed.told)
        return killed


class PythonRecovery(Healed):
    trainings = ("plain",)

    def test_the_bits_of_an_undisturbed_job(self):
        # Each place, both ranks, signals, exit and an exception. Never both ranks at once.
        killed = self.heals("1:2:data:9 0:3:backward:11 1:4:after:9 0:6:between:exit 1:7:before:raise 0:9:forward:9".split(), "plain")
        self.assertIn("lockrun: 6 ranks were replaced, no step lost", killed.err)


class KindsOfTrainings(Healed):
    trainings = ("plain", "own_batch_norm", "batch_norm", "fp16+swallow", "built_in", "loader", "accumulate+twice+own_batch_norm", "slow")

    def test_running_statistics_of_own_batches(self):
        kills = first_of("1:2:data:9 0:3:backward:11 1:4:after:9 0:6:before:9 1:8:between:exit 0:9:forward:9".split(), 2)
        for training in ("own_batch_norm", "batch_norm"):
            with self.subTest(training):
                self.heals(kills, training)

    def test_communication_hooks_without_a_state(self):
        for training in ("fp16+swallow", "built_in"):  # with one of them the body catches what a backward throws
            with self.subTest(training):
                self.heals(first_of(("1:3:backward:9", "0:6:after:9")), training)

    def test_a_loader_with_worker_processes(self):
        self.heals(first_of(("1:3:backward:9", "0:6:after:9", "0:8:between:exit")), "loader")
        loaded = Job(2, "1:5:data:11", "loader")
        self.assertEqual(loaded.end(), 0, loaded.told)
        self.assertEqual(loaded.hashes("loader"), self.undisturbed("plain"), loaded.told)

    def test_a_death_while_another_rank_is_in_the_constructor(self):
        self.heals(["0:0:data:9"], "slow")

    def test_accumulated_gradients_and_another_recovery(self):
        self.heals(first_of(("1:3:backward:9", "0:4:forward:11", "0:6:after:9"), 2), "accumulate+twice+own_batch_norm")

    def test_a_spare_takes_the_place(self):
        killed = self.heals(
            ["1:2:data:9", "0:5:after:9"], "plain", r"replaced by spare 0 in [\d.]+ s, no step lost", spares=1, HEAL_BACKEND="cpu:lockstep"
        )
        self.assertIn("lockrun: 2 ranks were replaced (2 by spares), no step lost", killed.err)

    def test_over_machines(self):
        kills = first_of("1:2:data:9 0:3:backward:11 1:4:after:9 0:6:before:9 1:6:forward:9".split(), 3)
        killed = OverMachines(" ".join(kills), "plain")
        killed.end()
        self.assertEqual(killed.codes, [0, 0], killed.told)
        self.assertEqual(killed.hashes("plain"), self.undisturbed("plain"), killed.told)
        self.assertEqual(len(re.findall(r"replaced in [\d.]+ s, no step lost", killed.told)), len(kills), killed.told)

    def test_what_cannot_be_handed_over_is_said(self):
        for training, told in (
            ("power", ", because of rank 0: the communication hook powerSGD_hook of a"),
            ("gloo_before", ", because of rank 0: it has made a process group by new_group()"),
            ("late", " from here on: the program has made a process group after Recovery, which a new process could not join"),
            ("mixed", ", because of rank 0: the group of all ranks has another backend for other devices"),
        ):
            with self.subTest(training):
                mixed = {"HEAL_BACKEND": "cpu:lockstep,cuda:gloo"} if training == "mixed" else {}
                job = Job(2, "1:3:data:9", "plain" if mixed else training, **mixed)
                self.assertEqual(job.end(), 137, job.told)
                self.assertEqual(job.err.count("Recovery: ranks that die are not replaced" + told), 1, job.told)
                why = (
                    "the program has not reached lockstep::Recovery"
                    if training in ("gloo_before", "mixed")
                    else "rank 0 no longer hands its state over"
                )
                self.assertIn("rank 1 was killed by SIGKILL and is not replaced: " + why, job.err)


class Items(unittest.TestCase):
    """What a rank keeps of a step, without a job."""

    @classmethod
    def setUpClass(cls):
        sys.path.insert(0, str(pathlib.Path(__file__).parent))
        import without_dynamo  # noqa: F401, PLC0415

        import lockstep.recovery  # noqa: PLC0415

        global torch
        torch, cls.lockstep = lockstep.recovery.torch, lockstep

    def test_all_ways_to_write_weights_are_seen(self):
        def through_data(weight):
            weight.data[1] += 1

        def through_numpy(weight):
            weight.detach().numpy()[:] += 1

        def other_data(weight):
            weight.data = weight.data + 1

        def in_place(weight):
            with torch.no_grad():
                weight.add_(1)

        for write in through_data, through_numpy, other_data, in_place:
            for is_trained in True, False:
                with self.subTest(write.__name__, is_trained=is_trained):
                    module = torch.nn.Linear(4, 4)
                    weight = module.weight.requires_grad_(is_trained)
                    items = self.lockstep.recovery._Items({"module": module})
                    items.keep()
                    self.assertFalse(items.are_written())
                    write(weight)
                    self.assertTrue(items.are_written())

    def test_a_buffer_that_a_forward_replaces_is_restored(self):
        module = torch.nn.Module()
        module.register_buffer("average", torch.ones(2))
        items = self.lockstep.recovery._Items({"module": module})
        module.average = module.average * 2
        items.keep()
        module.average = module.average + 5
        items.restore()
        self.assertEqual(module.average.tolist(), [2, 2])

    def test_running_statistics_that_move_are_refused(self):
        def double(module):
            module.double()

        def other_data(module):
            module.running_mean.data = torch.ones(3)

        def replace(module):
            module.running_var = torch.ones(3)

        for move in double, other_data, replace:
            with self.subTest(move.__name__):
                module = torch.nn.BatchNorm1d(3)
                recovery = self.lockstep.Recovery({"module": module, "optimizer": torch.optim.SGD(module.parameters(), 0.1)})
                module(torch.ones(2, 3))
                recovery._check_own()
                move(module)
                with self.assertRaisesRegex(RuntimeError, "running statistics of a BatchNorm are another tensor than when Recovery was made"):
                    recovery._check_own()


if __name__ == "__main__":
    unittest.main()
