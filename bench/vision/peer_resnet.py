"""The lab's resnet_ddp.py on folders of pictures: its loop, transforms and DataLoader with 2 workers, DistributedSampler, Gloo, and
evaluation on all ranks, each picture once. Prints the accuracy after each epoch. Started by bench/vision/whole."""

import argparse
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))

from torchvision_peer import torchvision  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.utils.data import DataLoader, DistributedSampler, Subset  # noqa: E402

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--num_epochs", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--learning_rate", type=float, default=0.1)
    parser.add_argument("--random_seed", type=int, default=0)
    parser.add_argument("--model_dir", required=True)
    parser.add_argument("--cosine", action="store_true", help="a decaying schedule, by step")
    args = parser.parse_args()
    torch.manual_seed(args.random_seed)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = torch.nn.parallel.DistributedDataParallel(torchvision.models.resnet18())
    T = torchvision.transforms
    plain = [T.ToTensor(), T.Normalize(MEAN, STD)]
    train = torchvision.datasets.ImageFolder(args.data_dir + "/train", T.Compose([T.RandomCrop(32, padding=4), T.RandomHorizontalFlip(), *plain]))
    test = torchvision.datasets.ImageFolder(args.data_dir + "/test", T.Compose(plain))
    sampler = DistributedSampler(train, seed=args.random_seed)
    train_loader = DataLoader(train, batch_size=args.batch_size, sampler=sampler, num_workers=2)
    test_loader = DataLoader(Subset(test, range(rank, len(test), size)), batch_size=128, num_workers=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate, momentum=0.9, weight_decay=1e-5)
    steps = args.num_epochs * len(train_loader)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) if args.cosine else None
    for epoch in range(args.num_epochs):
        sampler.set_epoch(epoch)
        model.train()
        for images, labels in train_loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            if schedule:
                schedule.step()
        model.eval()
        right = torch.zeros(1)
        with torch.no_grad():
            for images, labels in test_loader:
                right += (model.module(images).argmax(1) == labels).sum()
        dist.all_reduce(right)
        if rank == 0:
            torch.save(model.state_dict(), os.path.join(args.model_dir, "resnet_distributed.pth"))
            print(f"Epoch: {epoch}, Accuracy: {right.item() / len(test):.4f}", flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # the end of Gloo's group waits with Python's lock for threads that want it, and may never come (torch 2.13)


if __name__ == "__main__":
    main()
