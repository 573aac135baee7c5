"""The tests that CTest knows, by the name with which a tests/*/CMakeLists.txt makes them, and the cases in each."""

import dataclasses
import pathlib
import re

from pages import SOURCE


@dataclasses.dataclass
class NamedTest:
    kind: str  # lockstep_test, lockstep_rank_test, lockstep_python_test or add_test
    sources: list[pathlib.Path]

    def cases(self):
        """Suite.Name of GoogleTest's cases, test_... of unittest's."""
        names = set()
        for source in self.sources:
            text = source.read_text()
            if source.suffix == ".py":
                names.update(re.findall(r"^    def (test_\w+)\(self", text, re.M))
            else:
                names.update(f"{suite}.{name}" for suite, name in re.findall(r"^(?:TEST|TEST_F|TEST_P)\((\w+),\s*(\w+)\)", text, re.M))
        return names


def named_tests():
    found = {}
    for lists in sorted((SOURCE / "tests").rglob("CMakeLists.txt")):
        text = re.sub(r"#.*", "", lists.read_text())
        for kind, words in re.findall(r"^\s*(lockstep_test|lockstep_rank_test|lockstep_python_test|add_test)\(([^()]*)\)", text, re.M):
            words = words.split()
            if kind == "add_test":
                words = words[1:]  # NAME
            found[words[0]] = NamedTest(
                kind, [lists.parent / word for word in words[1:] if word.endswith((".cpp", ".py")) and (lists.parent / word).exists()]
            )
    return found


def missing(names, tests):
    """What is wrong with a list of tests, "NAME" or "NAME: Case", or ""."""
    for name in names:
        program, _, case = (part.strip() for part in name.partition(":"))
        if program not in tests:
            return f"CTest has no {program}"
        if tests[program].kind != "add_test" and not case:
            return f'{program} has many cases: name one, as "{program}: Suite.Case"'
        if case and case not in tests[program].cases():
            return f"{program} has no case {case}"
    return ""
