#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Says what gacc's programs left behind: nothing, one hopes.
#   leftovers.sh snapshot FILE     notes what is there before
#   leftovers.sh check FILE DIR    lists new shared memory with gacc in its name (other programs may make some meanwhile), what lies in DIR, and processes that know DIR (from their command line
#                                  or environment); fails if there is any
#   leftovers.sh end DIR           kills such processes
# DIR is the temporary folder in which all of a run's sockets and files were to be.
set -eu

shared_memory() {
	find /dev/shm -mindepth 1 -maxdepth 1 -name '*gacc*' -user "$(id -un)" 2>/dev/null | sort
}

# Processes of DIR, this script and those that called it left out.
processes() {
	ours=" $$ "
	pid=$$
	while [ "$pid" -gt 1 ]; do
		pid=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status")
		ours="$ours$pid "
	done
	for proc in /proc/[0-9]*; do
		pid=${proc#/proc/}
		case $ours in *" $pid "*) continue ;; esac
		if { tr '\0' '\n' <"$proc/cmdline" && tr '\0' '\n' <"$proc/environ"; } 2>/dev/null | grep -qF "$1"; then
			parent=$(sed -n 's/^PPid:[[:space:]]*//p' "$proc/status" 2>/dev/null || true)
			[ "$parent" = $$ ] || echo "process $pid: $(tr '\0' ' ' <"$proc/cmdline" 2>/dev/null || true)"
		fi
	done
}

case ${1:-} in
snapshot)
	shared_memory >"$2"
	;;
check)
	found=$(
		shared_memory | comm -13 "$2" - | sed 's/^/shared memory: /'
		[ ! -d "$3" ] || find "$3" -mindepth 1 | sed 's/^/file: /'
		processes "$3"
	)
	[ -n "$found" ] || exit 0
	echo "$found"
	exit 1
	;;
end)
	processes "$2" | sed -n 's/^process \([0-9]*\):.*/\1/p' | xargs -r kill -KILL 2>/dev/null || true
	;;
*)
	echo "usage: leftovers.sh snapshot FILE | check FILE DIR | end DIR" >&2
	exit 2
	;;
esac
