#!/usr/bin/env bash
# Writes the constraints files anew: the newest versions that fit pyproject.toml, for every platform and Python.
#
#   tools/pin.sh UV EXTRAS EXTRAS_NEWEST EXTRAS_TRAINERS [NEWEST_TORCH]
#
# Called by `make constraints`. The newest torch is named here, because pyproject.toml only says which one is the oldest.
set -euo pipefail

uv=$1 extras=$2 extras_newest=$3 extras_trainers=$4 newest_torch=${5:-2.13.0}

pin() { # FILE TITLE EXTRAS REQUIREMENT...
    local file=$1 title=$2 options=()
    for extra in ${3//,/ }; do options+=(--extra "$extra"); done
    shift 3
    {
        echo "# Versions of the $title. Written by \`make constraints\`; names and versions only, no hosts."
        # Without local wheels (UV_FIND_LINKS), whose versions would carry a suffix that other machines lack.
        printf '%s\n' hatchling editables "$@" | env -u UV_FIND_LINKS "$uv" pip compile --quiet --upgrade --universal \
            --python-version 3.11 --no-header --no-annotate "${options[@]}" pyproject.toml -
    } >"$file.new"
    mv "$file.new" "$file"
}

pin constraints.txt 'torch 2.9 + torch_xla leg (`make test`)' "$extras"
pin constraints-newest.txt 'newest-torch leg (`make test-newest`)' "$extras_newest" "torch==$newest_torch"
pin constraints-trainers.txt 'trainers, on the newest torch (`make test-trainers`)' "$extras_trainers" "torch==$newest_torch"

{
    echo '# Versions of the documentation site (`make docs`). Written by `make constraints`; names and versions only, no hosts.'
    "$uv" pip compile --quiet --upgrade --universal --python-version 3.11 --no-header --no-annotate --group docs
} >constraints-docs.txt.new
mv constraints-docs.txt.new constraints-docs.txt

{
    echo '# Versions of what a notebook needs besides (`make test-notebook`). Written by `make constraints`; names and versions only, no hosts.'
    "$uv" pip compile --quiet --upgrade --universal --python-version 3.11 --no-header --no-annotate -c constraints.txt --group notebook
} >constraints-notebook.txt.new
mv constraints-notebook.txt.new constraints-notebook.txt
