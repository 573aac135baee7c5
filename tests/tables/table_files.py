"""Asks the C++ test program tables_probe, and writes files for it."""

import functools
import os
import tempfile
import unittest

import probe

ask = functools.partial(probe.ask, program="tables_probe")


class FilesTest(unittest.TestCase):
    """With a folder of its own for each test."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def put(self, name, content):
        path = os.path.join(self.directory, name)
        with open(path, "wb") as file:
            file.write(content)
        return path
