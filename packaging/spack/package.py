"""Tessera for Spack, from a checkout (packaging/README.md): spack dev-build tessera@0.1.0 +mpi"""
from spack.package import *


class Tessera(MesonPackage):
    """Sharded data-parallel training for C++: a training step is compiled into a plan, proved, and run."""

    # There is no archive to fetch yet: `spack dev-build` and `spack develop` name a checkout.
    version("0.1.0")

    license("Apache-2.0")

    variant("mpi", default=True, description="Ranks that are processes of one or several hosts, started by MPI")
    variant("cuda", default=False, description="CUDA devices, and NCCL between them")
    variant("images", default=True, description="Folders of JPEG and PNG files as data")
    variant("onednn", default=True, description="Convolutions, and products with AMX, by oneDNN")
    variant("torch", default=False, description="Modules of libtorch")

    depends_on("cxx", type="build")
    depends_on("meson@1.0.1:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("python@3.9:", type="build")
    depends_on("fmt@9:")
    depends_on("nlohmann-json@3.10:")
    depends_on("cli11@2.1:")
    depends_on("isa-l@2.30:")
    depends_on("openssl@3:")
    depends_on("openblas@0.3.20:")
    depends_on("mpi", when="+mpi")
    depends_on("cuda@12.4:", when="+cuda")
    depends_on("nccl@2.18.1:", when="+cuda")
    depends_on("libjpeg-turbo", when="+images")
    depends_on("libpng@1.6:", when="+images")
    depends_on("onednn@2.6:", when="+onednn")
    depends_on("py-torch@1.13:", when="+torch")

    conflicts("%gcc@:11", msg="Tessera is C++20")

    def setup_build_environment(self, env):
        if self.spec.satisfies("+torch"):
            platlib = self.spec["python"].package.platlib
            env.set("TORCH_DIR", join_path(self.spec["py-torch"].prefix, platlib, "torch"))

    def meson_args(self):
        features = ["mpi", "cuda", "images", "onednn", "torch"]
        enabled = {name: self.spec.satisfies("+" + name) for name in features}
        options = ["-D{}={}".format(name, "enabled" if on else "disabled") for name, on in enabled.items()]
        return options + ["-Dtests=false", "-Dexamples=false", "-Dbench=false"]
