"""The programs of zoo/datasets, as commands and as modules."""

import os
import sys

DATASETS = os.path.join(os.environ["LOCKSTEP_SOURCE_DIR"], "zoo", "datasets")
sys.path.insert(0, DATASETS)


def command(name, *arguments):
    return [sys.executable, os.path.join(DATASETS, name + ".py"), *map(str, arguments)]
