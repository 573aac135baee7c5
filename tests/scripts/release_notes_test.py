"""The text of a release: its section of CHANGELOG.md, with links that work outside of the repository."""

import os
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
CHANGES = """# Changes

## 0.2.0, 2027-01-31

What is
new.

### Steps

- It works ([Steps that
  fail](docs/steps.md#step)), see [the site](https://example.org/a).
- Second:

  ```sh
  lockrun \\
      ./train
  ```

| a | b |
|---|---|
| c | d |

## 0.1.0, 2026-12-01

- [Old](docs/old.md).
"""


def notes(version, *options, changes=CHANGES):
    command = [sys.executable, ROOT / "scripts" / "release_notes.py", version, *options]
    return subprocess.run(command, input=changes, capture_output=True, text=True, timeout=60)


class TestReleaseNotes(unittest.TestCase):
    def test_links_lead_to_the_tag(self):
        for remote in (
            "https://example.com/owner/name.git",
            "https://user:word@example.com/owner/name",
            "git@example.com:owner/name.git",
            "ssh://git@example.com:2222/owner/name.git",
        ):
            run = notes("0.2.0", "--remote", remote)
            self.assertEqual(run.stderr, "")
            link = (
                "- It works ([Steps that fail](https://example.com/owner/name/blob/v0.2.0/docs/steps.md#step)), "
                "see [the site](https://example.org/a)."
            )
            self.assertIn(link, run.stdout.splitlines(), remote)

    def test_without_an_address_a_link_is_the_name_of_its_file(self):
        for options in ([], ["--remote", "/srv/lockstep.git"], ["--remote", "../lockstep"], ["--remote", "file:///srv/lockstep"]):
            run = notes("0.2.0", *options)
            self.assertIn("- It works (Steps that fail (`docs/steps.md`)), see [the site](https://example.org/a).", run.stdout.splitlines())

    def test_only_this_version_and_code_and_tables_as_they_are(self):
        run = notes("0.2.0")
        self.assertTrue(run.stdout.startswith("What is new.\n\n### Steps\n\n- It works"), run.stdout)
        self.assertIn("\n- Second:\n\n  ```sh\n  lockrun \\\n      ./train\n  ```\n\n| a | b |\n|---|---|\n| c | d |\n", run.stdout)
        self.assertNotIn("Old", run.stdout)
        self.assertEqual(notes("0.1.0").stdout, "- Old (`docs/old.md`).\n")

    def test_a_version_that_is_not_there(self):
        run = notes("0.3.0")
        self.assertEqual((run.returncode, run.stderr), (1, "release_notes: error: CHANGELOG.md has no section '## 0.3.0'; write one\n"))

    def test_the_notes_of_this_version_have_no_relative_link_and_its_files_exist(self):
        version = re.search(r"^project\(Lockstep VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]
        run = notes(version, "--remote", "https://example.com/owner/name", changes=(ROOT / "CHANGELOG.md").read_text())
        targets = re.findall(r"\]\(([^)]*)\)", run.stdout)
        start = f"https://example.com/owner/name/blob/v{version}/"
        files = [target.removeprefix(start).split("#")[0] for target in targets if target.startswith(start)]
        self.assertTrue(files)
        self.assertEqual([file for file in files if not (ROOT / file).is_file()], [])
        self.assertEqual([target for target in targets if not target.startswith("https://")], [])


if __name__ == "__main__":
    unittest.main()
