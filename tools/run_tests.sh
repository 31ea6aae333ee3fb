#!/usr/bin/env bash
# Runs the tests in the environment FOLDER: those of XLA and Ray beside the others, shown after them; no part ends another.
#
#   [MARKS="not any_torch"] tools/run_tests.sh FOLDER [ARGUMENT OF PYTEST...]
#
# MARKS, pytest's expression of marks, chooses among them.
# Exits with 0 only if each part passed or, by the arguments, had nothing to run, and not both of them.
set -uo pipefail

python=$1/bin/python
shift
passed=0 failed=0 lines=() beside=
shown_later=$(mktemp -d)
trap 'kill $beside 2>/dev/null; rm -rf "$shown_later"' EXIT
# Where it is set, each of the processes that tests start would compile the project anew, and pytest every test file.
unset PYTHONDONTWRITEBYTECODE

# Not loadgroup or loadscope: they give out again the test that crashed its process, and may then wait for ever.
tests() { # PROCESSES (0: in pytest's own) MARKS ARGUMENT...
    local processes=$1 marks=$2
    shift 2
    "$python" -m pytest -n "$processes" --dist worksteal -m "$marks${MARKS:+ and ($MARKS)}" "$@"
}

count() { # TITLE CODE
    case $2 in
        0) passed=$((passed + 1)) lines+=("tests $1: passed") ;;
        5) lines+=("tests $1: none chosen") ;;
        *) failed=$((failed + 1)) lines+=("tests $1: FAILED (pytest ended with $2)") ;;
    esac
}

has() { "$python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)"; }

# XLA's and Ray's by themselves, one after the other: importing torch_xla takes seconds, and once its runtime lives in a
# process, forking that one is unsafe; Ray's share a cluster.
beside() {
    for part in xla:torch_xla ray:ray; do
        has "${part#*:}" || continue
        tests 0 "${part%:*}" "$@" >"$shown_later/${part%:*}" 2>&1
        echo $? >"$shown_later/${part%:*}.code"
    done
}

# At the same time, and the others in four: for a quarter of the time of two, nobody has anything to do but wait.
if [ "${MARKS-}" != quick ]; then
    beside "$@" &
    beside=$!
fi
tests 4 "not xla and not ray" "$@"
count "without XLA and Ray" $?
if [ -n "$beside" ]; then
    wait "$beside"
    beside=
    for part in xla ray; do
        if [ -e "$shown_later/$part.code" ]; then
            cat "$shown_later/$part"
            count "with $part" "$(cat "$shown_later/$part.code")"
        fi
    done
fi
printf '%s\n' "${lines[@]}"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
