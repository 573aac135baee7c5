"""Python's answers to the questions of split_parity.py, recorded (tests/recorded.py): datasets with NumPy, torch."""

import recorded

RECORD = recorded.Record("splits", ["data/split_peer.py"], ["datasets", "numpy", "torch"])


def rows(size):
    import datasets

    datasets.disable_progress_bars()
    return datasets.Dataset.from_dict({"row": list(range(size))})


def train_test_split(size, test_size, seed):
    parts = rows(size).train_test_split(test_size=test_size, seed=seed)
    return [list(parts[name]["row"]) for name in ("train", "test")]


def shuffle(size, seed):
    return list(rows(size).shuffle(seed=seed)["row"])


def random_split(size, lengths, seed):
    import torch
    from torch.utils.data import random_split

    return [part.indices for part in random_split(range(size), lengths, torch.Generator().manual_seed(seed))]


def weighted(weights, num_samples, replacement, seed):
    import torch
    from torch.utils.data import WeightedRandomSampler

    return list(WeightedRandomSampler(weights, num_samples, replacement, generator=torch.Generator().manual_seed(seed)))


def answer(ask, **question):
    """The value, or "error": both refuse, each in its own words."""
    import warnings

    try:
        with warnings.catch_warnings(action="ignore"):  # random_split warns of empty parts
            return globals()[ask](**question)
    except (ValueError, RuntimeError):
        return "error"


def recorded_hashes(key, questions):
    return RECORD.value(key, recorded.hash_of(questions), lambda: recorded.block_hashes([answer(**question) for question in questions]))
