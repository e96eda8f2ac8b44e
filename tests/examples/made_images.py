"""Small data sets in the files that MNIST and CIFAR are published in, made up: bars at places that tell the class."""
import gzip
import pathlib
import random
import struct


def image(label, side, channels, chance):
    """Bytes of [side, side, channels]: noise, and a bright bar whose place is the label's."""
    pixels = []
    for y in range(side):
        for x in range(side):
            bar = y == label % side if label % 2 == 0 else x == label % side
            pixels += [min(255, chance.randrange(60) + (180 if bar else 0)) for _ in range(channels)]
    return bytes(pixels)


def idx(sizes, content):
    return struct.pack(f">I{len(sizes)}I", 0x800 + len(sizes), *sizes) + content


def write_mnist(folder, training, held_out, side=12, seed=1):
    """The four files: the held-out ones compressed."""
    chance = random.Random(seed)
    folder = pathlib.Path(folder)
    for part, count in [("train", training), ("t10k", held_out)]:
        labels = [chance.randrange(10) for _ in range(count)]
        images = b"".join(image(label, side, 1, chance) for label in labels)
        for name, content in [("images-idx3-ubyte", idx([count, side, side], images)),
                              ("labels-idx1-ubyte", idx([count], bytes(labels)))]:
            if part == "t10k":
                (folder / f"{part}-{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / f"{part}-{name}").write_bytes(content)


def cifar_records(count, chance, labels_before=0):
    content = b""
    for _ in range(count):
        label = chance.randrange(10)
        pixels = image(label, 32, 3, chance)
        planes = b"".join(pixels[channel::3] for channel in range(3))
        content += bytes(labels_before) + bytes([label]) + planes
    return content


def write_cifar10(folder, batches, held_out, seed=1):
    """data_batch_1.bin and so on, of as many images as `batches` says, and test_batch.bin."""
    chance = random.Random(seed)
    folder = pathlib.Path(folder)
    for number, count in enumerate(batches, start=1):
        (folder / f"data_batch_{number}.bin").write_bytes(cifar_records(count, chance))
    (folder / "test_batch.bin").write_bytes(cifar_records(held_out, chance))
