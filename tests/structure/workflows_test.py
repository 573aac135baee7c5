"""The workflows of the hosting site have no steps of their own: each is a script of this repository with arguments that it knows."""

import os
import pathlib
import re
import subprocess
import unittest

import yaml

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])


def steps():
    """(workflow, line, command), one for each value that a matrix gives."""
    for workflow in sorted((SOURCE / ".github/workflows").glob("*.yml")):
        text = workflow.read_text()
        matrix = {name: [value.strip() for value in values.split(",")] for name, values in re.findall(r"^ +([\w-]+): \[(.*)\]$", text, re.M)}
        for number, line in enumerate(text.splitlines(), 1):
            if command := re.match(r"\s*- run: (.*)", line):
                commands = [command[1]]
                for name in re.findall(r"\$\{\{ matrix\.([\w-]+) \}\}", command[1]):
                    commands = [each.replace("${{ matrix." + name + " }}", value) for each in commands for value in matrix[name]]
                yield from ((workflow.name, number, each) for each in commands)
            elif re.match(r"\s*(?:- )?run:", line):
                yield workflow.name, number, line.strip()


class Workflows(unittest.TestCase):
    def test_each_workflow_can_be_read(self):
        """What the hosting site would refuse, or run for hours."""
        for workflow in sorted((SOURCE / ".github/workflows").glob("*.yml")):
            with self.subTest(workflow=workflow.name):
                content = yaml.safe_load(workflow.read_text())
                self.assertLessEqual({"name", True, "permissions", "jobs"}, set(content), "YAML reads `on` as true")
                self.assertEqual(content["permissions"], {"contents": "read"})
                for name, job in content["jobs"].items():
                    self.assertIn("runs-on", job, name)
                    self.assertIn("timeout-minutes", job, name)
                    for step in job["steps"]:
                        self.assertTrue(("run" in step) != ("uses" in step), f"{name}: {step}")
                        if "uses" in step:  # those of this major version run on a node that is still there
                            self.assertRegex(step["uses"], r"^actions/(checkout|upload-artifact)@v6$")

    def test_each_step_is_a_script(self):
        found = list(steps())
        self.assertGreater(len(found), 10)
        for workflow, number, command in found:
            with self.subTest(workflow=workflow, line=number, command=command):
                script, *arguments = command.removeprefix("sudo ").split()
                self.assertRegex(script, r"^(scripts/|\.ci/)[\w-]+$")
                self.assertTrue(os.access(SOURCE / script, os.X_OK), f"{script} is no program")
                if not arguments:
                    continue
                text = (SOURCE / script).read_text()
                for argument in arguments:
                    self.assertRegex(text, rf"(?<![\w-]){re.escape(argument)}(?![\w-])", f"{script} does not know {argument}")

    def test_what_the_scripts_say_of_wrong_arguments(self):
        for script in ("scripts/sanitizers", "scripts/nightly", "scripts/release"):
            run = subprocess.run([SOURCE / script, "everything"], capture_output=True, text=True)
            self.assertEqual(run.returncode, 2, script)
            self.assertIn("'everything'", run.stderr)

    def test_a_release_says_what_it_consists_of(self):
        text = (SOURCE / "CHANGELOG.md").read_text()
        version = re.search(r"^project\(Lockstep VERSION (\S+)", (SOURCE / "CMakeLists.txt").read_text(), re.M)[1]
        self.assertRegex(text, rf"(?m)^## {re.escape(version)}, ", "scripts/release takes its notes from there")


if __name__ == "__main__":
    unittest.main()
