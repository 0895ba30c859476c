#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks the protocol's models with spin: every base must hold, every mutant must be caught by the property named here.
#
#   run.sh           small bounds, a minute or two on two cores, under 1 GB; with GACC_SAMPLE a third of the mutants, drawn by it
#   run.sh --full    all mutants, and the larger bounds as well, one at a time, at most 6 GB
#   run.sh --trace MODEL MUTANT [NAME=VALUE ..]    the steps that lead a mutant to its error
#
# JOBS sets how many checkers run at once. Needs spin and gcc.

set -u
here=$(cd "$(dirname "$0")" && pwd)

# kind, model, mutant or -, property that must break or -, bounds.
#   holds    all assertions, I9's timeout among them
#   acyclic  no cycle at all, so that I9 says what it seems to say; same as "no progress label and no non-progress cycle"
#   caught   the mutant breaks that property
#   cycles   the mutant has a cycle: the acyclic check can fail
rows() {
	cat <<-END
	holds   acc  -  -  R=2 M=2 S=2 EVENTS=2
	holds   acc  -  -  R=2 M=3 S=2 EVENTS=2 GENS=2
	holds   acc  -  -  R=2 M=2 S=3 EVENTS=2 GENS=2
	holds   acc  -  -  R=1 M=3 S=2 EVENTS=3 GENS=2
	acyclic acc  -  -  R=2 M=2 S=2 EVENTS=2
	cycles  acc  crash_is_free        -      EVENTS=1
	caught  acc  nodedup              I5     EVENTS=1
	caught  acc  inplace              I5     EVENTS=1
	caught  acc  early_ack            I4     EVENTS=1
	caught  acc  bit_before_data      I5     EVENTS=1
	caught  acc  no_session_fence     I6     EVENTS=1
	caught  acc  attach_without_drain I6     EVENTS=1
	caught  acc  no_epoch_fence       I6     EVENTS=1
	caught  acc  volatile_bitmap      I5     EVENTS=1
	caught  acc  volatile_sgen        I7     EVENTS=1
	caught  acc  no_window_fence      I6     EVENTS=1
	caught  acc  order_of_arrival     ORDER  EVENTS=1
	caught  acc  drain_keeps_pass     ORDER  EVENTS=1
	caught  acc  zombie_shares_slot   I8     EVENTS=1
	caught  acc  flush_not_durable    I4     EVENTS=2 UNSTABLE=1
	caught  acc  flush_not_fenced     I10    EVENTS=1
	caught  acc  attach_resets_flush  I4     EVENTS=2 UNSTABLE=1
	caught  acc  return_at_once       STABLE EVENTS=2
	caught  acc  leave_forgotten      I9     EVENTS=1
	caught  acc  leave_not_fenced     I10    EVENTS=2
	caught  acc  void_is_counted      I5     EVENTS=1
	caught  acc  void_is_forgotten    I5     EVENTS=1 UNSTABLE=1
	caught  acc  void_blocks          I9     EVENTS=1
	caught  acc  close_not_freezing   I1     EVENTS=1
	caught  acc  close_not_durable    I1     EVENTS=2
	caught  acc  late_is_committed    I4     EVENTS=1
	caught  acc  forgotten_is_lost    I4     EVENTS=1
	holds   step -  -  R=2 S=2 EVENTS=2
	holds   step -  -  R=3 S=2 EVENTS=1
	holds   step -  -  R=2 S=2 EVENTS=2 TERMS=3
	holds   step -  -  R=1 S=2 EVENTS=3 EPOCHS=1
	holds   step -  -  R=2 S=2 EVENTS=2 SHARDED=1
	holds   step -  -  R=3 S=1 EVENTS=2
	acyclic step -  -  R=2 S=2 EVENTS=2
	acyclic step -  -  R=3 S=2 EVENTS=1
	acyclic step -  -  R=2 S=2 EVENTS=2 TERMS=3
	acyclic step -  -  R=1 S=2 EVENTS=3 EPOCHS=1
	acyclic step -  -  R=2 S=2 EVENTS=2 SHARDED=1
	caught  step commit_before_persist   I3  EVENTS=1
	caught  step no_term_cas             I2  EVENTS=1
	caught  step log_before_term         I9  EVENTS=1
	caught  step closed_attempt_counts   I9  EVENTS=1
	caught  step untagged_vote           I1  EVENTS=1
	caught  step inplace_reduce          I1  EVENTS=1
	caught  step prepared_volatile       I9  EVENTS=1
	caught  step attempt_survives_bump   I9  EVENTS=1
	caught  step heal_from_behind        I2  EVENTS=1
	caught  step base_below_log          I7  EVENTS=1
	caught  step go_without_epoch        I10 EVENTS=1
	caught  step close_without_epoch     I10 EVENTS=2
	caught  step report_survives_bump    I10 EVENTS=1
	caught  step go_before_complete      I10 EVENTS=1
	caught  step close_not_freezing      I1  EVENTS=1
	caught  step close_not_continued     I9  EVENTS=2
	caught  step freeze_survives_bump    I1  EVENTS=1
	caught  step comm_reused             I9  EVENTS=1
	caught  step second_life_joins       I9  EVENTS=1
	caught  step refused_in_silence      I9  EVENTS=1
	caught  step go_waits_for_go         I9  EVENTS=1
	caught  step failed_vote_stays       I9  EVENTS=2
	caught  step gathering_volatile      I9  EVENTS=1 SHARDED=1
	holds   mailbox - - R=1 M=2 S=1 EVENTS=1
	holds   mailbox - - R=1 M=1 S=2 EVENTS=2
	holds   mailbox - - R=1 M=2 S=1 EVENTS=1 RECORD=1 SLOTS=1
	holds   mailbox - - R=2 M=1 S=2 EVENTS=1 BOXES=1 MIX=0
	acyclic mailbox - - R=1 M=1 S=2 EVENTS=1
	caught  mailbox no_fence               I6    M=1 S=1 EVENTS=1
	caught  mailbox fence_by_mailbox       I6    M=1 S=1 EVENTS=1
	caught  mailbox mailbox_not_compared   I6    M=1 S=1 EVENTS=2
	caught  mailbox attach_keeps_parked    I6    M=2 S=1 EVENTS=1
	caught  mailbox epoch_keeps_mailbox    I6    M=1 S=1 EVENTS=1
	caught  mailbox mailbox_before_run     RUN   M=1 S=1 EVENTS=0
	caught  mailbox restart_does_not_scan  I9    M=1 S=1 EVENTS=1
	caught  mailbox taken_without_bell     I9    M=1 S=1 EVENTS=1
	caught  mailbox d_not_reset            I9    M=1 S=1 EVENTS=1
	caught  mailbox bitmap_not_asked       I5    M=1 S=1 EVENTS=1
	caught  mailbox void_not_asked         I5    M=1 S=1 EVENTS=2
	caught  mailbox void_is_duplicate      I4    M=1 S=1 EVENTS=1
	caught  mailbox answer_before_bit      I4    M=1 S=1 EVENTS=1
	caught  mailbox answer_before_told     I4    M=1 S=1 EVENTS=1 RECORD=1
	caught  mailbox rpc_before_told        I4    M=1 S=1 EVENTS=1 RECORD=1
	caught  mailbox answer_before_zero     I8    M=2 S=1 EVENTS=0 RECORD=1 SLOTS=1
	caught  mailbox rpc_before_zero        I8    M=2 S=1 EVENTS=0 RECORD=1 SLOTS=1
	caught  mailbox check_not_asked        I8    M=1 S=1 EVENTS=0
	caught  mailbox present_not_checked    I8    M=1 S=1 EVENTS=0
	caught  mailbox seq_repeated           I4    M=2 CELLS=1 S=1 EVENTS=1
	caught  mailbox old_answer_for_new_seq I4    M=2 CELLS=1 S=1 EVENTS=1
	caught  mailbox cell_used_again        ORDER M=2 S=2 EVENTS=1
	caught  mailbox rpc_does_not_scan      ORDER M=2 S=1 EVENTS=0
	caught  mailbox flush_does_not_scan    FLUSH M=1 S=1 EVENTS=1
	caught  mailbox flush_refuses_parked   FLUSH M=1 S=1 EVENTS=1
	caught  mailbox flush_before_mailbox   FLUSH M=1 S=1 EVENTS=2
	caught  mailbox repeat_not_joined      I5    M=1 S=1 EVENTS=1
	caught  mailbox bell_before_store      I9    M=1 S=1 EVENTS=0
	caught  mailbox bell_seen_after_scan   I9    M=2 S=1 EVENTS=0
	caught  mailbox one_cell_a_bell        I9    M=2 S=1 EVENTS=1
	caught  mailbox one_answer_a_bell      I9    M=2 S=1 EVENTS=0
	caught  mailbox closed_without_bell    I9    M=1 S=1 EVENTS=1
	caught  mailbox hangup_not_watched     I9    M=1 S=1 EVENTS=1
	caught  mailbox block_after_answer     BLOCK M=1 S=1 EVENTS=0
	caught  mailbox wait_forgotten         I9    M=1 S=1 EVENTS=1
	caught  mailbox wait_before_gaccd      ORDER M=1 S=2 EVENTS=0
	caught  mailbox progress_not_repeated  I9    M=1 S=1 EVENTS=1
	caught  mailbox rpc_before_attach      ORDER M=2 S=1 EVENTS=1
	holds   armed - - S=2 EVENTS=3
	holds   armed - - S=3 EVENTS=3
	acyclic armed - - S=2 EVENTS=3
	caught  armed vote_taken_while_paused        I11 EVENTS=2
	caught  armed restart_closes_a_paused_window I11 EVENTS=2
	caught  armed go_never_ordered_after_armed   I9  EVENTS=2
	caught  armed vote_of_an_old_attempt         I9  EVENTS=2
	caught  armed record_forgets_the_vote        I9  EVENTS=2
	caught  armed armed_survives_its_engine      I9  EVENTS=2
	caught  armed ordered_go_waits_for_the_armed I9  EVENTS=2
	holds   fill - - R=2 EVENTS=2
	holds   fill - - R=3 EVENTS=2
	acyclic fill - - R=3 EVENTS=1
	caught  fill fill_without_unready I30 R=2 EVENTS=1
	caught  fill old_reports_count    I30 R=3 EVENTS=1
	caught  fill digests_not_compared I30 R=2 EVENTS=0
	caught  fill taker_says_its_own   I9  R=2 EVENTS=0
	END
}

rows_full() {
	cat <<-END
	holds   acc  -  -  R=2 M=2 S=2 EVENTS=3
	holds   acc  -  -  R=1 M=3 S=2 EVENTS=5 GENS=2
	acyclic acc  -  -  R=1 M=3 S=2 EVENTS=4 GENS=2
	holds   step -  -  R=2 S=2 EVENTS=3
	holds   step -  -  R=3 S=2 EVENTS=2
	holds   step -  -  R=2 S=3 EVENTS=2
	holds   step -  -  R=2 S=1 EVENTS=3 TERMS=3
	holds   step -  -  R=2 S=2 EVENTS=3 SHARDED=1
	acyclic step -  -  R=3 S=1 EVENTS=2
	acyclic step -  -  R=2 S=2 EVENTS=3
	holds   mailbox - - R=1 M=2 S=2 EVENTS=1
	holds   mailbox - - R=1 M=2 S=1 EVENTS=2
	holds   mailbox - - R=1 M=1 S=1 EVENTS=3 GENS=3 RECORD=1
	holds   mailbox - - R=2 M=1 S=1 EVENTS=1 MIX=0
	holds   armed - - S=3 EVENTS=5
	END
}

# build DIR CFLAGS MODEL MUTANT BOUNDS..: makes DIR/pan, DIR/MODEL.pml
build() {
	dir=$1 cflags=$2 model=$3 mutant=$4
	shift 4
	defines=
	for bound in "$@"; do defines="$defines -D$bound"; done
	[ "$mutant" = - ] || defines="$defines -DMUTANT_$mutant"
	mkdir -p "$dir" && cp "$here/$model"*.pml "$dir" && cd "$dir" &&
		spin -a $defines "$model.pml" >build.log 2>&1 &&
		gcc -w -DNOREDUCE -DMEMLIM="$MEMORY" $cflags -o pan pan.c >>build.log 2>&1
}

# One row: builds, runs, prints one line that begins with ok or FAILED.
row() {
	set -- $1
	kind=$1 model=$2 mutant=$3 property=$4
	shift 4
	case $kind in
	acyclic | cycles) cflags="-DNP $COMPRESS" run=-l ;;
	*) cflags="-DSAFETY $COMPRESS" run= ;;
	esac
	case $kind in
	caught | cycles) cflags="$cflags -O0" ;; # the search ends before an optimizer would have
	*) cflags="$cflags -O2" ;;
	esac
	name="$kind $model"
	[ "$mutant" = - ] || name="$name $mutant"
	dir=$WORK/$(echo "$name $*" | tr ' =' '__')
	if ! build "$dir" "$cflags" "$model" "$mutant" "$@"; then
		echo "FAILED  $name $*: does not build: $(head -n 1 "$dir/build.log")"
		return
	fi
	./pan -m10000 -w"$HASH" $run >pan.log 2>&1
	broken=$(sed -n 's/^pan:[0-9]*: assertion violated \([A-Z0-9]*\) .*/\1/p; s/^pan:[0-9]*: \(non-progress cycle\).*/\1/p' pan.log)
	other=$(grep -E '^(pan|error)[:0-9]*: |not completed' pan.log | grep -v -e 'elapsed time' -e ': rate' | head -n 1)
	states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' pan.log)
	seconds=$(sed -n 's/^pan: elapsed time \([0-9.e+]*\) seconds/\1/p' pan.log)
	case $kind in
	caught) want=$property ;;
	cycles) want="non-progress cycle" ;;
	*) want= ;;
	esac
	if [ "$broken" != "$want" ] || { [ -z "$want" ] && { [ -n "$other" ] || ! grep -q 'errors: 0' pan.log; }; }; then
		echo "FAILED  $name $*: ${broken:-${other:-no property}} instead of ${want:-no error}"
	else
		echo "ok  $name $*: ${want:+by $want, }$states states, $seconds s"
	fi
	rm -rf "$dir"
}

# A mutant in a model that no row checks would be a test that nobody runs.
unlisted() {
	for model in acc step mailbox armed fill; do
		grep -oh 'MUTANT_[a-z_]*' "$here/$model"*.pml | sort -u | sed 's/MUTANT_//' | while read -r mutant; do
			[ "$mutant" = x ] || rows | grep -q " $model *$mutant " || echo "FAILED  $model $mutant: no row checks it"
		done
	done
}

: "${WORK:=}" "${MEMORY:=1400}" "${COMPRESS:=}" "${HASH:=22}"
if [ "${1-}" = --row ]; then
	row "$2"
	exit
fi

command -v spin >/dev/null && command -v gcc >/dev/null || { echo "run.sh: spin and gcc are needed" >&2; exit 2; }
WORK=$(mktemp -d) || exit 2
trap 'rm -rf "$WORK"' EXIT
trap 'exit 130' INT TERM
export WORK MEMORY COMPRESS HASH

case ${1-} in
--trace)
	[ $# -ge 3 ] || { echo "usage: run.sh --trace MODEL MUTANT [NAME=VALUE ..]" >&2; exit 2; }
	shift
	build "$WORK/trace" -DSAFETY "$@" || { cat build.log; exit 2; }
	./pan -m10000 | sed -n '/assertion violated/p'
	spin -t -p -g $defines "$model.pml"
	exit
	;;
--full) ;;
"") ;;
*) echo "usage: run.sh [--full | --trace MODEL MUTANT [NAME=VALUE ..]]" >&2; exit 2 ;;
esac

# A third of the mutants, drawn by GACC_SAMPLE if that is set.
rows | while read -r row; do
	case $row in
	caught* | cycles*)
		draw=$(echo "${GACC_SAMPLE-}/$row" | cksum)
		[ -z "${GACC_SAMPLE-}" ] || [ "${1-}" = --full ] || [ $((${draw%% *} % 3)) = 0 ] || continue
		;;
	esac
	echo "$row"
done >"$WORK/rows"
unlisted | tee "$WORK/results"
expected=$(($(wc -l <"$WORK/rows") + $(wc -l <"$WORK/results")))
xargs -d '\n' -n 1 -P "${JOBS:-2}" sh "$here/run.sh" --row <"$WORK/rows" | tee -a "$WORK/results"
if [ "${1-}" = --full ]; then
	MEMORY=6000 COMPRESS=-DCOLLAPSE HASH=25
	rows_full >"$WORK/rows"
	expected=$((expected + $(wc -l <"$WORK/rows")))
	xargs -d '\n' -n 1 sh "$here/run.sh" --row <"$WORK/rows" | tee -a "$WORK/results"
fi
passed=$(grep -c '^ok' "$WORK/results")
echo "$passed passed, $((expected - passed)) failed"
[ "$passed" -eq "$expected" ]
