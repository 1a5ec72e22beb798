#!/usr/bin/env bash
# Finds or builds etcd, kube-apiserver and kubectl, and prints the directory that holds them as its last line of stdout.
# With --cluster also what a node needs: kube-controller-manager, kube-scheduler, kube-proxy, kubelet, coredns and the
# process that holds a Pod open, and what enforces NetworkPolicies (15 more minutes, once).
# --look: only look, and build nothing.
#
# Looked at in this order, the first complete one wins:
#   1. $KUBEBUILDER_ASSETS                                   (the envtest convention)
#   2. ~/.cache/inferencecache/k8s/<version>/bin             (what an earlier run built)
#   3. setup-envtest, if it is installed                     (downloads a prebuilt set)
#   4. a build from the published Go modules into 2.         (about 8 minutes on two cores, once per user and version)
#
# Everything but the last line goes to stderr. A kubectl on PATH is good enough; it is built only where there is none.
# Safe to run twice at once (the second waits) and to interrupt: a binary appears in the cache complete or not at all.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kubernetes_version=$(awk '$1 == "require" && $2 == "k8s.io/kubernetes" { print substr($3, 2) }' "$here/controlplane/go.mod")
cache="${XDG_CACHE_HOME:-$HOME/.cache}/inferencecache/k8s/$kubernetes_version"
heartbeat_seconds=15

say() { printf 'control plane: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

wanted=(etcd kube-apiserver)
command -v kubectl >/dev/null || wanted+=(kubectl)
look=
for argument in "$@"; do
  case $argument in
    --cluster) wanted+=(kube-scheduler kube-proxy kubelet kube-controller-manager coredns pause netpol) ;;
    --look) look=yes ;;
    *) die "unknown argument $argument; there are --cluster and --look" ;;
  esac
done

complete() { # DIRECTORY: does it hold every wanted binary?
  local name
  for name in "${wanted[@]}"; do
    [ -x "$1/$name" ] || return 1
  done
}

found() {
  say "using $1"
  printf '%s\n' "$1"
  exit 0
}

# The smallest Go that builds everything: the highest `go` directive of the modules.
needed_go() {
  awk '$1 == "go" { print $2 }' "$here"/{controlplane,etcd,coredns,pause,netpol}/go.mod | sort -V | tail -n 1
}

require_go() {
  local needed have
  needed=$(needed_go)
  command -v go >/dev/null || die "building needs Go $needed or newer and there is no 'go' on PATH." \
    "Unpack a release from https://go.dev/dl/ and put its bin directory on PATH" \
    "(Debian 12's own 'golang' package is 1.19, which is too old), or set KUBEBUILDER_ASSETS to a directory with: ${wanted[*]}."
  have=$(go env GOVERSION)
  have=${have#go}
  have=${have%%[ -]*}
  [ "$(printf '%s\n%s\n' "$needed" "$have" | sort -V | head -n 1)" = "$needed" ] && return
  # Since 1.21 a Go that is too old fetches the toolchain a module asks for, unless it was told not to.
  if [ "$(printf '1.21\n%s\n' "$have" | sort -V | head -n 1)" = 1.21 ] && [ "$(go env GOTOOLCHAIN)" != local ]; then
    say "go $have will fetch the toolchain of Go $needed by itself"
    return
  fi
  die "building needs Go $needed or newer, but 'go' on PATH is $have. Install a newer release from https://go.dev/dl/."
}

child=
unfinished=
stop_child() {
  # The build runs in a process group of its own, so that the compilers it started end with it.
  if [ -n "$child" ] && kill -0 "$child" 2>/dev/null; then
    kill -TERM -- "-$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true
  fi
  [ -z "$unfinished" ] || rm -f "$unfinished"
}
trap stop_child EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

build() { # NAME MODULE-DIRECTORY PACKAGE LDFLAGS
  local name=$1 module=$2 package=$3 ldflags=$4 started=$SECONDS ticks=0 log
  if [ -x "$cache/bin/$name" ]; then
    return
  fi
  say "building $name (go build $package)"
  unfinished="$cache/bin/.$name.$$"
  log="$cache/$name.build.log"
  set -m # gives the background job its own process group
  (cd "$here/$module" && exec env CGO_ENABLED=0 GOWORK=off go build -mod=readonly -o "$unfinished" -ldflags "$ldflags" "$package") \
    >"$log" 2>&1 &
  child=$!
  set +m
  while kill -0 "$child" 2>/dev/null; do
    sleep 1
    ticks=$((ticks + 1))
    if [ $((ticks % heartbeat_seconds)) -eq 0 ]; then
      say "building $name: $((SECONDS - started)) s, $(grep -c '^go: downloading' "$log" || true) modules downloaded"
    fi
  done
  if ! wait "$child"; then
    child=
    tail -n 20 "$log" >&2
    die "building $name failed; the whole output is in $log"
  fi
  child=
  mv -f "$unfinished" "$cache/bin/$name"
  unfinished=
  rm -f "$log"
  say "built $name in $((SECONDS - started)) s"
}

if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
  complete "$KUBEBUILDER_ASSETS" && found "$KUBEBUILDER_ASSETS"
  say "KUBEBUILDER_ASSETS is $KUBEBUILDER_ASSETS, which lacks one of: ${wanted[*]}; looking further"
fi

complete "$cache/bin" && found "$cache/bin"

if [ -z "$look" ] && command -v setup-envtest >/dev/null; then
  say "asking setup-envtest for ${kubernetes_version%.*}.x"
  if assets=$(timeout 300 setup-envtest use "${kubernetes_version%.*}.x" --print path) && complete "$assets"; then
    found "$assets"
  fi
  say "setup-envtest has no complete set; building instead"
fi

[ -z "$look" ] || die "not built yet: ${wanted[*]}"
require_go
mkdir -p "$cache/bin"
if command -v flock >/dev/null; then
  exec 9>"$cache/.lock"
  if ! flock --nonblock 9; then
    say "another build is running; waiting for it"
    flock 9
  fi
fi

stamp=k8s.io/component-base/version
minor=${kubernetes_version#*.}
kubernetes_ldflags="-s -w -X $stamp.gitVersion=v$kubernetes_version -X $stamp.gitMajor=${kubernetes_version%%.*} -X $stamp.gitMinor=${minor%%.*}"

say "building ${wanted[*]} for Kubernetes $kubernetes_version into $cache/bin; this happens once and takes some minutes"
for name in "${wanted[@]}"; do
  case $name in
    etcd | coredns | pause | netpol) build "$name" "$name" . "-s -w" ;;
    *) build "$name" controlplane "k8s.io/kubernetes/cmd/$name" "$kubernetes_ldflags" ;;
  esac
done
found "$cache/bin"
