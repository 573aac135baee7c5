"""Asks a C++ test program that answers lines of JSON: data_probe, tables_probe, vision_probe (tests/probe.h)."""

import json
import os
import subprocess


def ask(questions, program="data_probe"):
    """One answer (the value, or an Exception with the message) for each question."""
    program = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], program)
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    run = subprocess.run([program], input=lines.encode(), capture_output=True, timeout=120)
    assert run.returncode == 0, run.stderr
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(answers) == len(questions), run.stderr
    return [a["answer"] if "answer" in a else Exception(a["error"]) for a in answers]
