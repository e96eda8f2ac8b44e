#!/usr/bin/env python3
"""The recipes of Spack and conda name this version, and give the build options that it has. Neither tool is needed: what a
recipe of Spack's calls is recorded here.

usage: recipes_test.py ROOT
"""
import contextlib
import pathlib
import re
import sys
import types

BUILT_IN = {"default_library"}


def build_options(root):
    return set(re.findall(r"^option\('(\w+)'", (root / "meson_options.txt").read_text(encoding="utf-8"), re.MULTILINE))


def version_of(root):
    return re.search(r"^  version: '([^']+)'", (root / "meson.build").read_text(encoding="utf-8"), re.MULTILINE).group(1)


class Spec:
    """A concrete package with some variants on."""

    def __init__(self, variants):
        self.variants = variants

    def satisfies(self, condition):
        assert condition.startswith("+"), condition
        return condition[1:] in self.variants


def spack_package(path):
    """The class, with its versions, variants and dependencies."""
    said = {"version": [], "variant": [], "depends_on": []}
    names = {name: (lambda *values, kept=kept, **how: kept.append((values, how))) for name, kept in said.items()}
    names |= {"license": lambda *_: None, "conflicts": lambda *_, **__: None, "join_path": lambda *parts: "/".join(parts)}
    module = types.ModuleType("spack.package")
    module.__dict__.update(names, MesonPackage=object, __all__=[*names, "MesonPackage"])
    with contextlib.ExitStack() as stack:
        sys.modules |= {"spack": types.ModuleType("spack"), "spack.package": module}
        stack.callback(lambda: [sys.modules.pop(name) for name in ["spack", "spack.package"]])
        scope = {}
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), scope)  # it is our own
    return scope["Tessera"], said


def check_spack(root):
    package, said = spack_package(root / "packaging/spack/package.py")
    assert [values for values, _ in said["version"]] == [(version_of(root),)], said["version"]
    variants = {values[0] for values, _ in said["variant"]}
    conditions = {how["when"] for _, how in said["depends_on"] if "when" in how}
    assert conditions == {f"+{variant}" for variant in variants}, (conditions, variants)
    for on in [variants, set()] + [{variant} for variant in variants]:
        recipe = package()
        recipe.spec = Spec(on)
        options = dict(re.fullmatch(r"-D(\w+)=(\w+)", option).groups() for option in recipe.meson_args())
        assert set(options) <= build_options(root), set(options) - build_options(root)
        assert {name for name, value in options.items() if value == "enabled"} == on, (options, on)


def check_conda(root):
    recipe = root / "packaging/conda/recipe"
    assert f'version: "{version_of(root)}"' in (recipe / "recipe.yaml").read_text(encoding="utf-8")
    options = set(re.findall(r"-D(\w+)=", (recipe / "build.sh").read_text(encoding="utf-8")))
    assert options and options <= build_options(root) | BUILT_IN, options


if __name__ == "__main__":
    check_spack(pathlib.Path(sys.argv[1]))
    check_conda(pathlib.Path(sys.argv[1]))
    print("the recipes fit the build")
