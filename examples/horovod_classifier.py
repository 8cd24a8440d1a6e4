"""A classifier trained by a script written for Horovod; only its import was changed.

    paceline run -n 2 -- python examples/horovod_classifier.py
"""

import argparse
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import paceline.torch as hvd  # import horovod.torch as hvd


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, kernel_size=3)
        self.conv2 = nn.Conv2d(8, 16, kernel_size=3)
        self.fc1 = nn.Linear(16 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(self.conv2(x))
        x = F.relu(self.fc1(x.flatten(1)))
        return F.log_softmax(self.fc2(x), dim=1)


def digits(count, seed):
    """Ten noisy patterns to tell apart."""
    patterns = torch.randn(10, 1, 14, 14, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    return TensorDataset(patterns[labels] + torch.randn(count, 1, 14, 14, generator=generator), labels)


def train(args, epoch, model, optimizer, sampler, loader):
    model.train()
    sampler.set_epoch(epoch)
    for data, target in loader:
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        if args.clip:
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()


def metric_average(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


def test(model, sampler, loader):
    model.eval()
    loss, correct = 0.0, 0.0
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            loss += F.nll_loss(output, target, reduction="sum").item()
            correct += (output.argmax(1) == target).sum().item()
    loss = metric_average(loss / len(sampler), "avg_loss")
    accuracy = metric_average(correct / len(sampler), "avg_accuracy")
    if hvd.rank() == 0:
        print(f"test loss {loss:.4f} accuracy {100 * accuracy:.1f}%", flush=True)
    return accuracy


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--momentum", type=float, default=0.5)
    parser.add_argument("--clip", type=float, default=0.0, help="the largest norm of gradients")
    parser.add_argument("--batches-per-allreduce", type=int, default=1)
    parser.add_argument("--fp16-allreduce", action="store_true")
    parser.add_argument("--use-adasum", action="store_true")
    parser.add_argument("--checkpoint", help="a file to go on from, and to save to")
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(42 + hvd.rank())
    train_set, test_set = digits(1280, seed=1), digits(320, seed=2)
    train_sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank())
    test_sampler = DistributedSampler(test_set, num_replicas=hvd.size(), rank=hvd.rank())
    train_loader = DataLoader(train_set, batch_size=args.batch_size, sampler=train_sampler)
    test_loader = DataLoader(test_set, batch_size=args.batch_size, sampler=test_sampler)

    model = Net()
    scale = hvd.size() if not args.use_adasum else 1
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * scale, momentum=args.momentum)

    first_epoch = 0
    if args.checkpoint and os.path.exists(args.checkpoint) and hvd.rank() == 0:
        saved = torch.load(args.checkpoint)
        first_epoch = saved["epoch"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    first_epoch = hvd.broadcast(torch.tensor(first_epoch), root_rank=0, name="first_epoch").item()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        backward_passes_per_step=args.batches_per_allreduce,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
    )
    for epoch in range(first_epoch, args.epochs):
        train(args, epoch, model, optimizer, train_sampler, train_loader)
        test(model, test_sampler, test_loader)
        if args.checkpoint and hvd.rank() == 0:
            state = {"epoch": epoch + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, args.checkpoint)

    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    everybody = hvd.allgather(weights.unsqueeze(0))
    assert all(torch.equal(other, weights) for other in everybody), "workers differ"


if __name__ == "__main__":
    main()
