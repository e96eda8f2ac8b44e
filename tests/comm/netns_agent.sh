#!/usr/bin/env bash
# Launch agent for hosts that are network namespaces: starts a command in the one of an address, under a host name of its
# own. mpirun calls it as it would call ssh.
# usage: TESSERA_NETNS=PREFIX netns_agent.sh ADDRESS COMMAND...    10.77.0.3 is the namespace PREFIX3
set -euo pipefail
: "${TESSERA_NETNS:?the prefix of the namespaces}"
host=$TESSERA_NETNS${1##*.}
shift
# shellcheck disable=SC2016  # the inner shell expands them
exec ip netns exec "$host" unshare --uts sh -c 'hostname "$1" && shift && exec sh -c "$*"' sh "$host" "$@"
