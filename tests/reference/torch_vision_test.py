#!/usr/bin/env python3
"""train_vision against PyTorch in double precision, from the same weights, on the same images: every parameter's gradient,
the losses of some steps of SGD, and the loss on held-out images, with the running moments of batch norms.

A step takes all images, whose order then does not count. Gradients are those of a step of plain gradient descent. In a deep
network with batch norms over few pixels, roundings grow from layer to layer, and one that turns a relu's sign changes
gradients by a thousandth; PyTorch's own gradients in fp32 are as far from those in fp64 as ours are. So the weights are drawn
by a seed with which no sign turns, and steps are small.

usage: torch_vision_test.py TRAIN_VISION
"""
import gzip
import pathlib
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
CASES = {  # model, width, ranks, label smoothing: how far from PyTorch
    ("cnn", 8, 1, 0.0): 1e-5,
    ("cnn", 8, 3, 0.1): 1e-5,
    ("resnet18", 8, 1, 0.1): 1e-5,
    ("resnet50", 4, 1, 0.0): 1e-4,
    ("vit-s", 128, 2, 0.0): 1e-5,
}


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


def distances(program, folder, data, case):
    """By what was compared: how far it is from PyTorch's."""
    name, width, ranks, smoothing = case
    torch.manual_seed(SEED)
    model = torch_vision.with_random_norms(torch_vision.make(name, 1, SIDE, width, 10)).double()
    weights, after = pathlib.Path(folder) / "weights.safetensors", pathlib.Path(folder) / "after.safetensors"
    torch_gpt.write_weights(weights, {key: value.detach() for key, value in model.named_parameters()})
    model.load_state_dict({key: value.float().double() if value.is_floating_point() else value
                           for key, value in model.state_dict().items()})
    options = [*PLAIN, "--data", f"mnist:{folder}", "--model", name, "--width", width, "--ranks", ranks, "--batch",
               IMAGES // ranks, "--label-smoothing", smoothing, "--init", weights]

    step = 1 if name.startswith("resnet") else 16  # large beside the weights, whose rounding then hides little of it
    loss_of(model.train(), data, "train", smoothing).backward()
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    gradients = {key: value.grad.clone() for key, value in model.named_parameters()}
    trainer_runs.train(program, folder, *options, "--lr", step, "--min-lr", step, "--steps", 2, "--stop-after", 1,
                       "--eval-every", 0, "--dump-weights", after)
    found = torch_gpt.read_weights(after)
    assert found.keys() == gradients.keys(), found.keys() ^ gradients.keys()
    result = {}
    for key, gradient in gradients.items():
        difference = (before[key] - found[key].double()) / step - gradient
        result[f"gradient of {key}"] = (difference.abs().max() / gradient.abs().max()).item()

    model = torch_vision.with_random_norms(torch_vision.make(name, 1, SIDE, width, 10)).double()
    model.load_state_dict(before, strict=False)
    rate = 0.0005 if name.startswith("resnet") else 0.02
    losses, held_out = train_torch(model.train(), data, smoothing, rate)
    steps = trainer_runs.train(program, folder, *options, "--lr", rate, "--min-lr", rate, "--steps", STEPS)
    pairs = list(zip(steps, losses, strict=True))[:STEPS if name != "resnet50" else 1]  # there the steps themselves part
    result["losses"] = max(abs(step["loss"] - loss) / loss for step, loss in pairs)
    result["held-out loss"] = abs(steps[-1]["held_out_loss"] - held_out) / held_out
    return result


def main(program):
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        data = Data(folder)
        for case, tolerance in CASES.items():
            found = distances(program, folder, data, case)
            worst = max(found, key=found.get)
            print(f"{case}: {len(found)} figures, at most {found[worst]:.1e} ({worst}); losses {found['losses']:.1e}, "
                  f"held-out loss {found['held-out loss']:.1e}")
            failures += [f"{case}, {what}: {far:.1e}" for what, far in found.items() if not far <= tolerance]
    print("\n".join(f"FAILED: {failure}" for failure in failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
