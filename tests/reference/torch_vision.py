"""The networks of train_vision in PyTorch, with its names of parameters."""
import torch
from torch import nn
from torch.nn import functional


class Cnn(nn.Module):
    def __init__(self, channels, side, width, classes):
        super().__init__()
        self.conv1 = nn.ModuleDict({"conv": nn.Conv2d(channels, width, 3, padding=1)})
        self.conv2 = nn.ModuleDict({"conv": nn.Conv2d(width, 2 * width, 3, padding=1)})
        self.fc = nn.ModuleDict({"hidden": nn.Linear((side // 4) ** 2 * 2 * width, 4 * width),
                                 "output": nn.Linear(4 * width, classes)})

    def forward(self, x):
        for stage in (self.conv1, self.conv2):
            x = functional.max_pool2d(functional.relu(stage["conv"](x)), 2)
        x = x.permute(0, 2, 3, 1).flatten(1)  # the channels of a pixel stand side by side
        return self.fc["output"](functional.relu(self.fc["hidden"](x)))


class Block(nn.Module):
    def __init__(self, in_channels, width, stride, bottleneck):
        super().__init__()
        out = 4 * width if bottleneck else width
        sizes = [(in_channels, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1)] if bottleneck else [
            (in_channels, width, 3, stride), (width, width, 3, 1)]
        self.depth = len(sizes)
        for number, (before, after, kernel, step) in enumerate(sizes, start=1):
            setattr(self, f"conv{number}", nn.Conv2d(before, after, kernel, step, kernel // 2, bias=False))
            setattr(self, f"bn{number}", nn.BatchNorm2d(after))
        if stride != 1 or in_channels != out:
            self.downsample = nn.Sequential(nn.Conv2d(in_channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.out = out

    def forward(self, x):
        y = x
        for number in range(1, self.depth + 1):
            y = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(y))
            if number < self.depth:
                y = functional.relu(y)
        return functional.relu(y + (self.downsample(x) if hasattr(self, "downsample") else x))


class ResNet(nn.Module):
    def __init__(self, channels, side, width, classes, blocks, bottleneck):
        super().__init__()
        self.keeps_size = side <= 64
        kernel, stride = (3, 1) if self.keeps_size else (7, 2)
        self.stem = nn.ModuleDict({"conv1": nn.Conv2d(channels, width, kernel, stride, kernel // 2, bias=False),
                                   "bn1": nn.BatchNorm2d(width)})
        before = width
        for layer, count in enumerate(blocks):
            stage = nn.ModuleList()
            for number in range(count):
                stage.append(Block(before, width << layer, 2 if layer > 0 and number == 0 else 1, bottleneck))
                before = stage[-1].out
            setattr(self, f"layer{layer + 1}", stage)
        self.fc = nn.Linear(before, classes)

    def forward(self, x):
        x = functional.relu(self.stem["bn1"](self.stem["conv1"](x)))
        if not self.keeps_size:
            x = functional.max_pool2d(x, 3, 2, 1)
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            for block in layer:
                x = block(x)
        return self.fc(x.mean(dim=(2, 3)))


class TransformerBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(width, 3 * width), "c_proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})

    def forward(self, x):
        images, tokens, width = x.shape
        parts = self.attn["c_attn"](self.ln_1(x)).split(width, dim=2)
        q, k, v = (part.view(images, tokens, self.heads, -1).transpose(1, 2) for part in parts)
        out = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.attn["c_proj"](out.transpose(1, 2).reshape(images, tokens, width))
        return x + self.mlp["c_proj"](functional.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class Patches(nn.Module):
    def __init__(self, channels, side, patch, width):
        super().__init__()
        self.proj = nn.Conv2d(channels, width, patch, patch)
        self.cls_token = nn.Parameter(torch.randn(width))
        self.pos_embed = nn.Parameter(torch.randn(1 + (side // patch) ** 2, width))

    def forward(self, x):
        patches = self.proj(x).flatten(2).transpose(1, 2)
        return torch.cat([self.cls_token.expand(x.shape[0], 1, -1), patches], dim=1) + self.pos_embed


class VisionTransformer(nn.Module):
    def __init__(self, channels, side, width, classes, layers=12):
        super().__init__()
        self.patch_embed = Patches(channels, side, 4 if side <= 64 else 16, width)
        self.blocks = nn.ModuleList(TransformerBlock(width, max(1, width // 64)) for _ in range(layers))
        self.fc = nn.ModuleDict({"norm": nn.LayerNorm(width), "head": nn.Linear(width, classes)})

    def forward(self, x):
        x = self.patch_embed(x)
        for block in self.blocks:
            x = block(x)
        return self.fc["head"](self.fc["norm"](x[:, 0]))


def make(name, channels, side, width, classes):
    if name == "vit-s":
        return VisionTransformer(channels, side, width, classes)
    if name == "cnn":
        return Cnn(channels, side, width, classes)
    if name == "resnet18":
        return ResNet(channels, side, width, classes, [2, 2, 2, 2], False)
    return ResNet(channels, side, width, classes, [3, 4, 6, 3], True)


def with_random_norms(model, seed=3):
    """Weights and biases of batch norms that are no ones and zeros, so that nothing hides behind them."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            with torch.no_grad():
                module.weight.copy_(0.5 + torch.rand(module.weight.shape, generator=generator))
                module.bias.copy_(torch.rand(module.bias.shape, generator=generator) - 0.5)
    return model
