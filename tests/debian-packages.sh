#!/usr/bin/env bash
# Install those of the named Debian packages that are not there yet: tests/debian-packages.sh postgresql chromium
set -euo pipefail

if ! command -v apt-get > /dev/null; then
    echo "this is no Debian: install $* in the system's own way" >&2
    exit 0
fi
missing=()
for package in "$@"; do
    if [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2> /dev/null)" != installed ]; then
        missing+=("$package")
    fi
done
if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi
as_root=()
if [ "$(id --user)" -ne 0 ]; then
    if ! command -v sudo > /dev/null; then
        echo "root has to run first: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi
echo "Installing Debian's ${missing[*]}"
"${as_root[@]}" apt-get update --quiet=2
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends "${missing[@]}"
