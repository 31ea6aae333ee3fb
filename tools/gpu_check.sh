#!/usr/bin/env bash
# Tests torchpipe on an NVIDIA GPU and measures it beside torch's loader there, in under 8 minutes and without a network.
#
#   tools/gpu_check.sh FOLDER_FOR_RESULTS [FOLDER_OF_WHEELS] [OPTION of tools/gpu_check.py...]
#
# Needs Python 3.11 or newer with pip, torch 2.9 or newer with CUDA, and numpy; PYTHON names another interpreter than
# python3. What else is missing of tools/gpu_check.txt is installed from FOLDER_OF_WHEELS into a temporary folder, and the
# environment stays as it is. On a machine with a network, make that folder for the Python that will run the check:
#
#   pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp --abi cp312 --abi abi3 --abi none \
#       --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
#       -r tools/gpu_check.txt -d FOLDER_OF_WHEELS
#
# Writes FOLDER_FOR_RESULTS/gpu_check.json as it goes, and the tests' own output beside it. Exits with 0 only if the tests that need
# a GPU ran and all tests ended and passed, with 2 if there is no GPU or nothing could be run, else with 1.
set -euo pipefail

usage="usage: tools/gpu_check.sh FOLDER_FOR_RESULTS [FOLDER_OF_WHEELS] [OPTION of tools/gpu_check.py...]"
[ $# -ge 1 ] && [ "${1#-}" = "$1" ] || { echo "$usage" >&2; exit 2; }
began=$(date +%s)
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
results=$1 wheels=
shift
[ $# -ge 1 ] && [ "${1#-}" = "$1" ] && { wheels=$1; shift; }

"$python" -c 'import importlib.util as found; exit(not (found.find_spec("torch") and found.find_spec("numpy")))' || {
    echo "$python has no torch with numpy: name another one by PYTHON=..." >&2
    exit 2
}

site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
# Where it is set, each of the processes that tests start would compile the project anew.
unset PYTHONDONTWRITEBYTECODE
export PYTHONPATH="$root:$site${PYTHONPATH:+:$PYTHONPATH}"

install() {
    "$python" -m pip --isolated --disable-pip-version-check install --quiet --root-user-action=ignore --no-index --no-deps \
        --no-compile --find-links "$wheels" --target "$site" "$@"
}
mapfile -t missing < <("$python" -m tools.gpu_check --missing)
if [ -n "${missing[*]}" ] && [ -n "$wheels" ]; then
    echo "installing into a temporary folder: ${missing[*]}"
    # One by one where one of them cannot be had: the others still serve.
    install "${missing[@]}" || for package in "${missing[@]}"; do install "$package" || true; done
fi
"$python" -c 'import torchpipe, pytest, hypothesis, pytest_timeout, psutil' || {
    echo "packages are missing; name a folder of wheels (this script says how it is made) with: ${missing[*]}" >&2
    exit 2
}

mkdir -p "$results"
results=$(cd "$results" && pwd)
cd "$root"
"$python" -m tools.gpu_check "$results" --began "$began" "$@"
