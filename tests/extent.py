"""How many of a table's cases a script tries: all of them with `scripts/test --all`, which sets LOCKSTEP_TEST_ALL, else the first."""

import os

ALL = os.environ.get("LOCKSTEP_TEST_ALL") == "1"


def first_of(cases, count=1):
    """The first `count`; all with --all. Those behind them differ by what other tests vary, too."""
    return list(cases) if ALL else list(cases)[:count]
