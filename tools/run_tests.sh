#!/usr/bin/env bash
# Runs the tests in the environment FOLDER; the second part runs whatever came of the first.
#
#   [MARKS="not any_torch"] tools/run_tests.sh FOLDER [ARGUMENT OF PYTEST...]
#
# MARKS, pytest's expression of marks, chooses among them.
# Exits with 0 only if each part passed or, by the arguments, had nothing to run, and not both of them.
set -uo pipefail

python=$1/bin/python
shift
passed=0 failed=0 lines=()
# Where it is set, each of the processes that tests start would compile the project anew, and pytest every test file.
unset PYTHONDONTWRITEBYTECODE

part() { # TITLE OPTION...
    local title=$1 code
    shift
    "$python" -m pytest "$@"
    code=$?
    case $code in
        0) passed=$((passed + 1)) lines+=("tests $title: passed") ;;
        5) lines+=("tests $title: none chosen") ;;
        *) failed=$((failed + 1)) lines+=("tests $title: FAILED (pytest ended with $code)") ;;
    esac
}

# Not loadgroup or loadscope: they give out again the test that crashed its process, and may then wait for ever.
part "without XLA" -n 2 --dist worksteal -m "not xla${MARKS:+ and ($MARKS)}" "$@"
# By themselves: importing torch_xla takes seconds, and once its runtime lives in a process, forking that one is unsafe.
if "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch_xla") is None)'; then
    part "with XLA" -n 2 --dist worksteal -m "xla${MARKS:+ and ($MARKS)}" "$@"
fi
printf '%s\n' "${lines[@]}"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
