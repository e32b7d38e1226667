#!/usr/bin/env bash
# What the formats' own tools say of deploy/: promtool of the alerts (and that each fires and is silent where it should), of the
# dashboard's expressions and of the scrape; the schemas of Kubernetes and Compose; hadolint of the Containerfile. That these files fit the
# program is a Rust test: crates/glim/tests/deploy.
#
#   tests/deploy/run.sh
#
# Needs python3 and, where promtool is not installed, apt. What is installed goes below target/.
set -euo pipefail
cd "$(dirname "$0")/../.."

target=${CARGO_TARGET_DIR:-target}
venv=$target/deploy-venv
if ! cmp -s tests/deploy/requirements.txt "$venv/requirements.txt"; then
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r tests/deploy/requirements.txt
    cp tests/deploy/requirements.txt "$venv/"
fi

promtool=promtool
if ! command -v promtool >/dev/null; then
    # Unpacked and not installed: Debian's package brings a service, which would start.
    promtool=$target/promtool/usr/bin/promtool
    if [[ ! -x $promtool ]]; then
        download=$(mktemp -d)
        trap 'rm -rf "$download"' EXIT
        (cd "$download" && apt-get download -qq prometheus 2>/dev/null || (apt-get update -qq && apt-get download -qq prometheus))
        mkdir -p "$target/promtool"
        dpkg-deb --extract "$download"/prometheus_*.deb "$target/promtool"
    fi
fi

"$promtool" check rules deploy/prometheus/alerts.yaml
"$promtool" test rules deploy/prometheus/alerts_test.yaml
"$promtool" check config deploy/prometheus/prometheus.yaml
python3 tests/deploy/dashboard_rules.py deploy/grafana/glim.json >"$target/dashboard-rules.json"
"$promtool" check rules "$target/dashboard-rules.json"

for manifest in deploy/kubernetes/*.yaml; do
    # Its kind is of kubectl, not of the cluster; the Rust test reads it.
    [[ $manifest == */kustomization.yaml ]] && continue
    # The oldest release that is still maintained, and the newest that the package knows.
    for version in 1.32 1.37; do
        "$venv/bin/kubernetes-validate" --strict --kubernetes-version "$version" "$manifest"
    done
done
"$venv/bin/check-jsonschema" --builtin-schema vendor.compose-spec deploy/compose.yaml
"$venv/bin/hadolint" --no-color deploy/Containerfile
