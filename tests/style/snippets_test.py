#!/usr/bin/env python3
"""Every block of C++ in README.md, the guide and the page about debugging compiles, where snippets.in puts it.

usage: snippets_test.py ROOT [--torch] -- COMPILER...

A block's "…" and "..." are what it leaves out. --torch: the blocks about libtorch instead, whose headers the compiler's options name.
"""
import pathlib
import re
import subprocess
import sys

PAGES = ["README.md", "docs/guide.md", "docs/debugging.md"]
BLOCK = re.compile(r"^```cpp\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLACE = re.compile(r"^@ (\S+): (.*)$", re.MULTILINE)
FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-unused"]


def compilable(block):
    """The block without what says that something is left out, and a kernel's launch as a call."""
    block = re.sub(r"^\.\.\.$", "", block, flags=re.MULTILINE)
    block = block.replace("…, ", "").replace(", …", "").replace("…", ";")
    return re.sub(r"<<<.*?>>>(?=\()", "", block)


def blocks_of(root):
    return {(page, block): False for page in PAGES for block in BLOCK.findall((root / page).read_text(encoding="utf-8"))}


def assembled(template, blocks):
    """The program; marks the blocks that are in it."""
    def block_at(place):
        page, words = place.groups()
        found = [key for key in blocks if key[0] == page and key[1].startswith(words)]
        assert len(found) == 1, f"{len(found)} blocks of {page} begin with \"{words}\": snippets.in needs a look"
        blocks[found[0]] = True
        return f'#line 1 "{page}: {words}"\n{compilable(found[0][1])}'

    return PLACE.sub(block_at, template)


def main():
    arguments, compiler = sys.argv[1:sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1:]
    root = pathlib.Path(arguments[0])
    blocks = blocks_of(root)
    program = assembled((pathlib.Path(__file__).parent / "snippets.in").read_text(encoding="utf-8"), blocks)
    left_out = [f"{page}: {block}" for (page, block), used in blocks.items() if not used]
    assert not left_out, "snippets.in has no place for:\n" + "\n".join(left_out)
    includes = [f"-I{root / folder}" for folder in ["include", "nn/include", "vision/include", "trainer/include", "torch/include"]]
    torch = ["-DWITH_TORCH"] if "--torch" in arguments else []
    done = subprocess.run([*compiler, *FLAGS, *torch, *includes, "-xc++", "-"], input=program, capture_output=True, text=True,
                          check=False)
    print(done.stderr)
    print(f"{len(blocks)} blocks")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
