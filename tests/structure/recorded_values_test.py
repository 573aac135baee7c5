"""What is recorded of the peers is of the versions and scripts at hand; what is not is computed anew (tests/recorded.py)."""

import json
import pathlib
import tempfile
import unittest
from unittest import mock

import recorded


class RecordedValuesTest(unittest.TestCase):
    def test_the_files_are_current(self):
        if recorded.RECORD:
            return  # other tests of this run write them
        self.assertEqual(
            recorded.stale(),
            [],
            "of other versions (deps/) or scripts, so the peers were asked instead: write them "
            "with scripts/test --record, look at what has changed, and commit them",
        )

    def test_the_peer_is_asked_where_anything_differs(self):
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.object(recorded, "FOLDER", pathlib.Path(folder)),
            mock.patch("sys.stderr"),
            mock.patch.object(recorded, "RECORD", False),
        ):

            def open_record(script="structure/recorded_values_test.py", packages=("torch",)):
                return recorded.Record("some", [script], packages)

            first = open_record()
            self.assertEqual(first.value("a", "inputs", lambda: [1, 2]), [1, 2])
            self.assertEqual(recorded.stale(), [])
            first.write()
            self.assertEqual(recorded.stale(), [])
            self.assertEqual(open_record().value("a", "inputs", self.fail), [1, 2])
            for changed, key, inputs in (
                (open_record("recorded.py"), "a", "inputs"),
                (open_record(packages=("numpy",)), "a", "inputs"),
                (open_record(), "a", "other"),
                (open_record(), "b", "inputs"),
            ):
                self.assertEqual(changed.value(key, inputs, lambda: 3), 3)
            content = json.loads((recorded.FOLDER / "some.json").read_text())
            with mock.patch.object(recorded, "pins", lambda: {"torch": "0.1"}):
                self.assertEqual(recorded.stale(), ["some.json"])
            (recorded.FOLDER / "some.json").write_text(json.dumps({**content, "scripts": ["recorded.py"]}))
            self.assertEqual(recorded.stale(), ["some.json"])

    def test_recording_asks_the_peer_once_for_each_value(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(recorded, "FOLDER", pathlib.Path(folder)):
            with mock.patch("sys.stderr"), mock.patch.object(recorded, "RECORD", False):
                old = recorded.Record("some", ["recorded.py"], ["torch"])
                old.value("a", "inputs", lambda: 1)
                old.write()
            with mock.patch.object(recorded, "RECORD", True):
                new = recorded.Record("some", ["recorded.py"], ["torch"])
                self.assertEqual(new.value("a", "inputs", lambda: 2), 2)
                self.assertEqual(new.value("a", "inputs", self.fail), 2)
            with mock.patch.object(recorded, "RECORD", False):
                self.assertEqual(recorded.Record("some", ["recorded.py"], ["torch"]).value("a", "inputs", self.fail), 2)


if __name__ == "__main__":
    unittest.main()
