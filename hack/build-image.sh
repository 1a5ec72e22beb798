#!/usr/bin/env bash
# Builds both images of the Dockerfile, and says how large they are, what digest their content has, which is the same
# whenever a commit is built from the same base, and how long a process in them takes to start.
#
#   hack/build-image.sh          $BASE: the image to take Python from, else what hack/base-image.sh finds; $DOCKER: the client
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

docker=${DOCKER:-docker}
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' inferencecache/__init__.py)

"$docker" info >/dev/null 2>&1 || { echo "image: no Docker daemon answers; start it, or set DOCKER_HOST" >&2; exit 1; }
base=$(hack/base-image.sh)
commit=$(git describe --always --abbrev=40 --exclude '*' --dirty 2>/dev/null || true)

# Both are built from one copy: of a tree that is edited meanwhile, they would not be the same content.
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mapfile -t read < <(sed -n 's/^!//p' .dockerignore)
tar --create --exclude=__pycache__ .dockerignore Dockerfile "${read[@]}" | tar --extract --directory "$tree"

build() { # TARGET IMAGE
  "$docker" build --build-arg "BASE=$base" --build-arg "COMMIT=$commit" --target "$1" --tag "$2:$version" "$tree"
}
build inferencecache inferencecache
build subscriber inferencecache-subscriber

started() { # ARGUMENTS: seconds from `docker run` to the process's end, three times
  local begun
  for _ in 1 2 3; do
    begun=$EPOCHREALTIME
    "$docker" run --rm --read-only --network none "$@" >/dev/null
    awk -v a="$begun" -v b="$EPOCHREALTIME" 'BEGIN { printf " %.2f s", b - a }'
  done
}

bytes=$("$docker" image inspect --format '{{.Size}}' "inferencecache:$version")
printf '\ninferencecache:%s and inferencecache-subscriber:%s, %d MB, shared\n' "$version" "$version" $((bytes / 1000000))
printf 'content: %s\n' "$("$docker" image inspect --format '{{join .RootFS.Layers " "}}' "inferencecache:$version")"
printf 'start to end of --version:%s\n' "$(started "inferencecache:$version" --version)"
printf 'of kvevent-subscriber --help:%s\n' "$(started "inferencecache-subscriber:$version" --help)"
