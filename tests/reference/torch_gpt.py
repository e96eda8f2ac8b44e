"""The GPT of train_gpt as its formulas say it (Radford et al. 2019), of PyTorch's modules and functions, without dropout; and what
the tests beside this file begin with: weights, and a text that holds exactly the samples of one step."""
import array
import math
import pathlib
import random
import sys

import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples"))
import trainer_runs  # noqa: E402

LAYERS, DIM, HEADS, SEQ, VOCABULARY = 2, 36, 3, 71, 256  # sequences longer than the 64 queries that attention takes at a time
MODEL_OPTIONS = ["--layers", LAYERS, "--dim", DIM, "--heads", HEADS, "--seq", SEQ, "--threads", 1]

# train_gpt holds out a twentieth of a text. Of 1500 bytes that leaves 1425, which are 20 sequences of 71: as many as a
# step takes, so that every step sees the same samples, whatever their order.
SAMPLES, TEXT_BYTES = 20, 1500


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(DIM, 3 * DIM)
        self.c_proj = nn.Linear(DIM, DIM)

    def forward(self, x):
        sequences, length, _ = x.shape
        q, k, v = (part.view(sequences, length, HEADS, DIM // HEADS).transpose(1, 2)
                   for part in self.c_attn(x).split(DIM, dim=-1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(DIM // HEADS)
        future = torch.ones(length, length, dtype=torch.bool).triu(diagonal=1)
        out = scores.masked_fill(future, -math.inf).softmax(dim=-1) @ v
        return self.c_proj(out.transpose(1, 2).reshape(sequences, length, DIM))


class FeedForward(nn.Module):
    def __init__(self, gelu):
        super().__init__()
        self.c_fc = nn.Linear(DIM, 4 * DIM)
        self.c_proj = nn.Linear(4 * DIM, DIM)
        self.gelu = gelu

    def forward(self, x):
        return self.c_proj(functional.gelu(self.c_fc(x), approximate=self.gelu))


class Block(nn.Module):
    def __init__(self, gelu):
        super().__init__()
        self.ln_1 = nn.LayerNorm(DIM, eps=1e-5)
        self.attn = Attention()
        self.ln_2 = nn.LayerNorm(DIM, eps=1e-5)
        self.mlp = FeedForward(gelu)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """Parameters have the names that they have in train_gpt's files."""

    def __init__(self, gelu="tanh"):
        super().__init__()
        self.embedding = nn.ModuleDict({"wte": nn.Embedding(VOCABULARY, DIM), "wpe": nn.Embedding(SEQ, DIM)})
        self.blocks = nn.ModuleList(Block(gelu) for _ in range(LAYERS))
        self.final = nn.LayerNorm(DIM, eps=1e-5)

    def loss(self, sequences):
        """The mean cross entropy of each token after those before it; sequences [samples, SEQ + 1]."""
        inputs, targets = sequences[:, :-1], sequences[:, 1:]
        x = self.embedding["wte"](inputs) + self.embedding["wpe"](torch.arange(SEQ))
        for block in self.blocks:
            x = block(x)
        logits = self.final(x) @ self.embedding["wte"].weight.T
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def initial_weights():
    """No two alike, and no bias is 0: every parameter matters from the first step on."""
    generator = torch.Generator().manual_seed(1)
    weights = {}
    for name, value in Gpt().state_dict().items():
        is_scale = value.dim() == 1 and name.endswith("weight")
        weights[name] = torch.randn(value.shape, generator=generator) * 0.15 + (1.0 if is_scale else 0.0)
    return weights


def write_weights(path, weights):
    trainer_runs.write_safetensors(path, {name: (list(value.shape), array.array("f", value.flatten().tolist()).tobytes())
                                          for name, value in weights.items()})


def read_weights(path):
    return {name: torch.tensor(array.array("f", content)).view(shape)
            for name, (shape, content) in trainer_runs.read_safetensors(path).items()}


def make_text():
    return bytes(random.Random(1).choices(b"abcdefgh ,.\n", weights=range(1, 13), k=TEXT_BYTES))


def sequences_of(text):
    """[SAMPLES, SEQ + 1]: each begins with the token that the one before it ends with."""
    return torch.tensor([list(text[i * SEQ:i * SEQ + SEQ + 1]) for i in range(SAMPLES)])


class Setting:
    """The files that runs of train_gpt start from, and what they hold."""

    def __init__(self, folder):
        self.text, self.init = pathlib.Path(folder) / "samples.txt", pathlib.Path(folder) / "initial.safetensors"
        self.weights = initial_weights()
        write_weights(self.init, self.weights)
        self.text.write_bytes(make_text())
        self.sequences = sequences_of(make_text())

    def options(self, ranks, batch, accumulate=1):
        assert ranks * batch * accumulate == SAMPLES
        return [*MODEL_OPTIONS, "--data", self.text, "--init", self.init, "--ranks", ranks, "--batch", batch,
                "--accumulate", accumulate, "--eval-every", 0]
