#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing of packages.txt, as root or with sudo. Does nothing, and needs no network, when all is there.
#   install-packages.sh [SECTION...]   build, run, test (build and run)
#   OFFLINE=1  install nothing; fail when something is missing
set -eu

here=$(cd "$(dirname "$0")" && pwd)

[ $# -gt 0 ] || set -- build run
for section; do
	grep -q "^\[$section\]" "$here/packages.txt" || { echo "install-packages: packages.txt has no section $section" >&2; exit 2; }
done
listed() {
	awk -v sections=" $* " '{ sub(/#.*/, "") } /^\[/ { gsub(/[][ \t]/, ""); on = index(sections, " " $0 " "); next } on && NF { print $1 }' \
		"$here/packages.txt"
}

missing=
for package in $(listed "$@"); do
	status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) || status=
	[ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "${OFFLINE:-0}" = 1 ]; then
	echo "install-packages: missing, and OFFLINE=1 forbids to install:$missing" >&2
	exit 1
fi

as_root=
if [ "$(id -u)" != 0 ]; then
	if ! command -v sudo >/dev/null; then
		echo "install-packages: neither root nor sudo. As root: apt-get install$missing" >&2
		exit 1
	fi
	as_root=sudo
fi

echo "installing:$missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
	$as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" \
		>>"$log" 2>&1 </dev/null
}
# shellcheck disable=SC2086 # a list of words
if ! apt update || ! apt install --no-install-recommends $missing; then
	tail -n 20 "$log" >&2
	echo "install-packages: apt-get failed (above its last lines)" >&2
	exit 1
fi
