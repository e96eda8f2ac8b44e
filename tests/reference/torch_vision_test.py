#!/usr/bin/env python3
"""train_vision against PyTorch in double precision, from the same weights, on the same images: every parameter's gradient,
the losses of some steps of SGD, and the loss on held-out images, with the running moments of batch norms.

A step takes all images, whose order then does not count. Gradients are those of a step of plain gradient descent. In a deep
network with batch norms over few pixels, roundings grow from layer to layer, and one that turns a relu's sign changes
gradients by a thousandth; PyTorch's own gradients in fp32 are as far from those in fp64 as ours are. So the weights are drawn
by a seed with which no sign turns, and steps are small.

Synchronised batch norms of several ranks are compared with batch norms of one process that has all images: PyTorch's
SyncBatchNorm, which is defined by them, wants a GPU. Also in a step in which some ranks have fewer images than others.

usage: torch_vision_test.py TRAIN_VISION
"""
import gzip
import pathlib
import re
import sys
import tempfile

import torch
from torch.nn import functional

import torch_gpt  # finds the modules of tests/examples, too
import torch_vision
import made_images
import trainer_runs

SEED = 7
IMAGES, HELD_OUT, SIDE, STEPS = 30, 20, 12, 4
PLAIN = ["--optimizer", "sgd", "--weight-decay", 0, "--clip", 0, "--warmup", 0]
CASES = {  # model, width, ranks (of networks with batch norms, which are synchronised), label smoothing: how far from PyTorch
    ("cnn", 8, 1, 0.0): 1e-5,
    ("cnn", 8, 3, 0.1): 1e-5,
    ("resnet18", 8, 1, 0.1): 1e-5,
    ("resnet18", 8, 3, 0.1): 1e-5,
    ("resnet50", 4, 1, 0.0): 1e-4,
    ("vit-s", 128, 2, 0.0): 1e-5,
}
UNEVEN = {"samples": 11, "ranks": 4, "batch": 2}  # a step of 8 images, and one of 3: two ranks have none


def idx(path, header):
    content = pathlib.Path(path).read_bytes()
    return torch.frombuffer(bytearray(content[header:]), dtype=torch.uint8)


class Data:
    def __init__(self, folder):
        made_images.write_mnist(folder, IMAGES, HELD_OUT, SIDE)
        for path in pathlib.Path(folder).glob("t10k-*.gz"):
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        pixels = {part: idx(f"{folder}/{part}-images-idx3-ubyte", 16).double().view(-1, 1, SIDE, SIDE) / 255
                  for part in ("train", "t10k")}
        mean, deviation = pixels["train"].mean(), pixels["train"].std(unbiased=False)
        self.images = {part: (values - mean) / deviation for part, values in pixels.items()}
        self.labels = {part: idx(f"{folder}/{part}-labels-idx1-ubyte", 8).long() for part in pixels}


def loss_of(model, data, part, smoothing=0.0):
    return functional.cross_entropy(model(data.images[part]), data.labels[part], label_smoothing=smoothing)


def train_torch(model, data, smoothing, rate):
    """The losses of the steps, and that of the held-out images after them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        loss = loss_of(model, data, "train", smoothing)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return losses, loss_of(model.eval(), data, "t10k").item()


def synchronised(name, ranks):
    return ["--sync-batch-norm"] if name.startswith("resnet") and ranks > 1 else []


def fresh_model(name, width):
    torch.manual_seed(SEED)
    return torch_vision.with_random_norms(torch_vision.make(name, 1, SIDE, width, 10)).double()


def save_weights(path, model):
    """Also rounds the model's own to fp32."""
    torch_gpt.write_weights(path, {key: value.detach() for key, value in model.named_parameters()})
    model.load_state_dict({key: value.float().double() if value.is_floating_point() else value
                           for key, value in model.state_dict().items()})


def distances(program, folder, data, case):
    """By what was compared: how far it is from PyTorch's."""
    name, width, ranks, smoothing = case
    model = fresh_model(name, width)
    weights, after = pathlib.Path(folder) / "weights.safetensors", pathlib.Path(folder) / "after.safetensors"
    save_weights(weights, model)
    options = [*PLAIN, "--data", f"mnist:{folder}", "--model", name, "--width", width, "--ranks", ranks, "--batch",
               IMAGES // ranks, "--label-smoothing", smoothing, "--init", weights, *synchronised(name, ranks)]

    step = 1 if name.startswith("resnet") else 16  # large beside the weights, whose rounding then hides little of it
    loss_of(model.train(), data, "train", smoothing).backward()
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    gradients = {key: value.grad.clone() for key, value in model.named_parameters()}
    trainer_runs.train(program, folder, *options, "--lr", step, "--min-lr", step, "--steps", 2, "--stop-after", 1,
                       "--eval-every", 0, "--dump-weights", after)
    found = torch_gpt.read_weights(after)
    named = {key for key in model.state_dict() if not key.endswith("num_batches_tracked")}
    assert found.keys() == named, found.keys() ^ named
    result = {}
    for key, gradient in gradients.items():
        difference = (before[key] - found[key].double()) / step - gradient
        result[f"gradient of {key}"] = (difference.abs().max() / gradient.abs().max()).item()

    model = fresh_model(name, width)
    model.load_state_dict(before, strict=False)
    rate = 0.0005 if name.startswith("resnet") else 0.02
    losses, held_out = train_torch(model.train(), data, smoothing, rate)
    steps = trainer_runs.train(program, folder, *options, "--lr", rate, "--min-lr", rate, "--steps", STEPS)
    pairs = list(zip(steps, losses, strict=True))[:STEPS if name != "resnet50" else 1]  # there the steps themselves part
    result["losses"] = max(abs(step["loss"] - loss) / loss for step, loss in pairs)
    result["held-out loss"] = abs(steps[-1]["held_out_loss"] - held_out) / held_out
    return result


def dealt(program, options):
    """For each rank the images that it takes in the first epoch, in its order: no more than --check-data prints."""
    done = trainer_runs.run(program, *options, "--check-data")
    found = [list(map(int, line.group(1).split())) for line in re.finditer(r"the first ([\d ]+)$", done.stdout, re.MULTILINE)]
    assert sum(map(len, found)) == UNEVEN["samples"], done
    return found


def uneven_distances(program, folder, data):
    """Of two steps of synchronised batch norms, the second with other numbers of images on each rank."""
    ranks, batch, rate = UNEVEN["ranks"], UNEVEN["batch"], 0.0005
    model = fresh_model("resnet18", 8)
    weights = pathlib.Path(folder) / "weights.safetensors"
    save_weights(weights, model)
    options = [*PLAIN, "--data", f"mnist:{folder}", "--model", "resnet18", "--width", 8, "--ranks", ranks, "--batch", batch,
               "--samples", UNEVEN["samples"], "--sync-batch-norm", "--init", weights]
    images = dealt(program, options)
    assert len({len(each) for each in images}) > 1, images
    optimizer = torch.optim.SGD(model.train().parameters(), lr=rate, momentum=0.9)
    losses = []
    for taken in [slice(0, batch), slice(batch, None)]:
        chosen = [image for each in images for image in each[taken]]
        loss = functional.cross_entropy(model(data.images["train"][chosen]), data.labels["train"][chosen])
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        held_out = loss_of(model.eval(), data, "t10k").item()
    after = pathlib.Path(folder) / "after.safetensors"
    steps = trainer_runs.train(program, folder, *options, "--lr", rate, "--min-lr", rate, "--steps", 2, "--dump-weights", after)
    found = torch_gpt.read_weights(after)
    result = {f"weights of {key}": ((found[key].double() - value.detach()).abs().max() / value.detach().abs().max()).item()
              for key, value in model.named_parameters()}
    result["losses"] = max(abs(step["loss"] - loss) / loss for step, loss in zip(steps, losses, strict=True))
    result["held-out loss"] = abs(steps[-1]["held_out_loss"] - held_out) / held_out
    return result


def main(program):
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        data = Data(folder)
        runs = {case: (lambda case=case: distances(program, folder, data, case), tolerance) for case, tolerance in CASES.items()}
        runs["uneven"] = (lambda: uneven_distances(program, folder, data), 1e-5)
        for case, (run, tolerance) in runs.items():
            found = run()
            worst = max(found, key=found.get)
            print(f"{case}: {len(found)} figures, at most {found[worst]:.1e} ({worst}); losses {found['losses']:.1e}, "
                  f"held-out loss {found['held-out loss']:.1e}")
            failures += [f"{case}, {what}: {far:.1e}" for what, far in found.items() if not far <= tolerance]
    print("\n".join(f"FAILED: {failure}" for failure in failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
