#!/bin/sh
# Joins the parts beside this script, checks them, and installs the wheels. Needs no network.
#   sh install.sh VENV [PYTHON]     VENV: the environment to make or to add to; PYTHON: default python3
set -eu
[ $# -ge 1 ] || { echo "usage: sh install.sh VENV [PYTHON]" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
venv=$1
python=${2:-python3}
# Packages from elsewhere must not count as installed.
unset PYTHONPATH

(cd "$here" && sha256sum --quiet --check SHA256SUMS) || {
    echo "install.sh: a part is missing or damaged: copy it again" >&2
    exit 1
}
wheels=$(mktemp -d "${TMPDIR:-/tmp}/comet-wheels.XXXXXX")
trap 'rm -rf "$wheels"' EXIT
cat "$here"/wheels.tar.* | tar -x -C "$wheels" -f -
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps \
    --find-links "$wheels" --require-hashes -r "$wheels/requirements.lock"
"$venv/bin/python" -m pip --disable-pip-version-check check
echo "installed into $venv; then, in the clone: $venv/bin/pip install --no-index --no-deps --no-build-isolation -e ."
