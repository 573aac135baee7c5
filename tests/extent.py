"""How many of a table's cases a script tries: the first ones; all of them in scripts/nightly, which sets LOCKSTEP_TEST_CASES to "every"."""

import os

ALL = os.environ.get("LOCKSTEP_TEST_CASES") == "every"


def first_of(cases, count=1):
    """The first `count`; all at night. Those behind them differ by what other tests vary, too."""
    return list(cases) if ALL else list(cases)[:count]
