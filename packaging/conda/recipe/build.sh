#!/usr/bin/env bash
# The shared libraries, as conda's packages have them. Neither CUDA nor libtorch: the toolkit's and PyTorch's packages would
# each be a variant of this one.
set -euo pipefail

# shellcheck disable=SC2086 # MESON_ARGS is conda's list of options
meson setup build ${MESON_ARGS:-} --prefix="$PREFIX" --libdir=lib --wrap-mode=nodownload -Ddefault_library=shared \
  -Dcuda=disabled -Dtorch=disabled -Dmpi=enabled -Dimages=enabled -Donednn=enabled \
  -Dtests=false -Dexamples=false -Dbench=false
meson compile -C build -j "${CPU_COUNT:-1}"
meson install -C build --no-rebuild
