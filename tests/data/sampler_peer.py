"""Python's answers to the questions of sampler_parity.py, recorded (tests/recorded.py)."""

import recorded

RECORD = recorded.Record("samplers", ["data/sampler_peer.py"], ["torch", "transformers", "accelerate"])


def distributed_sampler(size, num_replicas, rank, shuffle, seed, drop_last, epoch):
    from torch.utils.data.distributed import DistributedSampler

    sampler = DistributedSampler(range(size), num_replicas, rank, shuffle=shuffle, seed=seed, drop_last=drop_last)
    sampler.set_epoch(epoch)
    return {"indices": list(sampler), "num_samples": len(sampler)}


def length_grouped_indices(lengths, batch_size, seed):
    import torch
    from transformers.trainer_pt_utils import get_length_grouped_indices

    return get_length_grouped_indices(lengths, batch_size, generator=torch.Generator().manual_seed(seed))


def batch_shard(indices, batch_size, num_replicas, rank, drop_last):
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler

    batches = BatchSampler(indices, batch_size, drop_last)
    if num_replicas > 1:  # accelerate does not shard for one process
        batches = BatchSamplerShard(batches, num_replicas, rank)
    batches = list(batches)
    assert all(len(batch) == batch_size for batch in batches[:-1])
    return [i for batch in batches for i in batch]


def answer(ask, **question):
    """The value, or {"error": message}."""
    try:
        return globals()[ask](**question)
    except ValueError as error:
        return {"error": str(error)}


def recorded_hashes(key, questions):
    return RECORD.value(key, recorded.hash_of(questions), lambda: recorded.block_hashes([answer(**question) for question in questions]))
