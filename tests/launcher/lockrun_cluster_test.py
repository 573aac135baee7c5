"""Real mpirun and a real SLURM on two hosts, a and b, which share no memory; and on one host alone."""

import os
import pathlib
import shutil
import subprocess
import time
import unittest

from lockrun_support import LOCKRUN, make_directory, processes_with, wait_until
from slurm import Slurm, find
from two_hosts import TwoHosts, become_root

RANK = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "all_reduce_rank")
# Seconds for what SLURM does, whose programs ask the controller for everything, on a busy machine.
PATIENCE = 150


class ClusterTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = make_directory()
        cls.addClassCleanup(shutil.rmtree, cls.directory)
        (cls.directory / "release").touch()
        (cls.directory / "scratch").mkdir()
        (cls.directory / "slurm").mkdir()
        cls.two = TwoHosts()
        cls.addClassCleanup(cls.two.stop)
        cls.slurm = Slurm(cls.two, cls.directory / "slurm")
        cls.addClassCleanup(lambda: (cls.two.stop(), cls.slurm.stop()))
        cls.mpirun = find("mpirun")
        cls.marker = f"LOCKRUN_TEST_MARKER={cls.directory.name}"
        cls.environment = dict(
            os.environ,
            **cls.slurm.environment,
            TMPDIR=str(cls.directory / "scratch"),
            LOCKRUN_TEST_MARKER=cls.directory.name,
            OMP_NUM_THREADS="1",
            OMPI_ALLOW_RUN_AS_ROOT="1",
            OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        )

    def run_on_a(self, *command, **environment):
        """(exit code, standard output, standard error) of what starts a job, seen to its end."""
        process = subprocess.run(
            self.two.hosts["a"].command("env", "-C", self.directory, *map(str, command)),
            text=True,
            timeout=PATIENCE,
            capture_output=True,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
        )
        self.assertTrue(wait_until(lambda: not processes_with(self.marker), PATIENCE), "processes were left behind")
        return process.returncode, process.stdout, process.stderr

    def check(self, size, *command, **environment):
        code, out, err = self.run_on_a(*command, **environment)
        expected = [f"rank {rank} of {size} sum {size * (size + 1) // 2}" for rank in range(size)]
        self.assertEqual((code, sorted(out.splitlines())), (0, expected), err)
        return err

    def test_mpirun_program(self):
        self.check(2, self.mpirun, "-np", 2, "--oversubscribe", RANK)

    def test_mpirun_program_on_two_hosts(self):
        self.check(4, "salloc", "-N2", "--ntasks-per-node=2", self.mpirun, RANK)

    def test_mpirun_lockrun_on_two_hosts(self):
        err = self.check(4, "salloc", "-N2", "--ntasks-per-node=1", self.mpirun, LOCKRUN, "--prefix", "off", "--nproc-per-node", 2, RANK)
        self.assertIn("ranks 2 to 3 of 4, on 10.77.0.2", err)

    def test_srun_program(self):
        self.check(2, "srun", "-N1", "-n2", RANK)

    def test_srun_program_on_two_hosts(self):
        self.check(4, "srun", "-N2", "--ntasks-per-node=2", RANK)

    def test_ranks_by_hand_on_two_hosts(self):
        # No launcher says how many ranks a host has: what the pods of a PyTorchJob find, too.
        script = "RANK=$SLURM_PROCID WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=23456 exec " + RANK
        self.check(2, "srun", "-N2", "--ntasks-per-node=1", "sh", "-c", script, LOCKSTEP_BACKEND="gloo")

    def test_srun_lockrun(self):
        self.check(2, "srun", "-N1", "-n1", LOCKRUN, "--prefix", "off", "--nproc-per-node", 2, RANK)

    def test_srun_lockrun_on_two_hosts(self):
        err = self.check(4, "srun", "-N2", "--ntasks-per-node=1", LOCKRUN, "--prefix", "off", "--nproc-per-node", 2, RANK)
        self.assertIn("ranks 2 to 3 of 4, on 10.77.0.2", err)

    def test_sbatch_without_srun_is_noticed(self):
        script = self.directory / "script.sh"
        script.write_text(f"#!/bin/sh\nexec {LOCKRUN} --prefix off true\n")
        code, _, err = self.run_on_a("sbatch", "--wait", "-N2", "--output=script.out", script)
        self.assertEqual(code, 0, err)
        self.assertIn("lockrun: warning: SLURM gave this job 2 nodes, but all ranks run on this one", (self.directory / "script.out").read_text())

    def test_the_recipe_requeues_the_job(self):
        page = (pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"]) / "docs/lockrun/recipes.md").read_text()
        recipe = page[page.index("#!/bin/bash\n#SBATCH") :].partition("```")[0]
        program = self.directory / "program"
        program.write_text(
            "#!/bin/sh\n[ $SLURM_RESTART_COUNT ] && { echo resumed $RANK of $WORLD_SIZE; exit; }\n"
            "trap 'exit 75' TERM; touch up$RANK; while :; do sleep 0.05; done\n"
        )
        program.chmod(0o755)
        script = self.directory / "recipe.sh"
        script.write_text(recipe.replace("srun lockrun", f"srun {LOCKRUN} --prefix off").replace("--nproc-per-node 4", "--nproc-per-node 2"))
        batch = subprocess.Popen(
            self.two.hosts["a"].command(
                "env", "-C", self.directory, "sbatch", "--wait", "--job-name=recipe", "--open-mode=append", "--output=recipe.out", script
            ),
            env=self.environment,
        )
        for rank in range(4):
            self.assertTrue(wait_until((self.directory / f"up{rank}").exists, PATIENCE))
        code, _, err = self.run_on_a_beside("scancel", "--signal=TERM", "--name=recipe")  # as --signal=TERM@120 does
        self.assertEqual(code, 0, err)
        self.check_that_it_resumes("recipe", batch)

    def test_a_failure_under_srun_is_the_steps(self):
        code, _, err = self.run_on_a("srun", "-N2", "--ntasks-per-node=1", LOCKRUN, "sh", "-c", "[ $RANK = 0 ] && exec sleep 60; exit 7")
        self.assertEqual(code, 7, err)
        self.assertIn("lockrun: rank 1 on b ended with exit code 7; ending the ranks here\n", err)

    def test_several_lockruns_on_a_machine_are_refused(self):
        for command in (("srun", "-N1", "-n2"), (self.mpirun, "-np", 2, "--oversubscribe")):
            code, out, err = self.run_on_a(*command, LOCKRUN, RANK)
            self.assertEqual((code, out), (2, ""), err)
            self.assertIn("started 2 lockruns on this machine; let", err)

    def test_slurms_warning_signal_reaches_the_ranks(self):
        script = "trap 'touch warned$RANK; exit 0' USR1; touch ready$RANK; while :; do sleep 0.02; done"
        process = subprocess.Popen(
            self.two.hosts["a"].command(
                "env", "-C", self.directory, "srun", "--job-name=warned", "-N2", "--ntasks-per-node=1", LOCKRUN, "sh", "-c", script
            ),
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        self.addCleanup(process.stdout.close)
        for rank in range(2):
            self.assertTrue(wait_until((self.directory / f"ready{rank}").exists, PATIENCE))
        code, _, err = self.run_on_a_beside("scancel", "--signal=USR1", "--name=warned")
        self.assertEqual(code, 0, err)
        out, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 0, out)
        self.assertTrue((self.directory / "warned0").exists() and (self.directory / "warned1").exists())

    def batch(self, name, *flags):
        """A job of two lockruns with two ranks each, which save when they are told to end; requeued, they end."""
        program = self.directory / name
        program.write_text(
            f"#!/bin/sh\n[ $SLURM_RESTART_COUNT ] && {{ echo resumed $RANK of $WORLD_SIZE; exit; }}\n"
            f"trap 'touch {name}.saved$RANK; exit 75' TERM; touch {name}.up$RANK; while :; do sleep 0.05; done\n"
        )
        program.chmod(0o755)
        script = self.directory / f"{name}.sh"
        script.write_text(
            f"#!/bin/sh\nsrun --ntasks-per-node=1 {LOCKRUN} --prefix off --nproc-per-node 2 ./{name}\n"
            "code=$?; echo code $code; [ $code = 75 ] && scontrol requeue $SLURM_JOB_ID\nexit $code\n"
        )
        job = subprocess.Popen(
            self.two.hosts["a"].command(
                "env",
                "-C",
                self.directory,
                "sbatch",
                "--wait",
                f"--job-name={name}",
                "-N2",
                "--open-mode=append",
                f"--output={name}.out",
                *flags,
                script,
            ),
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for rank in range(4):
            self.assertTrue(wait_until((self.directory / f"{name}.up{rank}").exists, PATIENCE), self.output(name))
        return job

    def output(self, name):
        file = self.directory / f"{name}.out"
        return file.read_text() if file.exists() else ""

    def check_that_all_saved(self, name):
        for rank in range(4):
            self.assertTrue(wait_until((self.directory / f"{name}.saved{rank}").exists, PATIENCE), self.output(name))

    def check_that_it_resumes(self, name, job):
        """`job`: the sbatch that waits for it."""
        looked_at, waiting = time.monotonic(), set()

        def resumed():
            nonlocal looked_at, waiting
            if job.poll() is not None or self.output(name).count("resumed") == 4:
                return True
            if time.monotonic() > looked_at + 3:
                waiting = self.start_soon(name, waiting)
                looked_at = time.monotonic()
            time.sleep(0.2)
            return False

        has_resumed = wait_until(resumed, 2 * PATIENCE)
        try:
            code = job.wait(PATIENCE if has_resumed else 0)
        except subprocess.TimeoutExpired:
            code = None
        if (code, self.output(name).count("resumed")) != (0, 4):
            self.fail(f"sbatch ended with {code}\n{self.output(name)}{self.slurm.describe()}")

    def start_soon(self, name, waiting_before):
        """SLURM starts a requeued job after two minutes at the earliest, unless it is told to. In the second in which the job has
        ended its nodes would refuse it ("already killed"), and SLURM then drops it ("Job credential revoked"): so it is told at
        the second look. Returns what waits."""
        _, jobs, _ = self.run_on_a_beside("squeue", "--noheader", f"--name={name}", "--states=PENDING", "--format=%i")
        for number in waiting_before.intersection(jobs.split()):
            self.run_on_a_beside("scontrol", "update", f"JobId={number}", "StartTime=now")
        return set(jobs.split())

    def test_scancel_lets_the_ranks_save(self):
        job = self.batch("canceled")
        self.assertEqual(self.run_on_a_beside("scancel", "--name=canceled")[0], 0)
        self.check_that_all_saved("canceled")
        job.wait(PATIENCE)
        self.assertTrue(wait_until(lambda: not processes_with(self.marker), PATIENCE), "processes were left behind")
        self.assertNotIn("resumed", self.output("canceled"))

    def test_a_preempted_job_saves_and_is_resumed(self):
        job = self.batch("preempted", "--requeue", "--exclusive")
        code, out, err = self.run_on_a_beside("srun", "--partition=urgent", "--exclusive", "-N2", "-n2", "echo", "urgent")
        self.assertEqual((code, out), (0, "urgent\n" * 2), err + self.output("preempted"))
        self.check_that_all_saved("preempted")
        self.check_that_it_resumes("preempted", job)

    def test_a_heterogeneous_job(self):
        # Two components with other numbers of tasks and cores; lockrun's ranks are numbered over both.
        err = self.check(
            4,
            "srun",
            "-N1",
            "-n1",
            "-c1",
            LOCKRUN,
            "--prefix",
            "off",
            RANK,
            ":",
            "-N1",
            "-n1",
            "-c3",
            LOCKRUN,
            "--prefix",
            "off",
            "--nproc-per-node",
            3,
            RANK,
        )
        self.assertIn("ranks 1 to 3 of 4, on 10.77.0.2", err)

    def run_on_a_beside(self, *command):
        process = subprocess.run(self.two.hosts["a"].command(*command), text=True, timeout=PATIENCE, capture_output=True, env=self.environment)
        return process.returncode, process.stdout, process.stderr


if __name__ == "__main__":
    become_root()
    unittest.main()
