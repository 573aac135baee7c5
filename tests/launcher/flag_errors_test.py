"""Errors name each flag of lockrun as the user gave it: with underscores, or as a variable. That holds for values that the command
line refuses, and for those that are found later."""

import re
import unittest

from lockrun_support import LockrunTest
from ports import free_port

MEETING = ("--nnodes", "2", "--master-port", "{port}", "--rdzv-conf", "join_timeout=1")
# By flag with a value: a value that cannot work, and what else is needed for it to be noticed.
BAD = {
    "nproc-per-node": ("many",),
    "nnodes": ("1:many",),
    "max-restarts": ("-1",),
    "max-replacements": ("-1",),
    "spares": ("1",),
    "restart-delay": ("soon",),
    "restart-refill": ("5x",),
    "numa-binding": ("chair",),
    "num-proc": ("many",),
    "hosts": ("a:many",),
    "hostfile": ("absent",),
    "ssh-port": ("22",),
    "ssh-identity-file": ("key",),
    "start-method": ("vfork",),
    "stdin": ("somebody",),
    "node-rank": ("-1",),
    "master-addr": ("no-such-host.invalid", *MEETING, "--node-rank", "1"),
    "master-port": ("65536",),
    "rdzv-backend": ("etcd-v2",),
    "rdzv-endpoint": ("a:b:c", "--nnodes", "2"),
    "rdzv-conf": ("join_timeout=soon",),
    "local-addr": ("no-such-host.invalid", *MEETING),
    "shutdown-timeout": ("soon",),
    "leftover-timeout": ("soon",),
    "hang-timeout": ("soon",),
    "hang-action": ("wait",),
    "signals-to-handle": ("SIGFOO",),
    "monitor-interval": ("soon",),
    "event-log": ("absent/events.jsonl",),
    "event-log-handler": ("mine",),
    "prefix": ("blue",),
    "log-dir": ("file/logs",),
    "redirects": ("0:4",),
    "tee": ("0:x",),
    "local-ranks-filter": ("x",),
    "logs-specs": ("mine",),
    "print": ("html",),
    "print-completion": ("fish",),
}
# Any text will do.
FREE = {"role", "rdzv-id", "log-line-prefix-template", "duplicate-stdout-filters", "duplicate-stderr-filters"}
# A variable has no effect where they are not needed.
NEEDED_IF_TYPED = {"ssh-port", "ssh-identity-file"}


class FlagErrorsTest(LockrunTest):
    def setUp(self):
        super().setUp()
        (self.directory / "file").write_text("")

    def error_of(self, *words):
        code, out, err = self.run_lockrun(*words, "true")
        self.assertIn(code, (1, 2), err)
        self.assertEqual(out, "")
        errors = [line for line in err.splitlines() if line.startswith("lockrun: error: ")]
        self.assertEqual(len(errors), 1, err)
        return errors[0].removeprefix("lockrun: error: ")

    def rest(self, words):
        return [word.format(port=free_port()) for word in words]

    def test_the_table_is_whole(self):
        flags = set(re.findall(r"'n@--([a-z-]+)@", self.run_lockrun("--print", "tcsh")[1]))
        self.assertGreater(len(flags), 40)
        self.assertEqual(flags, set(BAD) | FREE)

    def test_the_name_is_the_typed_one(self):
        for flag, (value, *more) in BAD.items():
            typed = "--" + flag.replace("-", "_")
            for words in ([typed, value], [f"{typed}={value}"]):
                with self.subTest(" ".join(words)):
                    error = self.error_of(*words, *self.rest(more))
                    self.assertRegex(error, rf"(^|\(){typed}\b")
                    if "-" in flag:
                        self.assertNotIn(f"--{flag}", error)

    def test_the_value_is_quoted_whole(self):
        for flag in ("rdzv-endpoint", "nnodes", "restart-refill", "redirects", "tee", "rdzv-conf", "event-log", "log-dir", "local-addr"):
            with self.subTest(flag):
                value, *more = BAD[flag]
                self.assertIn(f"--{flag} {value}: ", self.error_of(f"--{flag}", value, *self.rest(more)))

    def test_a_variable_is_named(self):
        for flag, (value, *more) in BAD.items():
            variable = "PET_" + flag.replace("-", "_").upper()
            if flag in NEEDED_IF_TYPED:
                continue
            with self.subTest(variable):
                self.environment[variable] = value
                error = self.error_of(*self.rest(more))
                self.assertIn(f"environment variable {variable}", error)
                self.assertNotIn(f"--{flag} ", error)
                del self.environment[variable]

    def test_a_variable_is_named_with_its_value(self):
        for flag, value in (("event-log", "absent/events.jsonl"), ("log-dir", "file/logs"), ("max-restarts", "often")):
            variable = "PET_" + flag.replace("-", "_").upper()
            with self.subTest(variable):
                self.environment[variable] = value
                self.assertTrue(self.error_of().startswith(f"environment variable {variable}={value}: "), self.error_of())
                del self.environment[variable]

    def test_errors_about_several_flags(self):
        (self.directory / "token").write_text("short")
        (self.directory / "token").chmod(0o600)
        for words, expected in (
            (["--numa_binding", "exclusive", "--nproc_per_node", "4096"], "--numa_binding exclusive: "),
            (["--rdzv_conf", "token_file=token", "--nnodes", "2"], "--rdzv_conf token_file=token: expected a secret"),
            (["--rdzv_conf", "token_file=absent", "--nnodes", "2"], "--rdzv_conf token_file=absent: cannot open absent: No such file"),
            (["--num_proc", "9", "-H", "a:1,b:2"], "--num_proc 9: the hosts have slots for 3"),
            (["-np", "9", "-H", "a:1,b:2"], "-np 9: the hosts have slots for 3"),
            (["--rdzv_backend=c10d", "--nnodes=2"], "--rdzv_backend c10d with several machines needs --rdzv-endpoint HOST:PORT"),
            (["--nproc_per_node", "xpu"], "--nproc_per_node xpu: lockrun counts no Intel GPUs; use a number, cpu or auto"),
        ):
            with self.subTest(" ".join(words)):
                self.assertTrue(self.error_of(*words).startswith(expected), self.error_of(*words))


if __name__ == "__main__":
    unittest.main()
