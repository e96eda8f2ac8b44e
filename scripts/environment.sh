# shellcheck shell=bash
# The scripts share this: the repository's root, an environment without surprises, and quiet steps. Sourced, not run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Where these are set, OpenBLAS picks kernels for another machine: half the speed.
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE

say() { printf '\033[1m%s\033[0m\n' "$*"; }
[[ -t 1 ]] || say() { printf '%s\n' "$*"; }

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# refuse ARGUMENT: of an argument that a script does not know. What it knows stands in its $usage.
refuse() {
  printf 'error: unknown argument "%s"\n%s\n' "$1" "${usage:-}" >&2
  exit 2
}

# quietly LOG COMMAND...: on a terminal the command shows itself; elsewhere its output is shown only when it fails.
quietly() {
  local log=$1
  shift
  mkdir -p "$(dirname "$log")"
  if [[ -t 1 ]]; then
    "$@" || fail "$* failed"
  else
    "$@" >"$log" 2>&1 || {
      tail -n 100 "$log" >&2
      fail "$* failed; its whole output is in $log"
    }
  fi
}

# configure BUILD [OPTION...]: makes the build directory, or changes the options of the one that is there.
configure() {
  local build=$1
  shift
  if [[ ! -f $build/build.ninja ]]; then
    say "configuring $build"
    quietly "$build/logs/setup.txt" meson setup "$build" "$root" "$@"
  elif (($#)); then
    quietly "$build/logs/setup.txt" meson configure "$build" "$@"
  fi
}

# build BUILD [TARGET...]: builds the targets, or everything.
build() {
  local build=$1
  shift
  say "building $build"
  local begin=$SECONDS
  quietly "$build/logs/build.txt" ninja -C "$build" "$@"
  say "built in $((SECONDS - begin)) s"
}
