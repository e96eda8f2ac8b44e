#!/usr/bin/env python3
"""Losses of 30 steps are those of PyTorch's DistributedDataParallel and FSDP2 (where this release has it) over gloo, within
1e-5: the same weights, the same batches, for each network of the tests, on 1, 2 and 3 ranks, plainly and with accumulation
and clipping. Weights and buffers go to Python's strict load_state_dict(), and come back from its state_dict() bit for bit.

usage: losses_test.py TORCH_LOSSES    exit code 77 where this Python has no PyTorch with gloo
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    import torch.distributed
    import torch.multiprocessing
    from torch import nn
except ImportError:
    torch = None
try:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
except ImportError:
    fully_shard = None

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))
import trainer_runs  # noqa: E402

STEPS = 30
SAMPLES = 12


class Perceptron(nn.Module if torch else object):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(7, 13)
        self.blocks = nn.ModuleList(nn.Linear(13, 13) for _ in range(3))
        self.last = nn.Linear(13, 3)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.last(x)


class Convolutions(nn.Module if torch else object):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential()
        for name, layer in [("convolution", nn.Conv2d(1, 4, 3, padding=1)), ("norm", nn.BatchNorm2d(4)),
                            ("relu", nn.ReLU()), ("pool", nn.MaxPool2d(2)), ("flatten", nn.Flatten()),
                            ("linear", nn.Linear(4 * 3 * 3, 3))]:
            self.layers.add_module(name, layer)

    def forward(self, x):
        return self.layers(x)


class Transformer(nn.Module if torch else object):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Linear(5, 8)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, 0.0) for _ in range(2))
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        x = self.embedding(x.transpose(0, 1))
        for layer in self.layers:
            x = layer(x)
        return self.last(x.mean(0))


# A network's name gives the class, the shape of a sample, and the submodule whose children are units.
NETWORKS = {"perceptron": (Perceptron, [7], "blocks"), "convolutions": (Convolutions, [1, 6, 6], "layers"),
            "transformer": (Transformer, [4, 5], "layers")}


def read_weights(path):
    return {name: torch.frombuffer(bytearray(content), dtype=torch.float32).reshape(shape)
            for name, (shape, content) in trainer_runs.read_safetensors(path).items()}


def write_weights(tensors, path):
    """In fp32, as other types are in files of weights."""
    trainer_runs.write_safetensors(path, {
        name: (list(tensor.shape), tensor.detach().to(torch.float32).contiguous().numpy().tobytes())
        for name, tensor in tensors.items()})


def check_that_weights_come_back(program, network, folder):
    torch.manual_seed(5)
    net = NETWORKS[network][0]()
    for step in range(2):  # buffers, too, are not what they were
        net(batch_of(NETWORKS[network][1], step)[0])
    python, ours = f"{folder}/python.safetensors", f"{folder}/ours.safetensors"
    write_weights(net.state_dict(), python)
    done = subprocess.run([program, network, python, ours], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    other = NETWORKS[network][0]()
    other.load_state_dict(read_weights(ours))
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), (network, name)


def batch_of(sample, number):
    generator = torch.Generator().manual_seed(1000 + number)
    inputs = torch.randn([SAMPLES, *sample], generator=generator)
    return inputs, torch.randint(0, 3, [SAMPLES], generator=generator)


def ddp(net, _units, _ranks):
    return nn.parallel.DistributedDataParallel(net, broadcast_buffers=False)


def fsdp2(net, units, ranks):
    mesh = init_device_mesh("cpu", (ranks,))
    for unit in net.get_submodule(units).children():
        fully_shard(unit, mesh=mesh)
    return fully_shard(net, mesh=mesh)


WRAPS = [ddp] + [fsdp2] * bool(fully_shard)


def train(rank, ranks, job, wrap):
    make, sample, units = NETWORKS[job["network"]]
    net = make()
    net.load_state_dict(read_weights(job["weights"]))  # strict: buffers are there, too
    model = wrap(net, units, ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    losses = []
    for step in range(STEPS):
        total = 0.0
        optimizer.zero_grad()
        for micro in range(job["micro_batches"]):
            inputs, targets = (part.chunk(ranks)[rank] for part in batch_of(sample, step * job["micro_batches"] + micro))
            loss = nn.functional.cross_entropy(model(inputs), targets)
            (loss / job["micro_batches"]).backward()
            mean = loss.detach().clone()
            torch.distributed.all_reduce(mean)
            total += mean.item() / ranks
        if job["clip_norm"]:
            nn.utils.clip_grad_norm_(model.parameters(), job["clip_norm"])
        optimizer.step()
        losses.append(total / job["micro_batches"])
    return losses


def train_all(rank, ranks, jobs, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    losses = [[train(rank, ranks, job, wrap) for wrap in WRAPS] for job in jobs]
    if rank == 0:
        pathlib.Path(folder, "losses.json").write_text(json.dumps(losses), encoding="utf-8")
    torch.distributed.barrier()  # gloo aborts a process whose peer is gone first
    torch.distributed.destroy_process_group()


def sharded_losses(program, ranks, job):
    done = subprocess.run([program, job["network"], str(ranks), str(job["micro_batches"]), str(job["clip_norm"]),
                           job["weights"]], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return [float(line) for line in done.stdout.split()]


def compare(program, ranks):
    """The largest relative difference on so many ranks."""
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        jobs = [{"network": network, "micro_batches": micro_batches, "clip_norm": clip_norm,
                 "weights": f"{folder}/{network}-{micro_batches}.safetensors"}
                for network in NETWORKS for micro_batches, clip_norm in [(1, 0), (2, 0.5)]]
        sharded = [sharded_losses(program, ranks, job) for job in jobs]
        torch.multiprocessing.spawn(train_all, (ranks, jobs, folder), nprocs=ranks)
        pythons = json.loads(pathlib.Path(folder, "losses.json").read_text(encoding="utf-8"))
    for job, ours, theirs in zip(jobs, sharded, pythons):
        for wrap, losses in zip(WRAPS, theirs):
            assert len(ours) == len(losses) == STEPS
            apart = max(abs(a - b) / abs(b) for a, b in zip(ours, losses))
            print(f"{job['network']}, {ranks} ranks, {job['micro_batches']} micro-batches, clip {job['clip_norm']}: "
                  f"{apart:.1e} from {wrap.__name__}")
            worst = max(worst, apart)
    return worst


def main():
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        print("skipped: this Python has no PyTorch with gloo (Debian's python3-torch)")
        return 77
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        for network in NETWORKS:
            check_that_weights_come_back(sys.argv[1], network, folder)
    worst = max(compare(sys.argv[1], ranks) for ranks in [1, 2, 3])
    assert worst <= 1e-5, worst
    return 0


if __name__ == "__main__":
    sys.exit(main())
