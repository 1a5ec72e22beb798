#!/usr/bin/env bash
# Makes .venv hold exactly what requirements.lock names, and this project in editable form.
#
# Called by make when requirements.lock or pyproject.toml changed since the last time. $PYTHON chooses the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
say() { printf 'bootstrap: %s\n' "$*" >&2; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
  say "needs Python 3.11 or newer as '$python'; choose another with PYTHON=/path/to/python3.11 make …"
  exit 1
}

if [ ! -x .venv/bin/python ]; then
  if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    say "this Python cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv"
    exit 1
  fi
  say "making .venv"
  "$python" -m venv .venv
fi

# uv itself is one of the locked packages: it is fetched with the hashes of the lock, then installs the rest.
uv_version=$(sed -n 's/^uv==\([^ ;]*\).*/\1/p' requirements.lock)
if [ "$(.venv/bin/uv --version 2>/dev/null | awk '{ print $2 }')" != "$uv_version" ]; then
  say "fetching uv $uv_version"
  requirement=$(mktemp)
  trap 'rm -f "$requirement"' EXIT
  awk '/^uv==/ { inside = 1 } inside { print } inside && !/\\$/ { exit }' requirements.lock >"$requirement"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r "$requirement"
fi

say "installing the packages of requirements.lock"
VIRTUAL_ENV=$PWD/.venv .venv/bin/uv pip sync --quiet requirements.lock
VIRTUAL_ENV=$PWD/.venv .venv/bin/uv pip install --quiet --no-deps --no-build-isolation --editable .
say "ready"
