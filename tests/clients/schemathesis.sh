#!/usr/bin/env bash
# Requests made from /openapi.json by schemathesis, against the real binary with its built-in model: valid ones, and ones that the
# document forbids. None may be answered with a 5xx, nor with a status or a type of body that the document does not have. (Bodies are
# not compared: OpenAPI 3.1 has no way to describe the events of a stream.)
#
#   tests/clients/schemathesis.sh [CASES] [further arguments of `schemathesis run`]
#
# CASES: 2000 in all, if left out. GLIM: the binary, as for run.sh. Not part of CI: by hand, some minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."

cases=${1:-2000}
shift || true
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
glim=$(realpath "${GLIM:-$target/release/glim}")

venv=$target/schemathesis-venv
if [[ ! -x $venv/bin/schemathesis ]]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check 'schemathesis==4.32.5'
fi

work=$(mktemp -d)
# One coprocess: its first line says where it listens.
# Short answers, even for 128 choices at once: it is the requests that matter.
coproc SERVER { exec "$glim" serve --json --port 0 --context 256 --max-num-seqs 64 --max-tokens 16 2>"$work/log"; }
server=$SERVER_PID
trap 'kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
read -r said <&"${SERVER[0]}"
url=http://$(python3 -c 'import json, sys; print(json.loads(sys.argv[1])["address"])' "$said")
until curl --silent --fail --output /dev/null "$url/ready"; do
    kill -0 "$server"
    sleep 0.2
done

operations=$(curl --silent "$url/openapi.json" | python3 -c '
import json, sys
print(sum(len(set(path) & {"get", "post", "put", "delete"}) for path in json.load(sys.stdin)["paths"].values()))')
each=$(((cases + operations - 1) / operations))
echo "$operations operations, $each cases of each phase and operation at least"

# It leaves a folder where it runs.
cd "$work"
"$venv/bin/schemathesis" run "$url/openapi.json" \
    --checks not_a_server_error,status_code_conformance,content_type_conformance \
    --mode all --max-examples "$each" --phases examples,coverage,fuzzing --continue-on-failure \
    --request-timeout 180 --workers 2 --seed 1 --suppress-health-check all --generation-database none "$@"

kill -TERM "$server"
wait "$server"
if grep -n panicked "$work/log"; then
    exit 1
fi
