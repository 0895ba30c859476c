/* SPDX-License-Identifier: Apache-2.0 */
/* The mailbox: pushes and WAITs through shared memory, beside the same calls by RPC.
 *
 * One engine, gaccd, R ranks' trainers. acc.pml shows passes, torn slots and late calls; this model starts there: a pass is
 * one flip of one pair, and an RPC call arrives for as long as its caller waits. What is new here is who sees a cell, when,
 * and who is woken. The stores of a request become visible in any order; its bell comes after all of them. A bell is an edge:
 * it is gone when it has been seen, when the engine dies, and when nobody watches yet.
 *
 * Every rule is one atomic step, and the engine may die between any two. Faults and wishes are paid from `events`, and `calm`
 * throws the rest away at any moment: I9 does not hope for a helpful crash, nor for a trainer's own time limit.
 *
 * R ranks, M micro-batches of each per window, CELLS cells and slots of each mailbox, S windows, EVENTS, GENS - 1 new sessions
 * per rank, EPOCHS - 1 rollbacks. MUTANT_x takes one rule away, and a check must then fail.
 */
#ifndef R
#define R 1
#endif
#ifndef M
#define M 2
#endif
#ifndef CELLS
#define CELLS M
#endif
#ifndef BOXES
#define BOXES R /* ranks from this one on have no mailbox */
#endif
#ifndef SLOTS
#define SLOTS M
#endif
#ifndef MIX
#define MIX 1 /* 0: trainers use RPC only where they must */
#endif
#ifndef RECORD
#define RECORD 0 /* 1: `told` and zero_after are steps of their own */
#endif
#ifndef S
#define S 2
#endif
#ifndef EVENTS
#define EVENTS 2
#endif
#ifndef GENS
#define GENS 2
#endif
#ifndef EPOCHS
#define EPOCHS 2
#endif
#if R > 2 || M > 2 || CELLS > M || S > 2 || EPOCHS > 2
#error "bounds: cells, micro-batches and ranks are listed below"
#endif

/* Sets of (rank, micro) pairs have bit m * R + r, so that canonical order is ascending. */
#define BIT(x) (1 << (x))
#define PAIR(r, m) (1 << ((m) * R + (r)))
#define EVERY_PAIR ((1 << (R * M)) - 1)
#define EVERY_MICRO ((1 << M) - 1)
#define EVERY_CELL ((1 << CELLS) - 1)
#define PAIRS_OF(ranks) ((ranks) * (EVERY_PAIR / ((1 << R) - 1)))

/* A request: PUSH of micro-batch k, or WAIT (k == M). The epoch is for the checks: no cell has one. */
#define REQUEST(e, w, k) (1 + ((e) * S + (w)) * (M + 1) + (k))
#define WHAT_OF(id) (((id) - 1) % (M + 1))
#define WINDOW_OF(id) (((id) - 1) / (M + 1) % S)
#define EPOCH_OF(id) (((id) - 1) / (M + 1) / S)
#define CELL_OF(k) ((k) % M % CELLS) /* WAIT takes the first one */

/* ---- state ---- */

/* The control record: outlives the engine. */
byte epoch, window;
byte counted, voided;    /* pairs */
byte flushed;            /* ranks */
byte sgen[R];
bool closed;             /* the window is frozen */
byte committed[S];       /* pairs: the kept bitmaps of the windows before; in gaccd */
byte untold;             /* pairs of the newest record, while `told` is older than it: lost when that page is damaged */
byte zeroing;            /* pairs whose slots are to be zeroed (zero_after) */

/* The accumulator P[x]: pairs added once, pairs added twice. */
byte once, twice;

/* Mailboxes: each rank's newest session has one, and the one before. */
#define BOX(r, g) (2 * (r) + ((g) & 1))
#define AT(b, c) ((b) * CELLS + (c))
byte request[2 * R * CELLS];
byte seq[2 * R * CELLS];   /* of the request, modulo 4 */
byte answer[2 * R * CELLS];/* the seq that is answered; and how: */
byte status[2 * R * CELLS];
#define COUNTED 1          /* or DUPLICATE, or ALREADY_COMMITTED */
#define VOID 2
#define OVER 3             /* WAIT */
#define NOT_OK 4           /* means: ask by RPC */
byte torn[2 * R];          /* cells whose check is wrong */
byte half[2 * R];          /* cells whose present bitmap is not there yet */
byte block[2 * R];         /* the step block: of how many windows it tells the last one's outcome */
byte box_closed;           /* ranks: `closed` in the newest session's mailbox */
byte awaited;              /* ranks: the answer bell has rung and nobody has seen it */

/* Volatile in the engine. */
bool up;
byte reads;                /* mailboxes that it has */
byte rung;                 /* of these: whose bell has rung since it looked */
byte look[2 * R];          /* cells that it is about to look at */
byte done[2 * R * CELLS];  /* d: the seq that it has looked at */
byte asks[2 * R * CELLS];  /* its copy of the request that it has not answered, 0: none */
byte parked[R];            /* micro-batches that wait for their pass */
byte scanned;              /* ranks: whose mailbox it looks through before it judges a FLUSH or an RPC push */
byte to_ring;              /* ranks: answered, and not rung yet */

/* gaccd. */
bool running;
bool reported;             /* the engine has said that the window is complete */
byte heard;                /* the window that it knows to be open from what is in its socket; `window`, or the one before */
byte given[R];             /* the session whose mailbox it has, for MAILBOX; 0: none */
byte hung;                 /* ranks: whose trainers' attach socket has broken */

/* Trainers. */
#define DEAD 0
#define ATTACHING 1
#define AWAKE 2
#define ASLEEP 3           /* in epoll_wait */
#define WRITING 4          /* a request: has not rung yet */
byte doing[R];
byte my_gen[R], my_epoch[R], my_window[R];
byte passed[R];            /* micro-batches of my_window that it owes no more */
byte in_cell[R], by_rpc[R];/* what it waits for: micro-batches, and bit M for the window's end */
byte no_box;               /* ranks that use RPC alone */
byte flushing;             /* ranks that wait for FLUSH */
byte zombie;               /* ranks whose trainer before lives */
#define LISTENS(r) (doing[r] == AWAKE || doing[r] == ASLEEP)
#define OUTSTANDING(r) (passed[r] | in_cell[r] | by_rpc[r])
#define NEXT(r) ((OUTSTANDING(r) & 1) == 0 -> 0 : ((OUTSTANDING(r) & 2) == 0 -> 1 : 2))
#define MY_CELL(r, k) AT(BOX(r, my_gen[r]), CELL_OF(k))
#define ZOMBIES_BOX(r) BOX(r, my_gen[r] - (doing[r] == ATTACHING -> 0 : 1))

byte events = EVENTS;

/* For the checks only. */
byte said;                 /* pairs of the open window of which a trainer knows what became of them */
byte voids[S];             /* pairs */
byte fenced[R];            /* micro-batches of `parked` that an older session has brought */

#ifdef MUTANT_repeat_not_joined
byte parked_again[R];
#endif
#ifdef MUTANT_restart_does_not_scan
bool second_life;
#endif
#ifdef MUTANT_wait_forgotten
bool saw_commit;
#endif
#ifdef MUTANT_progress_not_repeated
bool fresh;
#endif

hidden byte i, x, pair;
hidden byte I4, I5, I6, I8, I9, BLOCK, FLUSH, ORDER, RUN; /* README.md says what each promises */

#include "mailbox_rules.pml"

#define OPEN (window < S && !closed)
#define SETTLED (counted | voided | PAIRS_OF(flushed))
#define COMPLETE (SETTLED == EVERY_PAIR)
#define IS_TURN(p) ((SETTLED & ((p) - 1)) == (p) - 1)
#define AFTER_ITS_OWN(r, m) ((m) == 0 || (SETTLED & PAIR(r, 0)) != 0 || (parked[r] & 1) != 0)

/* ---- checks ---- */

inline check()
{
	I5 = (once == counted && twice == 0 && (counted & voided) == 0);
	assert(I5);
	I4 = ((said & ~counted & ~voided) == 0);
	assert(I4)
}

#define IS_IN(r, m) (((my_window[r] == window -> counted : committed[my_window[r]]) & PAIR(r, m)) != 0)
#define IS_VOID(r, m) (((my_window[r] == window -> voided : voids[my_window[r]]) & PAIR(r, m)) != 0)

/* ---- parts of rules ---- */

inline drop_box(b)
{
	reads = reads & ~BIT(b);
	rung = rung & ~BIT(b);
	look[b] = 0;
	i = 0;
	do
	:: i < CELLS ->
		asks[AT(b, i)] = 0;
#ifndef MUTANT_d_not_reset
		done[AT(b, i)] = 0;
#endif
		i++
	:: else -> break
	od;
	i = 0
}

/* A new mailbox; also one that nobody can read or write any more. */
inline empty_box(b)
{
	i = 0;
	do
	:: i < CELLS ->
		request[AT(b, i)] = 0;
		seq[AT(b, i)] = 0;
		answer[AT(b, i)] = 0;
		status[AT(b, i)] = 0;
		i++
	:: else -> break
	od;
	torn[b] = 0;
	half[b] = 0;
	block[b] = 0
}

inline drop_boxes()
{
	x = 0;
	do
	:: x < 2 * R -> drop_box(x); x++
	:: else -> break
	od;
	i = 0
}

inline drop_parked()
{
	i = 0;
	do
	:: i < R ->
		parked[i] = 0;
#ifdef MUTANT_repeat_not_joined
		parked_again[i] = 0;
#endif
		i++
	:: else -> break
	od;
	i = 0
}

inline write_answer(b, c, how)
{
	answer[AT(b, c)] = D(b, c);
	status[AT(b, c)] = how;
	asks[AT(b, c)] = 0;
	to_ring = to_ring | BIT((b) / 2)
}

inline engine_dies()
{
	up = false;
	drop_boxes();
	drop_parked();
	i = 0;
	do
	:: i < 2 * R * CELLS -> done[i] = 0; i++
	:: else -> break
	od;
	scanned = 0;
	to_ring = 0;
#ifdef MUTANT_restart_does_not_scan
	second_life = true;
#endif
#ifdef MUTANT_wait_forgotten
	saw_commit = false;
#endif
#ifdef MUTANT_progress_not_repeated
	fresh = false;
#endif
	check()
}

/* What Attach and StepAborted tell a trainer: the open window, and what it need not send. */
inline learn(r)
{
	heard = window;
	my_epoch[r] = epoch;
	my_window[r] = window;
	in_cell[r] = 0;
	by_rpc[r] = 0;
	flushing = flushing & ~BIT(r);
	passed[r] = 0;
	i = 0;
	do
	:: i < M ->
		if
		:: (SETTLED & PAIR(r, i)) != 0 -> passed[r] = passed[r] | BIT(i)
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0
}

inline new_window(w)
{
	window = w;
	drop_parked();
	counted = 0;
	voided = 0;
	once = 0;
	twice = 0;
	flushed = 0;
	untold = 0;
	zeroing = 0;
	said = 0;
	scanned = 0;
	closed = false;
	reported = false
}

#include "mailbox_trainer.pml"
#include "mailbox_engine.pml"

/* ---- the engine and who commands it ---- */

inline close()
{
	closed = true;
	untold = 0;
	drop_parked();
	check()
}

/* Every mailbox that gaccd has is marked, and its trainer is woken. */
inline close_boxes()
{
	i = 0;
	do
	:: i < R ->
		box_closed = box_closed | (given[i] != 0 -> BIT(i) : 0);
#ifndef MUTANT_closed_without_bell
		awaited = awaited | (given[i] != 0 -> BIT(i) : 0);
#endif
		given[i] = 0;
		i++
	:: else -> break
	od;
	i = 0
}

inline roll_back(w)
{
	d_step {
		events > 0 && up && running && epoch < EPOCHS - 1 && window < S && w <= window ->
		events--;
		epoch++;
		i = w;
		do
		:: i < S -> committed[i] = 0; voids[i] = 0; i++
		:: else -> break
		od;
		new_window(w);
		heard = w;
#ifndef MUTANT_epoch_keeps_mailbox
		drop_boxes();
		close_boxes()
#endif
	}
}

#if R > 1
#define ALL_MAY_ATTACH (sgen[0] < GENS && sgen[1] < GENS)
#else
#define ALL_MAY_ATTACH (sgen[0] < GENS)
#endif
#ifdef MUTANT_progress_not_repeated
#define PROGRESS_DUE fresh
#else
#define PROGRESS_DUE true
#endif

proctype engine()
{
end:
	do
	:: d_step { !up -> up = true; heard = window /* HELLO */ }
	:: d_step { up && events > 0 -> events--; engine_dies() }
	:: d_step { up && untold != 0 && events > 0 -> /* and the newest record cannot be read: the one before it holds */
		events--;
		counted = counted & ~untold;
		voided = voided & ~untold;
		once = once & ~untold;
		zeroing = zeroing & ~untold;
		untold = 0;
		engine_dies()
	   }
	:: d_step { up && untold != 0 -> untold = 0 } /* the status page's `told` */
	:: d_step { up && zeroing != 0 && MAY_ZERO -> zeroing = 0 }
	:: d_step { !running && up -> running = true }
	:: d_step { up && running && window < S && !reported && COMPLETE && PROGRESS_DUE -> reported = true }
	:: d_step { up && running && OPEN && reported && zeroing == 0 -> close() }
	:: d_step { up && running && OPEN && !COMPLETE && zeroing == 0 && events > 0 -> events--; close() }
	:: d_step { up && running && window < S && closed ->
		committed[window] = counted;
		voids[window] = voided;
#ifdef MUTANT_wait_forgotten
		saw_commit = true;
#endif
		new_window(window + 1)
	   }
	:: d_step { up && heard != window -> heard = window } /* COMMIT's answer */
	:: d_step { events > 0 && ALL_MAY_ATTACH -> /* gaccd dies, its engine ends, its mailboxes are gone */
		events--;
		i = 0;
		do
		:: i < R ->
			hung = hung | (given[i] != 0 || (hung & BIT(i)) != 0 -> BIT(i) : 0);
			given[i] = 0;
			i++
		:: else -> break
		od;
		running = false;
		reported = false;
		engine_dies()
	   }
	:: roll_back(0)
#if S > 1
	:: roll_back(1)
#endif
	od
}

proctype calm()
{
end:
	d_step { events > 0 -> events = 0 }
}

/* I9: where nothing can happen any more, all windows are committed and every trainer knows it. */
#define HOME(r) (LISTENS(r) && my_epoch[r] == epoch && my_window[r] == S)

proctype job()
{
	timeout;
	I9 = (window == S && HOME(0) && HOME(R - 1));
	assert(I9)
}

init {
	atomic {
		i = 0;
		do
		:: i < R -> run trainer(i); run door(i); i++
		:: else -> break
		od;
		run engine();
		run calm();
		run job()
	}
}
