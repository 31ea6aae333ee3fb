#!/usr/bin/env bash
# Runs the core's tests in a copy of the working tree from which every ring (torchpipe/rings.py) is deleted.
#
#   [MARKS="not any_torch"] tools/core_alone.sh FOLDER_OF_ENVIRONMENT [ARGUMENT OF PYTEST...]
set -euo pipefail

environment=$(cd "$1" && pwd)
shift
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
    if [ -e "$file" ]; then printf '%s\0' "$file"; fi
done | xargs -0 cp --parents -t "$copy"
cd "$copy"
"$environment/bin/python" -m tests.rings alone
PYTHONPATH=$copy tools/run_tests.sh "$environment" "$@"
