#!/usr/bin/env bash
# Real clients against the real binary with its built-in model: `curl`, Python `openai` and `anthropic`, and the page in
# headless Chromium. Rust's `async-openai` is a test of the crate `glim`.
#
#   tests/clients/run.sh [python|web|all] [further arguments of pytest]
#
# GLIM: the binary; left out, the release build of this checkout. Needs python3, and for the page node and Chromium (CHROMIUM:
# its path). What is installed goes below target/.
set -euo pipefail
cd "$(dirname "$0")/../.."

what=${1:-all}
shift || true
target=${CARGO_TARGET_DIR:-target}
export GLIM=${GLIM:-$target/release/glim}
GLIM=$(realpath "$GLIM")
if [[ ! -x $GLIM ]]; then
    echo "there is no $GLIM: build it by \`cargo build --release\`, or name one by GLIM" >&2
    exit 1
fi

python_clients() {
    local venv=$target/clients-venv
    if ! cmp -s tests/clients/requirements.txt "$venv/requirements.txt"; then
        python3 -m venv --clear "$venv"
        "$venv/bin/pip" install --quiet --disable-pip-version-check -r tests/clients/requirements.txt
        cp tests/clients/requirements.txt "$venv/"
    fi
    "$venv/bin/python" -m pytest -q -p no:cacheprovider tests/clients "$@"
}

web() {
    (cd tests/web && npm ci --silent --no-audit --no-fund && node --test)
}

case $what in
python) python_clients "$@" ;;
web) web ;;
all)
    python_clients "$@"
    web
    ;;
*)
    echo "expected python, web or all, found $what" >&2
    exit 64
    ;;
esac
