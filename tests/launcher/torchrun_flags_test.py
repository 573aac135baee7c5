"""Each flag of torchrun, from 2.13 to the newest, is accepted or refused with a reason, in both spellings."""

import ast
import importlib.util
import pathlib
import unittest

from lockrun_support import LockrunTest

# A flag's words, and where it is refused a part of the reason. "2.14": new there. 2.15 has no others.
FLAGS = {
    "--nnodes": ("1:1",),
    "--nproc-per-node": ("2",),
    "--rdzv-backend": ("c10d",),
    "--rdzv-endpoint": ("localhost:0",),
    "--rdzv-id": ("run",),
    "--rdzv-conf": ("join_timeout=60",),
    "--standalone": (),
    "--max-restarts": ("3",),
    "--monitor-interval": ("0.5",),
    "--start-method": ("spawn",),
    "--event-log-handler": ("null",),
    "--role": ("trainer",),
    "-m": (),
    "--module": (),
    "--no-python": (),
    "--run-path": (),
    "--log-dir": ("logs",),
    "-r": ("0",),
    "--redirects": ("0",),
    "-t": ("0",),
    "--tee": ("0",),
    "--log-line-prefix-template": ("${hostname}:${rank}: ",),  # 2.14
    "--local-ranks-filter": ("0",),
    "--duplicate-stdout-filters": ("error",),
    "--duplicate-stderr-filters": ("error",),
    "--node-rank": ("0",),
    "--master-addr": ("127.0.0.1",),
    "--master-port": ("29511",),
    "--local-addr": ("127.0.0.1",),
    "--logs-specs": ("mine",),
    "--numa-binding": ("node",),
    "--signals-to-handle": ("SIGTERM,SIGUSR1",),
    "--virtual-local-rank": (),
    "--shutdown-timeout": ("5",),
    "--print-completion": ("bash",),  # 2.14
    # torch.distributed.launch's
    "--use-env": (),
    "--local-rank": (),
}
REFUSED = {"--logs-specs": "names Python code, which lockrun does not run; see --log-dir, --redirects and --tee"}
MODULES = ("-m", "--module")
TARGETS = {"--run-path": "script.py"}


def flags_of_torchrun():
    """Of the installed one, from its source: importing it takes seconds."""
    source = pathlib.Path(importlib.util.find_spec("torch").origin).parent / "distributed/run.py"
    for call in ast.walk(ast.parse(source.read_text())):
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument":
            for word in call.args:
                if isinstance(word, ast.Constant) and word.value.startswith("-"):
                    yield word.value.replace("_", "-")


class TorchrunFlagsTest(LockrunTest):
    def test_the_table_has_the_flags_of_the_installed_torchrun(self):
        installed = set(flags_of_torchrun())
        self.assertGreater(len(installed), 30)
        self.assertEqual(installed - set(FLAGS), set())

    def test_each_flag_is_accepted_or_refused_with_a_reason(self):
        (self.directory / "script.py").write_text("")
        for flag, values in FLAGS.items():
            target = ["json.tool"] if flag in MODULES else [TARGETS.get(flag, "true")]
            for typed in {flag, flag.replace("-", "_").replace("__", "--", 1) if flag.startswith("--") else flag}:
                words = [typed, *values]
                with self.subTest(" ".join(words)):
                    code, out, err = self.run_lockrun(*words, "--dry-run", *target)
                    if flag in REFUSED:
                        self.assertEqual((code, out), (2, ""))
                        self.assertIn(f"{typed} {values[0]}: {REFUSED[flag]}", err)
                    else:
                        self.assertEqual((code, err), (0, ""))
                        self.assertNotEqual(out, "")

    def test_a_flag_given_twice_takes_the_last_value(self):
        for flag, values in FLAGS.items():
            if not values or flag in REFUSED:
                continue
            with self.subTest(flag):
                once = self.run_lockrun(flag, *values, "--dry-run", "true")
                twice = self.run_lockrun(flag, *values, f"{flag}={values[0]}", "--dry-run", "true")
                self.assertEqual(once, twice)

    def test_completions_are_scripts_of_their_shell(self):
        for shell, begin in (("bash", "# bash completion"), ("zsh", "#compdef lockrun"), ("tcsh", "# tcsh completion")):
            code, out, _ = self.run_lockrun("--print-completion", shell)
            self.assertEqual(code, 0)
            self.assertTrue(out.startswith(begin), out[:80])
            self.assertIn("log-line-prefix-template", out)
            self.assertEqual(out.replace("--print bash", ""), self.run_lockrun("--print", shell)[1].replace("--print bash", ""))
        code, _, err = self.run_lockrun("--print-completion", "fish")
        self.assertEqual(code, 2)
        self.assertIn("--print-completion fish: expected bash, zsh or tcsh", err)


if __name__ == "__main__":
    unittest.main()
