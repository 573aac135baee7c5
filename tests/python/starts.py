"""Starts of Python programs. Each imports torch for seconds of processor time, so there are as few as can be: copies of a
process that has done so, and many cases in one start."""

import os
import re
import sys
import tempfile

import torch.distributed.run
import torch.multiprocessing as mp

FORK = mp.get_context("fork")


def begin(function, arguments, environment, output):
    for stream in (1, 2):
        os.dup2(output, stream)
    os.environ.update(environment)
    function(*arguments)


def in_copy(function, *arguments, **environment):
    """(exit code, output) of a copy of this process that calls function(*arguments) and ends."""
    with tempfile.TemporaryFile() as output:
        process = FORK.Process(target=begin, args=(function, arguments, environment, output.fileno()))
        process.start()
        process.join(400)
        if process.exitcode is None:
            process.terminate()  # a launcher then ends its ranks
            process.join(20)
            process.kill()
            process.join()
        output.seek(0)
        return process.exitcode, output.read().decode(errors="replace")


def torchrun(*arguments, **environment):
    """`torchrun --standalone --nproc-per-node 2` with these further arguments."""
    return in_copy(torch.distributed.run.main, ["--standalone", "--nproc-per-node", "2", *arguments], **environment)


def run_cases(functions, before=lambda: None, after=lambda: None):
    """In a rank: the cases that the command line names, one after another."""
    for name in sys.argv[1:]:
        before()
        functions[name]()
        after()
        passed(name)


def passed(name):
    os.write(2, f"passed {name}\n".encode())  # a line whole


def read(output):
    """{case: [what each rank that passed it has printed meanwhile]}"""
    said, meanwhile = {}, {}
    for line in output.splitlines():
        rank, text = re.fullmatch(r"(\[rank \d+\]: |)(.*)", line).groups()
        if text.startswith("passed "):
            said.setdefault(text.removeprefix("passed "), []).append("\n".join(meanwhile.pop(rank, [])))
        else:
            meanwhile.setdefault(rank, []).append(text)
    return said


class Cases:
    """Cases that the same ranks run one after another (run_cases). After one that fails they start again for those behind it.

    start(*cases) returns an exit code and the ranks' output. failures: {case: that output, "" where it passed};
    said: {case: [what each rank printed]}."""

    def __init__(self, start, ranks, cases):
        self.failures, self.said, left = {}, {}, list(cases)
        while left:
            code, output = start(*left)
            said = read(output)
            while left and len(said.get(left[0], [])) == ranks:
                self.said[left[0]] = said[left[0]]
                self.failures[left.pop(0)] = ""
            if left:
                self.failures[left.pop(0)] = output or f"exit code {code}"
            elif code != 0:
                self.failures[cases[-1]] = f"exit code {code}:\n{output}"
