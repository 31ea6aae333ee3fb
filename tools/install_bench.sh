#!/usr/bin/env bash
# Builds one of the benchmarks' virtual environments: other loaders in pinned versions, and this project.
#
#   tools/install_bench.sh FOLDER REQUIREMENTS CONSTRAINTS UV_VERSION
#
# Like tools/install.sh, but for a list of packages instead of this project's extras. Called by the Makefile.
set -euo pipefail

folder=$1 requirements=$2 constraints=$3 uv_version=$4
python=${PYTHON:-python3}

[ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
[ -x "$folder/bin/uv" ] || "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$uv_version"

# As in tools/install.sh: pip may know of a folder with torch's CPU build, and uv does not read pip's configuration.
links=${UV_FIND_LINKS:-$("$folder/bin/python" -m pip config get global.find-links 2>/dev/null || true)}
links=${links:-${PIP_FIND_LINKS:-}}
unset UV_FIND_LINKS
[ -n "$links" ] && [ -d "$links" ] && export UV_FIND_LINKS=$links

export VIRTUAL_ENV=$folder
"$folder/bin/uv" pip install --quiet -r "$requirements" -c "$constraints" --build-constraints "$constraints"
"$folder/bin/uv" pip install --quiet --no-deps --compile-bytecode --build-constraints "$constraints" -e .
