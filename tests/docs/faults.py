"""The faults of faults.toml, and how one is planted in the text of a source."""

import dataclasses
import tomllib

from pages import SOURCE

TABLE = "tests/docs/faults.toml"
HEADER = "lockstep_planted.h"
VARIABLE = "LOCKSTEP_PLANTED_FAULT"
# In the copy of the sources alone.
HEADER_TEXT = f'''#pragma once
#include <cstdlib>
#include <string_view>

inline bool lockstep_planted(std::string_view name) {{
  static const char* const planted = std::getenv("{VARIABLE}");
  return planted != nullptr && name == planted;
}}
'''


@dataclasses.dataclass
class Fault:
    name: str
    page: str  # of the promise, such as "ddp"
    file: str
    old: str  # once in the file
    new: str
    test: str  # "PROGRAM: Suite.Case"
    ranks: int = 2

    def planted(self):
        """What takes the place of the old text: both, and a switch."""
        switch = f'lockstep_planted("{self.name}")'
        if "FAULT" in self.new:
            return self.new.replace("FAULT", switch)
        if self.old.endswith((";", "}")):
            return f"if ({switch}) {{ {self.new} }} else {{ {self.old} }}"
        return f"({switch} ? ({self.new}) : ({self.old}))"


def faults():
    return [Fault(**fault) for fault in tomllib.loads((SOURCE / TABLE).read_text())["fault"]]


def plant(text, those):
    """The text of a file with all of `those` in it."""
    places = []
    for fault in those:
        if text.count(fault.old) != 1:
            raise ValueError(f"{TABLE}: {fault.file} has the old text of {fault.name} {text.count(fault.old)} times instead of once")
        places.append((text.index(fault.old), fault))
    for at, fault in sorted(places, key=lambda place: place[0], reverse=True):
        text = text[:at] + fault.planted() + text[at + len(fault.old) :]
    return f'#include "{HEADER}"\n{text}'
