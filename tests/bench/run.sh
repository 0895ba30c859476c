#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# All benchmarks, one table. Figures are ratios taken inside one run; docs/performance.md says what they mean.
#
#   tests/bench/run.sh [--quick] [--wait SECONDS] [--out FILE] [--torch PYTHON] BUILD_DIR
#
#   --quick    fewer rounds and the smaller models: a minute instead of some ten
#   --wait     how long to wait for the machine to be quiet (0); then it measures anyway and says so
#   --out      the table also goes there (BUILD_DIR/bench.txt)
#   --torch    a Python that has PyTorch: compares with DistributedDataParallel, too, on one node and on several (some forty minutes more)
#
# Build first, with optimisation: cmake -DCMAKE_BUILD_TYPE=Release. Parts, each alone, B being BUILD_DIR/bin and PYTHON one with PyTorch:
#
#   C2   the updates against reading and against their loads and stores: B/bench_kernels -m 400 -r 15 updates
#        beside PyTorch: PYTHON tests/bench/torch/compare.py --only update BUILD_DIR
#   C3   PYTHON tests/bench/torch/compare.py --only speed --models S,M,L --ranks 2 BUILD_DIR, and --models S,M --ranks 4
#   C4   B/bench_push -r 15 push
#   C6   B/bench_coll -r 15, and at a link's rate (C6b): tests/bench/netns.py --rate 10gbit 4 B/bench_coll -r 15 -N {}
#   C6c  tests/bench/netns.py --rate 1gbit 4 B/bench_shards -r 15 -N {}
#   C7   B/bench_push -r 15 commit, and of several parts and nodes (C7n): B/bench_push -r 15 parts; the journal alone: B/bench_commit -r 15, its CPU time without the disk: -d /dev/shm
#   D1   PYTHON tests/bench/torch/nodes.py BUILD_DIR, and the same with --netns 10gbit
#
# What needs network namespaces is passed over unless root runs this.
#
# No part of this: B/bench_engine OTHER_GACCD compares the engine with that of another build, of the commit before a change to it.
set -eu

usage()
{
	sed -n '3,12s/^# \{0,1\}//p' "$0" >&2
	exit 2
}

quick= wait=0 out= torch= build=
while [ $# -gt 0 ]; do
	case $1 in
	--quick) quick=1 ;;
	--wait) [ $# -gt 1 ] || usage; wait=$2; shift ;;
	--out) [ $# -gt 1 ] || usage; out=$2; shift ;;
	--torch) [ $# -gt 1 ] || usage; torch=$2; shift ;;
	-*) usage ;;
	*) [ -z "$build" ] || usage; build=$1 ;;
	esac
	shift
done
[ -n "$build" ] && [ -d "$build/bin" ] || usage
: "${out:=$build/bench.txt}"
bin=$build/bin
kind=$(sed -n 's/^CMAKE_BUILD_TYPE:STRING=//p' "$build/CMakeCache.txt")

# CPUs that others keep busy, over two seconds.
busy()
{
	first=$(head -1 /proc/stat)
	sleep 2
	printf '%s\n%s\n' "$first" "$(head -1 /proc/stat)" |
		awk -v hz="$(getconf CLK_TCK)" '{ used = $2 + $3 + $4 + $7 + $8 + $9; if (NR == 2) printf "%.2f", (used - before) / hz / 2
			before = used }'
}

quiet()
{
	foreign=$(busy)
	read -r load _ </proc/loadavg
	awk -v f="$foreign" -v l="$load" 'BEGIN { exit !(f < 0.1 && l < 0.5) }'
}

head_of_report()
{
	printf 'gacc benchmarks, %s\n' "$(date -u '+%Y-%m-%d %H:%M UTC')"
	printf 'version   %s, build type %s\n' "$("$bin/gaccd" --version)" "${kind:-none}"
	printf 'machine   %s, %s CPUs, %s, Linux %s\n' "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1)" "$(nproc)" \
		"$(awk '/MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo)" "$(uname -r)"
	if [ -n "$noisy" ]; then
		printf 'NOT QUIET load %s, others use %s CPUs: look at the ratios by CPU time\n' "$load" "$foreign"
	else
		printf 'quiet     load %s, others use %s CPUs\n' "$load" "$foreign"
	fi
}

# The head of the second and later tables is left out. Not a pipe: it would hide that a program failed.
step()
{
	table=$("$bin/$@")
	printf '%s\n' "$table" | if [ -n "$headed" ]; then tail -n +2; else cat; fi
	headed=1
}

# C6b: over links of that rate.
coll_at()
{
	table=$("$(dirname "$0")/netns.py" --rate "$1" 4 "$bin/bench_coll" -r "$rounds" -n "$summed" -N {})
	printf 'links of %s:\n' "$1"
	printf '%s\n' "$table" | tail -n +2
}

# C6c: the same.
shards_at()
{
	table=$("$(dirname "$0")/netns.py" --rate "$1" 4 "$bin/bench_shards" -r "$rounds" -N {})
	printf '%s\n' "$table" | tail -n +2
}

service()
{
	headed=
	step bench_push -r "$rounds" push
	step bench_push -r "$rounds" commit
	step bench_push -r "$rounds" parts
	step bench_commit -r "$rounds"
	step bench_inline -r "$rounds"
	step bench_control -r "$rounds"
	step bench_parts -r "$rounds"
	step bench_coll -r "$rounds" -n "$summed"
	if [ -n "$namespaces" ]; then
		for rate in 10gbit 1gbit; do
			coll_at "$rate"
			shards_at "$rate"
		done
	fi
	step bench_mailbox -r "$rounds"
	for p in $sizes; do
		step bench_step -r "$rounds" -p "$p"
		step bench_step -r "$rounds" -p "$p" -R 2
	done
	step bench_step -r "$rounds" -p 10000000 -t
}

kernels()
{
	for mb in $arrays; do
		printf '\n'
		"$bin/bench_kernels" -m "$mb" -r "$rounds" passes
		printf '\n'
		"$bin/bench_kernels" -m "$mb" -r "$rounds" updates
	done
	printf '\n'
	"$bin/bench_kernels" -m "$scale" -r "$rounds" scaling
	printf '\n'
	"$bin/bench_kernels" -m "$scale" -r "$rounds" cliffs
}

if [ -n "$quick" ]; then
	rounds=5 sizes="670000 10000000" arrays="40" scale=100 summed=4000000
else
	rounds=15 sizes="670000 10000000 53600000" arrays="40 400" scale=400 summed=54000000
fi
namespaces=
if [ "$(id -u)" = 0 ] && "$(dirname "$0")/netns.py" 1 true 2>/dev/null; then
	namespaces=1
fi
noisy=1 end=$(($(date +%s) + wait))
while :; do
	if quiet; then
		noisy=
		break
	fi
	[ "$(date +%s)" -lt "$end" ] || break
	sleep 5
done
{
	head_of_report
	printf '\nThe service. "ratio" is ours / limit, or limit / ours where the goal is a floor; "foreign" are CPUs that others used.\n\n'
	service
	printf '\nThe kernels (C1, C2, C9, C12).\n'
	kernels
	if [ -n "$torch" ]; then
		printf '\nBeside PyTorch (C3a, C3b, C10, C11): what a step adds to forward and backward.\n'
		"$torch" "$(dirname "$0")/torch/compare.py" ${quick:+--quick --models S,M} "$build"
		for links in "" ${namespaces:+10gbit}; do
			printf '\nThe same on several nodes (D1).\n'
			"$torch" "$(dirname "$0")/torch/nodes.py" ${quick:+--quick --models S} ${links:+--netns $links} "$build"
		done
	fi
	printf '\nall measured\n'
} | tee "$out"
[ "$(tail -n 1 "$out")" = "all measured" ] || { echo "$0: a benchmark failed" >&2; exit 1; }
