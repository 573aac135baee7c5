"""Strangers at the rendezvous: without the secret, without manners, without sense."""

import hashlib
import hmac
import json
import random
import socket
import unittest

from lockrun_support import wait_until
from nodes_support import AgentsTest


class StrangersTest(AgentsTest):
    def test_another_secret_is_refused_and_logged(self):
        first = self.static(0, "true")
        other = self.directory / "other"
        other.write_text("x" * 32)
        other.chmod(0o600)
        ((code, _, err),) = self.finish(self.static(1, "true", conf=f"token_file={other}"))
        self.assertEqual(code, 1)
        self.assertIn("its secret is another one; use the same token_file on all machines", err)
        (code, _, err), (code_b, _, _) = self.finish(first, self.static(1, "true"))
        self.assertEqual((code, code_b), (0, 0), err)
        self.assertIn("refused 127.0.0.1: it does not know the secret in token_file", err)

    def test_secrets_must_be_secret(self):
        loose = self.directory / "loose"
        loose.write_text("x" * 32)
        loose.chmod(0o644)
        self.assertIn("others may read it", self.finish(self.static(1, "true", conf=f"token_file={loose}"))[0][2])
        loose.write_text("short")
        loose.chmod(0o600)
        self.assertIn("at least 16 bytes", self.finish(self.static(1, "true", conf=f"token_file={loose}"))[0][2])
        self.assertIn("no secret is set", self.finish(self.static(1, "true", conf="join_timeout=0"))[0][2])

    def test_strangers_neither_crash_nor_block_it(self):
        first = self.static(0, "true")
        self.assertTrue(wait_until(lambda: self.listens()))
        randomness = random.Random(5)
        idle = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(20)]  # they say nothing at all
        sent = 0
        while sent < 100_000:
            with socket.create_connection(("127.0.0.1", self.port)) as stranger:
                start = b"" if randomness.random() < 0.3 else b"LOCKRUN1" + randomness.randbytes(16)
                messages = [randomness.randbytes(4)[randomness.randrange(4) :] + randomness.randbytes(randomness.randrange(60)) for _ in range(500)]
                try:
                    stranger.sendall(start)
                    for message in messages:
                        stranger.sendall(message)
                except OSError:  # thrown out
                    pass
                sent += len(messages)
        (code, _, err), (code_b, _, err_b) = self.finish(first, self.static(1, "true"))
        for connection in idle:
            connection.close()
        self.assertEqual((code, code_b), (0, 0), err + err_b)
        self.assertIn("is no lockrun agent", err)
        self.assertLess(len(err.splitlines()), 40, "strangers fill the log")

    def test_strangers_hold_no_places(self):
        first = self.static(0, "true")
        self.assertTrue(wait_until(lambda: self.listens()))
        idle = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(300)]
        (code, _, err), (code_b, _, err_b) = self.finish(first, self.static(1, "true"))
        for connection in idle:
            connection.close()
        self.assertEqual((code, code_b), (0, 0), err + err_b)
        self.assertIn("refused 127.0.0.1: it did not introduce itself while others wait", err)

    def test_messages_that_make_no_sense_are_survived(self):
        # Without a secret a stranger's frames are read: whole ones, well signed, with anything but a join of this job in them.
        first = self.static(0, "true", conf="join_timeout=60")
        self.assertTrue(wait_until(lambda: self.listens()))
        randomness = random.Random(11)
        values = [None, True, -1, 1e300, "", "x", [1], {}, "2", 2**70]
        keys = ["run_id", "host", "address", "store_port", "nproc", "min", "max", "node_rank", "what", "code"]
        key = hashlib.sha256(b"lockrun rendezvous\n").digest()
        sent = 0
        while sent < 20_000:
            with socket.create_connection(("127.0.0.1", self.port)) as stranger:
                ours = b"LOCKRUN1" + randomness.randbytes(16)
                try:
                    stranger.sendall(ours)
                    theirs = stranger.recv(24, socket.MSG_WAITALL)
                    for number in range(100):
                        message = {randomness.choice(keys): randomness.choice(values) for _ in range(4)}
                        message["type"] = randomness.choice(["join", "beat", "failed", "succeeded", "leave", 5, None])
                        message["run_id"] = "another"
                        body = randomness.choice([json.dumps(message).encode(), randomness.randbytes(40), b"[" * 2000])
                        code = hmac.digest(key, b"c" + number.to_bytes(8, "big") + ours + theirs + body, "sha256")
                        stranger.sendall(len(body).to_bytes(4, "big") + code + body)
                        sent += 1
                except OSError:  # thrown out
                    pass
        (code, _, err), (code_b, _, err_b) = self.finish(first, self.static(1, "true", conf="join_timeout=60"))
        self.assertEqual((code, code_b), (0, 0), err + err_b)
        self.assertIn("sent a message that makes no sense", err)


if __name__ == "__main__":
    unittest.main()
