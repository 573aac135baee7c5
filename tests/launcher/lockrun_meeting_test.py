"""How the machines of a job meet, and where clusters tell them to."""

import os
import signal
import socket
import time
import unittest

from lockrun_support import TIMEOUT, wait_until
from nodes_support import AgentsTest
from ports import free_port


class MeetingTest(AgentsTest):
    def test_an_unreachable_endpoint_is_told_within_3_seconds(self):
        process = self.start("--nnodes", 2, "--node-rank", 1, "--master-port", self.port, "--rdzv-conf", self.token + ",join_timeout=4", "true")
        line = process.stderr.readline()
        self.assertRegex(
            line,
            rf"lockrun: cannot reach the rendezvous at 127.0.0.1:{self.port} \(127.0.0.1\): Connection refused; "
            r"check that lockrun runs there with --node-rank 0 and that no firewall is in between; trying for another [1-4] s",
        )  # of 4
        self.assertEqual(process.wait(TIMEOUT), 1)
        self.assertIn("gave up after 4 s", process.stderr.read())
        process = self.start("--nnodes", 2, "--node-rank", 1, "--master-addr", "no-such-host.invalid", "--rdzv-conf", self.token, "true")
        self.assertIn("cannot find the address of no-such-host.invalid", process.stderr.readline())
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(TIMEOUT), 128 + signal.SIGINT)

    def test_machines_that_start_together_meet_at_once(self):
        quickest, attempts = TIMEOUT, 0
        while quickest > 0.05 and (attempts := attempts + 1) < 30:  # a busy machine may not let it run at once
            port = free_port()
            early = self.start("--nnodes", 2, "--node-rank", 1, "--master-port", port, "--rdzv-conf", self.token, "true")
            time.sleep(0.15)  # it has found nobody
            with socket.create_server(("127.0.0.1", port)) as late:
                late.settimeout(TIMEOUT)
                listening = time.monotonic()
                late.accept()[0].close()
                quickest = min(quickest, time.monotonic() - listening)
            early.kill()
            early.communicate()
        self.assertLess(quickest, 0.2)

    def test_too_few_machines(self):
        code, _, err = self.run_lockrun("--nnodes", 2, "--master-port", self.port, "--rdzv-conf", self.token + ",join_timeout=1", "true")
        self.assertEqual(code, 1)
        self.assertRegex(err, r"too few machines came within 1 s: 1 of 2 here \(\S+\); missing: --node-rank 1\n")

    def test_different_flags_are_refused(self):
        first = self.static(0, "true")
        self.assertIn("refused by the rendezvous", self.finish(self.static(1, "true", nnodes=3))[0][2])
        self.assertIn("is for --rdzv-id none, not x", self.finish(self.static(1, "true", "--rdzv-id", "x"))[0][2])
        self.assertEqual([code for code, _, _ in self.finish(first, self.static(1, "true"))], [0, 0])

    def test_torchruns_side_is_told(self):
        from torch.distributed import TCPStore

        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        code, _, err = self.run_lockrun(
            "--nnodes", 2, "--node-rank", 1, "--master-port", store.port, "--rdzv-conf", self.token + ",join_timeout=1", "true"
        )
        self.assertEqual(code, 1)
        self.assertRegex(err, r"has not answered for \d+ s|closes the connection without an answer")
        self.assertIn("torchrun's agents cannot be joined", err)

    def test_another_protocol_is_final(self):
        with socket.create_server(("127.0.0.1", 0)) as other:
            agent = self.start("--nnodes", 2, "--node-rank", 1, "--master-port", other.getsockname()[1], "--rdzv-conf", self.token, "true")
            other.settimeout(TIMEOUT)
            with other.accept()[0] as connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                ((code, _, err),) = self.finish(agent)
        self.assertEqual(code, 1)
        self.assertIn("is no rendezvous of lockrun (torchrun's agents cannot be joined", err)

    def test_a_rendezvous_that_answers_late(self):
        # The port accepts; what serves there is stopped until the second machine has been waiting for its greeting.
        first = self.static(0, "true")
        (server,) = wait_until(lambda: self.called("lockrun-rdzv", self.processes()))
        os.kill(server, signal.SIGSTOP)
        second = self.static(1, "true")
        self.assertRegex(second.stderr.readline(), r"accepts the connection, but has not answered for \d+ s: .*; waiting\n")
        self.assertIsNone(second.poll())
        os.kill(server, signal.SIGCONT)
        (code_a, _, err_a), (code_b, _, err_b) = self.finish(first, second)
        self.assertEqual((code_a, code_b), (0, 0), err_a + err_b)

    def test_the_address_for_the_others_can_be_chosen(self):
        code, _, err = self.run_lockrun(
            "--nnodes", 2, "--master-port", self.port, "--local-addr", "192.0.2.1", "--rdzv-conf", self.token + ",join_timeout=1", "true"
        )
        self.assertEqual((code, err), (1, "lockrun: error: --local-addr 192.0.2.1: this machine has no such address\n"))
        first = self.static(0, "echo $MASTER_ADDR", "--local-addr", "127.0.0.1")
        (code, out, err), (code_b, _, err_b) = self.finish(first, self.static(1, "true"))
        self.assertEqual((code, code_b, out), (0, 0, "127.0.0.1\n"), err + err_b)

    def test_slurm_needs_no_flags(self):
        agents = []
        for node in range(2):
            self.environment.update(
                SLURM_STEP_ID="1",
                SLURM_JOB_ID=str(os.getpid()),
                SLURM_STEP_NUM_NODES="2",
                SLURM_STEP_NUM_TASKS="2",
                SLURM_NODEID=str(node),
                SLURM_STEP_NODELIST="localhost,x",
            )
            agents.append(self.start("sh", "-c", "echo $RANK of $WORLD_SIZE"))
        results = self.finish(*agents)
        self.assertEqual([(code, out) for code, out, _ in results], [(0, "0 of 2\n"), (0, "1 of 2\n")], results)

    def pods(self, variables):
        """Output of the ranks of two pods, each a lockrun without flags. `variables`: a pod's, by its number."""
        agents = []
        for pod in range(2):
            self.environment.update({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443", "PYTHONUNBUFFERED": "1"})
            self.environment.update({name: str(value) for name, value in variables(pod).items()})
            agents.append(self.start("--prefix", "off", "sh", "-c", "echo $RANK of $WORLD_SIZE in $GROUP_RANK"))
        results = self.finish(*agents)
        self.assertEqual([code for code, _, _ in results], [0, 0], results)
        return [sorted(out.splitlines()) for _, out, _ in results]

    # What Kubeflow's operator sets in the pods of a PyTorchJob: newer ones, older ones, and with an elasticPolicy.
    def test_pytorch_job(self):
        outs = self.pods(
            lambda pod: {
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": self.port,
                "PET_MASTER_ADDR": "localhost",
                "PET_MASTER_PORT": self.port,
                "WORLD_SIZE": 4,
                "RANK": pod,
                "PET_NODE_RANK": pod,
                "PET_NNODES": 2,
                "PET_NPROC_PER_NODE": 2,
            }
        )
        self.assertEqual(outs, [["0 of 4 in 0", "1 of 4 in 0"], ["2 of 4 in 1", "3 of 4 in 1"]])

    def test_older_pytorch_job(self):
        outs = self.pods(lambda pod: {"MASTER_ADDR": "localhost", "MASTER_PORT": self.port, "WORLD_SIZE": 2, "RANK": pod})
        self.assertEqual(outs, [["0 of 2 in 0"], ["1 of 2 in 1"]])

    def test_elastic_pytorch_job(self):
        outs = self.pods(
            lambda pod: {
                "PET_RDZV_BACKEND": "c10d",
                "PET_RDZV_ENDPOINT": f"localhost:{self.port}",
                "PET_RDZV_ID": "job",
                "PET_NNODES": "1:2",
                "PET_MAX_RESTARTS": 3,
                "PET_NPROC_PER_NODE": 1,
            }
        )
        self.assertEqual(sorted(outs), [["0 of 2 in 0"], ["1 of 2 in 1"]])


if __name__ == "__main__":
    unittest.main()
