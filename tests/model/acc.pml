/* SPDX-License-Identifier: Apache-2.0 */
/* Accumulation: one engine, its ranks' trainers, and everything between them that may die, be late or be repeated.
 *
 * Model A of the protocol's appendix, extended by flush, reject, leave and return, CLOSE, and an old trainer that lives on.
 * Every rule is one atomic step: one flip of the control record, or one action of a trainer. What a trainer sends never
 * leaves the network, so it may arrive late, twice, or never.
 *
 * Faults and wishes (an operator's, a trainer's) are paid from `events`, and `calm` throws the rest away at any moment. So
 * every state is also explored with nothing more going wrong: I9 does not hope for a helpful crash.
 *
 * R ranks, M micro-batches of each per window, S windows, EVENTS, GENS - 1 new sessions per rank, one rollback, KEPT bitmaps
 * of committed windows. MUTANT_x takes one rule away, and a check must then fail.
 */
#ifndef R
#define R 2
#endif
#ifndef M
#define M 2
#endif
#ifndef S
#define S 2
#endif
#ifndef EVENTS
#define EVENTS 2
#endif
#define EPOCHS 2
#ifndef GENS
#define GENS 3
#endif
#define KEPT 1
#if R > 2 || M > 3 || S > 3 || GENS * EPOCHS * S * M > 30
#error "bounds: sets are bytes, the network's sets are ints"
#endif

/* Sets of ranks have bit r; sets of (rank, micro) pairs have bit m * R + r, so that canonical order is ascending. */
#define BIT(r) (1 << (r))
#define PAIR(r, m) (1 << ((m) * R + (r)))
#define EVERY_PAIR ((1 << (R * M)) - 1)
#define EVERY_MICRO ((1 << M) - 1)
#define PAIRS_OF(ranks) ((ranks) * (EVERY_PAIR / ((1 << R) - 1)))

/* What a trainer sends names its session, epoch and window, a push also its micro-batch; all in one number. */
#define WINDOW_ID(g, e, w) ((((g) - 1) * EPOCHS + (e)) * S + (w))
#define PUSH_ID(g, e, w, m) (WINDOW_ID(g, e, w) * M + (m))
#define GEN_OF(id) ((id) / (M * S * EPOCHS) + 1)
#define EPOCH_OF(id) ((id) / (M * S) % EPOCHS)
#define WINDOW_OF(id) ((id) / M % S)
#define MICRO_OF(id) ((id) % M)

/* ---- state ---- */

/* The control record: outlives the engine. */
byte epoch, window;
byte counted, voided;    /* pairs */
byte flushed;            /* ranks: no more in this window */
byte left, back;         /* ranks: no more in any window; of these, attached again: theirs is the next window */
byte sgen[R];
bool closed;             /* frozen */
byte committed[S];       /* pairs: the kept bitmaps of the windows before */

/* The accumulator P[x], as what it really holds: pairs added once, pairs added twice. */
byte once, twice;

/* Volatile in the engine. */
byte queue[R];           /* push id + 1 that waits, 0: none; a session has one slot here, so one push at most */
byte reading, intact;    /* ranks: whose slots the running pass reads; of these, whole when it began */

/* The coordinator, as far as it matters here. */
bool answered;           /* CLOSE was answered */
byte told;               /* pairs: by that answer; COMMIT is made of it */

/* Two slots per rank: the session's own, and the spare for one whose predecessor may live. push id + 1; 0: torn. */
byte slot[2 * R];
byte spare;              /* ranks whose session has the spare one */
byte zombie;             /* ranks whose old trainer lives and holds the other one */
#define SLOT(r) (2 * (r) + ((spare >> (r)) & 1))
#define OTHER_SLOT(r) (2 * (r) + 1 - ((spare >> (r)) & 1))

/* The network. */
int pushes[R];           /* bits PUSH_ID */
int flushes[R];          /* bits WINDOW_ID */
byte leaves[R];          /* bits of sessions */

/* Trainers. */
#define DEAD 0
#define GONE 1           /* has left; ended */
#define IDLE 2
#define WRITING 3
#define PUSHED 4         /* waits for the answer to its push; so on */
#define FLUSHING 5
#define LEAVING 6
byte doing[R];
byte my_gen[R], my_epoch[R], my_window[R];
byte passed[R];          /* micro-batches of my_window that it owes no more */
#define ALIVE(r) (doing[r] >= IDLE)
#define NEXT_MICRO(r) ((passed[r] & 1) == 0 -> 0 : ((passed[r] & 2) == 0 -> 1 : 2))
#define MY_PAIR(r) PAIR(r, NEXT_MICRO(r))
#define MY_WINDOW_ID(r) WINDOW_ID(my_gen[r], my_epoch[r], my_window[r])
#define MY_PUSH_ID(r) (MY_WINDOW_ID(r) * M + NEXT_MICRO(r))

byte events = EVENTS;

/* For the checks only: what trainers were told, what they and the operator wished. */
byte acked, flush_acked; /* pairs, ranks; of the open window */
byte wish, wish_left;    /* ranks that want to give less: in this window; in all from now on */
bool forced;             /* the operator closed this window */
bool was_complete;       /* the window; only a new window, or a rollback, may change that */

hidden byte i, id, pair;
hidden byte I1, I4, I5, I6, I7, I8, I9, I10, ORDER, STABLE; /* README.md says what each promises */

/* ---- the rules that a mutant takes away ---- */

#if defined(MUTANT_nodedup)
#define UNSEEN(p) true
#elif defined(MUTANT_void_is_forgotten)
#define UNSEEN(p) ((counted & (p)) == 0)
#else
#define UNSEEN(p) (((counted | voided) & (p)) == 0)
#endif
#ifdef MUTANT_no_session_fence
#define SESSION_OK(g) true
#else
#define SESSION_OK(g) ((g) == sgen[r])
#endif
#ifdef MUTANT_no_epoch_fence
#define EPOCH_OK(e) true
#else
#define EPOCH_OK(e) ((e) == epoch)
#endif
#ifdef MUTANT_no_window_fence
#define WINDOW_OK(w) true
#else
#define WINDOW_OK(w) ((w) == window)
#endif
#ifdef MUTANT_flush_not_fenced
#define FLUSH_OK(g, w) true
#else
#define FLUSH_OK(g, w) ((g) == sgen[r] && (w) == window)
#endif
#ifdef MUTANT_leave_not_fenced
#define LEAVE_OK(g) true
#else
#define LEAVE_OK(g) ((g) == sgen[r])
#endif
#ifdef MUTANT_close_not_freezing
#define OPEN (window < S)
#else
#define OPEN (window < S && !closed)
#endif
#ifdef MUTANT_void_blocks
#define SETTLED (counted | PAIRS_OF(flushed))
#else
#define SETTLED (counted | voided | PAIRS_OF(flushed))
#endif
#define COMPLETE (SETTLED == EVERY_PAIR)
#define PAIR_READ(r) ((reading & BIT(r)) != 0 -> PAIR(r, MICRO_OF(queue[r] - 1)) : 0)
#define PAIRS_READ (PAIR_READ(0) | PAIR_READ(R - 1))
#ifdef MUTANT_order_of_arrival
#define IS_TURN(p) true
#else
#define IS_TURN(p) (((SETTLED | PAIRS_READ) & ((p) - 1)) == (p) - 1)
#endif

#ifdef MUTANT_crash_is_free
#define PAY skip
#else
#define PAY events--
#endif

/* ---- checks ---- */

#ifdef UNSTABLE /* lets a mutant go on until it breaks a promise to a trainer */
#define STABLE_HOLDS skip
#else
#define STABLE_HOLDS assert(STABLE)
#endif

/* step.pml relies on it: GO freezes a complete window without CLOSE. */
inline note_complete()
{
	STABLE = (!was_complete || COMPLETE);
	STABLE_HOLDS;
	was_complete = COMPLETE
}

/* Wherever no pass is half done: the accumulator is what the bitmap says, and no promise is broken. */
inline check()
{
	I5 = (once == counted && twice == 0 && (counted & voided) == 0);
	assert(I5);
	I4 = ((acked & ~counted) == 0 && (flush_acked & ~flushed) == 0);
	assert(I4);
	note_complete()
}

/* ---- parts of rules ---- */

inline add(p)
{
	twice = twice | (once & (p));
	once = once | (p)
}

inline drop_pass()
{
	reading = 0;
	intact = 0
}

inline drop_queue()
{
	drop_pass();
	i = 0;
	do
	:: i < R -> queue[i] = 0; i++
	:: else -> break
	od
}

/* What Attach and StepAborted tell a trainer: the open window, and what it need not send. */
inline learn(r)
{
	my_epoch[r] = epoch;
	my_window[r] = window;
	passed[r] = 0;
	i = 0;
	do
	:: i < M ->
		if
		:: ((counted | voided | PAIRS_OF(flushed)) & PAIR(r, i)) != 0 -> passed[r] = passed[r] | BIT(i)
		:: else
		fi;
		i++
	:: else -> break
	od
}

inline attach(r)
{
	sgen[r] = sgen[r] + 1;
	my_gen[r] = sgen[r];
	doing[r] = IDLE;
#if defined(MUTANT_drain_keeps_pass)
	reading = reading & ~BIT(r);
	queue[r] = 0;
#elif !defined(MUTANT_attach_without_drain)
	drop_pass(); /* the other ranks' part of it is done again, in order */
	queue[r] = 0;
#endif
	back = back | (left & BIT(r));
	wish_left = wish_left & ~BIT(r);
	wish = wish & (~BIT(r) | flushed);
#ifdef MUTANT_attach_resets_flush
	flushed = flushed & ~BIT(r);
#endif
#ifdef MUTANT_return_at_once
	flushed = flushed & ~(left & BIT(r));
#endif
	learn(r);
	check()
}

inline open_window(w)
{
	drop_queue();
	window = w;
	counted = 0;
	voided = 0;
	once = 0;
	twice = 0;
	closed = false;
	answered = false;
	told = 0;
	left = left & ~back;
	back = 0;
#ifdef MUTANT_leave_forgotten
	flushed = 0;
#else
	flushed = left;
#endif
	acked = 0;
	flush_acked = 0;
	wish = wish_left;
	forced = false;
	was_complete = COMPLETE
}

inline no_longer_owes(r, micros)
{
	passed[r] = passed[r] | (micros);
	doing[r] = IDLE
}

/* ---- trainers ---- */

/* The answer to the push that the trainer waits for. A reply that got lost is a trainer that asks again; one that came
 * twice says nothing new. */
#define KNOWN(r) (my_window[r] == window || my_window[r] + KEPT >= window)
#define IS_IN(r) (my_window[r] == window -> (counted & MY_PAIR(r)) != 0 : (committed[my_window[r]] & MY_PAIR(r)) != 0)
#if defined(MUTANT_early_ack)
#define SAY_COUNTED(r) (IS_IN(r) || queue[r] != 0)
#elif defined(MUTANT_late_is_committed)
#define SAY_COUNTED(r) (IS_IN(r) || my_window[r] < window)
#else
#define SAY_COUNTED(r) (KNOWN(r) && IS_IN(r))
#endif
#ifdef MUTANT_forgotten_is_lost
#define SAY_FORGOTTEN(r) false
#else
#define SAY_FORGOTTEN(r) (!KNOWN(r))
#endif
#define SAY_CLOSED_LATE(r) (!SAY_FORGOTTEN(r) && !(KNOWN(r) && IS_IN(r)))

proctype trainer(byte r)
{
end:
	do
	/* life and death */
	:: d_step { doing[r] == DEAD -> attach(r) }
	:: d_step { doing[r] == GONE && events > 0 && sgen[r] < GENS -> events--; attach(r) }
	:: d_step { ALIVE(r) && events > 0 && sgen[r] < GENS -> events--; doing[r] = DEAD }
	:: d_step { /* a second trainer claims the rank while the first lives, with all its unsent pushes */
		ALIVE(r) && events > 0 && sgen[r] < GENS && (zombie & BIT(r)) == 0 ->
		events--;
		pushes[r] = pushes[r] | ((EVERY_MICRO & ~passed[r]) << (my_window[r] < S -> MY_WINDOW_ID(r) * M : 31));
		zombie = zombie | BIT(r);
#ifndef MUTANT_zombie_shares_slot
		spare = spare ^ BIT(r);
#endif
		attach(r)
	   }
	:: d_step { (zombie & BIT(r)) != 0 -> /* its last breath: it scribbles over what it has mapped */
		zombie = zombie & ~BIT(r);
#ifdef MUTANT_zombie_shares_slot
		slot[SLOT(r)] = 0
#else
		slot[OTHER_SLOT(r)] = 0
#endif
	   }

	/* a window's work */
	:: d_step { doing[r] == IDLE && my_window[r] < S && passed[r] != EVERY_MICRO ->
		doing[r] = WRITING;
		slot[SLOT(r)] = 0
	   }
	:: d_step { doing[r] == WRITING ->
		doing[r] = PUSHED;
		slot[SLOT(r)] = MY_PUSH_ID(r) + 1;
		pushes[r] = pushes[r] | BIT(MY_PUSH_ID(r))
	   }
	:: d_step { doing[r] == IDLE && my_window[r] < S && passed[r] != EVERY_MICRO && events > 0 ->
		events--;
		doing[r] = FLUSHING;
		flushes[r] = flushes[r] | BIT(MY_WINDOW_ID(r));
		wish = wish | (my_epoch[r] == epoch && my_window[r] == window -> BIT(r) : 0)
	   }
	:: d_step { doing[r] == IDLE && my_window[r] < S && events > 0 ->
		events--;
		doing[r] = LEAVING;
		leaves[r] = leaves[r] | BIT(my_gen[r]);
		wish = wish | BIT(r);
		wish_left = wish_left | BIT(r)
	   }

	/* answers */
	:: d_step { doing[r] == PUSHED && my_epoch[r] == epoch && SAY_COUNTED(r) -> /* COUNTED or ALREADY_COMMITTED */
		I4 = IS_IN(r);
		assert(I4);
		acked = acked | (my_window[r] == window -> MY_PAIR(r) : 0);
		no_longer_owes(r, BIT(NEXT_MICRO(r)))
	   }
	:: d_step { doing[r] == PUSHED && my_epoch[r] == epoch && my_window[r] == window && (voided & MY_PAIR(r)) != 0 ->
		no_longer_owes(r, BIT(NEXT_MICRO(r)))
	   }
	:: d_step { /* WINDOW_CLOSED, "not counted" */
		doing[r] == PUSHED && my_epoch[r] == epoch &&
		(my_window[r] == window -> (closed || (flushed & BIT(r)) != 0) && ((counted | voided) & MY_PAIR(r)) == 0
					 : SAY_CLOSED_LATE(r)) ->
		I4 = !IS_IN(r);
		assert(I4);
		no_longer_owes(r, EVERY_MICRO)
	   }
	:: d_step { doing[r] == PUSHED && my_epoch[r] == epoch && SAY_FORGOTTEN(r) -> no_longer_owes(r, EVERY_MICRO) }
	:: d_step { doing[r] == FLUSHING && my_epoch[r] == epoch && my_window[r] == window && (flushed & BIT(r)) != 0 ->
		flush_acked = flush_acked | BIT(r);
		no_longer_owes(r, EVERY_MICRO)
	   }
	:: d_step { doing[r] == FLUSHING && my_epoch[r] == epoch && (my_window[r] < window || closed) ->
		no_longer_owes(r, EVERY_MICRO)
	   }
	:: d_step { doing[r] == LEAVING && (left & ~back & BIT(r)) != 0 -> doing[r] = GONE }

	/* WaitStep; StepAborted */
	:: d_step { doing[r] == IDLE && my_epoch[r] == epoch && my_window[r] < window && passed[r] == EVERY_MICRO ->
		my_window[r] = my_window[r] + 1;
		passed[r] = 0
	   }
	:: d_step { ALIVE(r) && my_epoch[r] < epoch ->
		learn(r);
		doing[r] = (doing[r] == LEAVING -> LEAVING : IDLE)
	   }
	od
}

/* ---- what arrives for a rank ---- */

/* The push waits in the engine until its turn. */
inline offer(m, g, e, w)
{
	d_step {
		OPEN && queue[r] == 0 && (flushed & BIT(r)) == 0 && g > 0 && e >= 0 && w >= 0 &&
		SESSION_OK(g) && EPOCH_OK(e) && WINDOW_OK(w) && UNSEEN(PAIR(r, m)) &&
		((pushes[r] >> PUSH_ID(g, e, w, m)) & 1) == 1 ->
		queue[r] = PUSH_ID(g, e, w, m) + 1
	}
}

inline take_flush(g, w)
{
	d_step {
		OPEN && (flushed & BIT(r)) == 0 && g > 0 && w >= 0 && FLUSH_OK(g, w) &&
		((flushes[r] >> WINDOW_ID(g, epoch, w)) & 1) == 1 ->
		flushed = flushed | BIT(r);
		note_complete()
	}
}

/* Accepted in a frozen window too, where it holds from the next one on. */
inline take_leave(g)
{
	d_step {
		(left & ~back & BIT(r)) == 0 && g > 0 && LEAVE_OK(g) && ((leaves[r] >> (g)) & 1) == 1 ->
		left = left | BIT(r);
		back = back & ~BIT(r);
		flushed = flushed | (closed -> 0 : BIT(r));
		note_complete()
	}
}

#define ARRIVE(m) \
	:: offer(m, sgen[r], epoch, window) \
	:: offer(m, (sgen[r] - 1), epoch, window) \
	:: offer(m, sgen[r], (epoch - 1), window) \
	:: offer(m, sgen[r], epoch, (window - 1))

proctype door(byte r)
{
end:
	do
	ARRIVE(0)
	ARRIVE(1)
#if M > 2
	ARRIVE(2)
#endif
	:: take_flush(sgen[r], window)
	:: take_flush(sgen[r], (window - 1))
	:: take_flush((sgen[r] - 1), window)
	:: take_leave(sgen[r])
	:: take_leave((sgen[r] - 1))

	:: d_step { /* the pass reads this slot too */
		queue[r] != 0 && (reading & BIT(r)) == 0 && IS_TURN(PAIR(r, MICRO_OF(queue[r] - 1))) ->
		reading = reading | BIT(r);
		intact = intact | (slot[SLOT(r)] == queue[r] -> BIT(r) : 0);
#ifdef MUTANT_inplace
		add(PAIR(r, MICRO_OF(queue[r] - 1)))
#endif
#ifdef MUTANT_bit_before_data
		counted = counted | PAIR(r, MICRO_OF(queue[r] - 1))
#endif
	   }
	:: d_step { /* not finite: refused, and the pass is done again without it */
		(reading & BIT(r)) != 0 && events > 0 ->
		events--;
		STABLE = !was_complete;
		STABLE_HOLDS;
#ifdef MUTANT_void_is_counted
		counted = counted | PAIR(r, MICRO_OF(queue[r] - 1));
#else
		voided = voided | PAIR(r, MICRO_OF(queue[r] - 1));
#endif
		queue[r] = 0;
		drop_pass();
		check()
	   }
	od
}

/* ---- the engine and who commands it ---- */

/* The end of a pass: one record, in which x flips and the bits of all its slots are set. */
inline flip()
{
	STABLE = !was_complete;
	STABLE_HOLDS;
	pair = PAIRS_READ;
	i = 0;
	do
	:: i < R && (reading & BIT(i)) != 0 ->
		id = queue[i] - 1;
		I6 = (GEN_OF(id) == sgen[i] && EPOCH_OF(id) == epoch && WINDOW_OF(id) == window);
		assert(I6);
		I8 = ((intact & BIT(i)) != 0 && slot[SLOT(i)] == queue[i]);
		assert(I8);
#ifndef MUTANT_inplace
		add(PAIR(i, MICRO_OF(id)));
#endif
		queue[i] = 0;
		i++
	:: i < R && (reading & BIT(i)) == 0 -> i++
	:: else -> break
	od;
	counted = counted | pair;
	drop_pass();
	i = 0;
	do
	:: i < R * M ->
		ORDER = ((pair & BIT(i)) == 0 || ((SETTLED | voided) & (BIT(i) - 1)) == BIT(i) - 1);
		assert(ORDER);
		i++
	:: else -> break
	od;
	check()
}

inline crash()
{
	drop_queue();
#ifdef MUTANT_volatile_bitmap
	counted = 0;
#endif
#ifdef MUTANT_flush_not_durable
	flushed = left;
#endif
#ifdef MUTANT_close_not_durable
	closed = false;
#endif
#ifdef MUTANT_volatile_sgen
	sgen[0] = 0;
	sgen[R - 1] = 0;
#endif
	I7 = (sgen[0] >= my_gen[0] && sgen[R - 1] >= my_gen[R - 1]);
	assert(I7);
	check()
}

inline close()
{
	closed = true;
	answered = true;
	told = counted;
#ifndef MUTANT_close_not_freezing
	drop_queue();
#endif
	check()
}

inline commit()
{
	I1 = (once == told && twice == 0);
	assert(I1);
	I10 = ((EVERY_PAIR & ~told & ~voided & ~(forced -> EVERY_PAIR : PAIRS_OF(wish))) == 0);
	assert(I10);
	committed[window] = told;
	open_window(window + 1)
}

inline roll_back(w)
{
	d_step {
		events > 0 && epoch < EPOCHS - 1 && window < S && w <= window ->
		events--;
		epoch++;
		i = w;
		do
		:: i < S -> committed[i] = 0; i++
		:: else -> break
		od;
		open_window(w)
	}
}

proctype engine()
{
end:
	do
	:: d_step { reading != 0 -> flip() }
	:: d_step { window < S && events > 0 -> PAY; crash() }
	:: d_step { window < S && !answered && COMPLETE -> close() }
	:: d_step { window < S && !answered && !COMPLETE && events > 0 -> events--; forced = true; close() }
	:: d_step { window < S && answered -> commit() }
	:: roll_back(0)
	:: roll_back(1)
	:: roll_back(2)
	od
}

proctype calm()
{
end:
	d_step { events > 0 -> events = 0 }
}

/* I9: where nothing can happen any more, all windows are committed and every trainer knows it. */
#define HOME(r) (doing[r] == GONE || (doing[r] == IDLE && my_epoch[r] == epoch && my_window[r] == S))

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
