#!/usr/bin/env bash
# A release as `cargo xtask dist` made it, looked at as its user does: checksums hold, the binary runs where there is nothing else and names
# its commit, the manual and the completions are read by the programs that they are for.
#
#   tests/dist/check.sh [FOLDER]
#
# FOLDER: what `cargo xtask dist --out` was told; left out, target/dist. Needs groff, and zsh and fish (what is missing is said).
set -euo pipefail
cd "$(dirname "$0")/../.."

repository=$PWD
folder=$(realpath "${1:-target/dist}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "the release is not as it should be: $*" >&2
    exit 1
}

archives=("$folder"/glim-*.tar.gz)
[[ ${#archives[@]} == 1 && -f ${archives[0]} ]] || fail "expected one archive in $folder, found ${archives[*]}"
archive=${archives[0]}
name=$(basename "$archive" .tar.gz)
(cd "$folder" && sha256sum --check --strict --quiet "$name.tar.gz.sha256")

# Entries: all below one folder, nobody's, of the commit's time, sorted.
TZ=UTC tar --list --verbose --full-time --numeric-owner --file "$archive" >"$work/list"
time=$(TZ=UTC git log -1 --format=%cd --date=format-local:'%Y-%m-%d %H:%M:%S')
if grep --invert-match --quiet " 0/0 .* $time $name/" "$work/list"; then
    fail "entries that are somebody's, of another time or elsewhere: $(grep --invert-match " 0/0 .* $time $name/" "$work/list" | head -3)"
fi
tar --list --file "$archive" >"$work/names"
LC_ALL=C sort --check "$work/names" || fail "entries are not sorted"

tar --extract --file "$archive" --directory "$work"
release=$work/$name
cd "$release"
sha256sum --check --strict --quiet SHA256SUMS
diff <(find . -type f ! -name SHA256SUMS | LC_ALL=C sort) <(sed 's/^[0-9a-f]* [ *]/.\//' SHA256SUMS | LC_ALL=C sort) ||
    fail "SHA256SUMS is not of all files"

for file in glim README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT LICENSES-THIRD-PARTY docs/operations.md \
    man/man1/glim.1 man/man1/glim-serve.1 completions/glim.bash completions/_glim completions/glim.fish \
    systemd/glim.service deploy/Containerfile deploy/compose.yaml deploy/kubernetes/deployment.yaml \
    deploy/prometheus/alerts.yaml deploy/grafana/glim.json; do
    [[ -s $file ]] || fail "no $file"
done
diff --recursive "$repository/deploy" deploy
[[ -x glim ]] || fail "glim is not executable"
if readelf --sections --wide glim | grep --quiet '\.debug_info\|\.debug_line\|\.symtab'; then
    fail "glim is not stripped"
fi

# It is this commit's, and runs without anything of the repository.
version=$(./glim --version)
commit=$(git -C "$repository" rev-parse --short=12 HEAD)
number=${name#glim-}
number=${number%-x86_64-unknown-linux-gnu}
[[ $version == "glim $number ($commit 20"* ]] || fail "it should be $number of commit $commit, and says: $version"
answer=$(cd / && "$release/glim" run --device cpu -p "What is 27 + 58?")
[[ $answer == *85* ]] || fail "it should answer 85, and answers: $answer"

# Cubins, if it has some: as many as the list says, of the binary's sources.
if [[ -f KERNELS ]]; then
    listed=$(awk '$3 == "cubins" { sum += $2 } END { print sum }' KERNELS)
    found=$(find kernels -name '*.cubin' | wc -l)
    [[ $listed == "$found" && $found -gt 0 ]] || fail "KERNELS lists $listed cubins, and there are $found"
    sources=$(awk '$1 == "sources" { print $2 }' KERNELS)
    grep --quiet "^kernels  *$sources\$" <<<"$version" || fail "cubins are of sources $sources, and glim says: $version"
fi

grep --quiet '^ExecStart=/opt/glim/glim serve --config /etc/glim/glim.toml$' systemd/glim.service ||
    fail "the unit starts something else: $(grep ExecStart systemd/glim.service)"

for page in man/man1/*.1; do
    warnings=$(groff -man -ww -z -Tutf8 "$page" 2>&1)
    [[ -z $warnings ]] || fail "$page: $warnings"
done
bash -n completions/glim.bash
for shell in zsh fish; do
    case $shell in zsh) script=completions/_glim ;; fish) script=completions/glim.fish ;; esac
    if command -v $shell >/dev/null; then
        "$shell" -n "$script"
    else
        echo "skipped: $script, since $shell is not installed"
    fi
done
echo "$name: $(wc -l <SHA256SUMS) files, as they should be"
