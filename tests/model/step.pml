/* SPDX-License-Identifier: Apache-2.0 */
/* The step across engines: CLOSE, GO, reduce, vote, COMMIT, epoch bump, with old coordinators that go on.
 *
 * Models B and E of the protocol's appendix, extended by CLOSE, which is skipped when all parts are complete; by communicators
 * that stay warm and belong to engine lives; and by the all-gather after COMMIT (SHARDED). acc.pml shows that a frozen engine
 * holds exactly what it said, and that a complete one gets nothing more; this model starts there: a rank's part of a
 * window is one bit, in or not in, that a push may set until the engine is frozen.
 *
 * Every rule is one atomic step. Messages never leave the network while their sender lives, so they arrive late, twice or
 * never; a coordinator of an old term goes on until it ends, at any moment. Faults and the operator's wishes are paid from
 * `events`, and `calm` throws the rest away at any moment: I9 does not hope for a helpful crash.
 *
 * R ranks (one engine each), S windows, EVENTS, TERMS - 1 failovers, EPOCHS - 1 node losses.
 * MUTANT_x takes one rule away, and a check must then fail.
 */
#ifndef R
#define R 2
#endif
#ifndef S
#define S 2
#endif
#ifndef EVENTS
#define EVENTS 2
#endif
#ifndef TERMS
#define TERMS 2
#endif
#ifndef EPOCHS
#define EPOCHS 2
#endif
#define TRIES 6 /* I9 says that they suffice */
#if R > 3 || TERMS > 3 || EPOCHS > 2 || S > 3
#error "bounds: sets are bytes, terms and ranks are listed below"
#endif
#ifdef SHARDED
#undef EPOCHS
#define EPOCHS 1 /* a lost shard is a rollback to a checkpoint, which is not modelled */
#endif

#define BIT(x) (1 << (x))
#define EVERY ((1 << R) - 1)
#define ATTEMPTS (TERMS * TRIES)
#define ATTEMPT(t, n) ((t) * TRIES + (n)) /* from 1; a later term is higher */
#define TERM_OF(a) (((a) - 1) / TRIES)
#define AT(e, w) ((e) * S + (w))

/* ---- state ---- */

/* The store. log[k]: the attempt whose COMMIT record is step k's; 0: none. */
byte term, length, epoch, base;
byte log[S];

/* Engines: what their control records hold, but for phase IN and the communicator. */
#define READY 0    /* adding, or frozen and waiting for GO */
#define IN 1       /* in the collective of attempt att */
#define PREPARED 2
#define GATHERING 3
#define LOST 4     /* the node is gone with all its state */
byte phase[R], step[R], att[R], my_epoch[R];
byte params[R * S];  /* the attempts applied */
byte have, frozen;   /* ranks: whose part is in P[x]; whose engine is frozen */
byte lost;           /* ranks: nodes lost that no epoch record names yet */

/* What gaccd remembers of its engine's answers. */
byte again;          /* ranks: the engine died in the collective, so its next life gets the same GO */
byte vote_kept;      /* ranks: the last answer was a failed vote; it is repeated until another answer comes */

/* What was sent. */
byte complete[EPOCHS * S]; /* ranks: who said that its part is complete */
byte closes[TERMS];  /* bits AT: CLOSE by the coordinator of that term */
byte closed[EPOCHS * S], told[EPOCHS * S]; /* ranks: who said that it is frozen; of these, whose part is in */
int go;              /* bits of attempts; the rest of the message: */
byte go_step[ATTEMPTS + 1], go_epoch[ATTEMPTS + 1], go_comm[ATTEMPTS + 1];
byte ok[ATTEMPTS + 1], failed[ATTEMPTS + 1]; /* ranks: votes that count */

/* The collectives. */
byte entered[ATTEMPTS + 1], summed[ATTEMPTS + 1]; /* ranks: who went in; of these, whose part is in the sum */

/* Communicators. Each is named after the attempt that it was made for, and belongs to one life of each engine. They are
 * connected when all have joined; only from then on do the others notice that one is gone. */
byte joined[ATTEMPTS + 1]; /* ranks: who joined while nobody was gone */
byte gone[ATTEMPTS + 1];   /* ranks: whose engine died after it had joined, or has left; it cannot come back */

/* Coordinators, one process per term. */
#define OFF 0
#define TAKEN 1    /* has the term, has not read the log */
#define ON 2
#define ENDED 3
byte mode[TERMS];
byte c_len[TERMS], c_epoch[TERMS], c_open[TERMS], c_tries[TERMS], c_comm[TERMS];

byte events = EVENTS;

/* For the checks only. */
byte forced;         /* bits AT: the operator closed this window */

#ifdef MUTANT_inplace_reduce
byte dirty;
int spoilt;
#endif

hidden byte i;
hidden byte I1, I2, I3, I7, I9, I10; /* README.md says what each promises */

/* ---- the rules that a mutant takes away ---- */

#ifdef MUTANT_close_not_freezing
#define FROZEN(r) false
#else
#define FROZEN(r) ((frozen & BIT(r)) != 0)
#endif
#ifdef MUTANT_close_without_epoch
#define CLOSE_EPOCH_OK(e) true
#else
#define CLOSE_EPOCH_OK(e) (my_epoch[r] == (e))
#endif
#ifdef MUTANT_go_without_epoch
#define GO_EPOCH_OK(e) true
#else
#define GO_EPOCH_OK(e) (my_epoch[r] == (e))
#endif
#ifdef MUTANT_commit_before_persist
#define MAY_APPLY(r) (ok[att[r]] == EVERY || (step[r] < length && att[r] == log[step[r]]))
#else
#define MAY_APPLY(r) (step[r] < length && att[r] == log[step[r]])
#endif
#ifdef MUTANT_heal_from_behind
#define CAN_HEAL(p) (phase[p] != LOST)
#else
#define CAN_HEAL(p) (phase[p] != LOST && my_epoch[p] == epoch && step[p] == base)
#endif
#ifdef MUTANT_no_term_cas
#define CAS_OK(t) true
#else
#define CAS_OK(t) (term == t && length == c_len[t] && epoch == c_epoch[t])
#endif

#ifdef MUTANT_go_waits_for_go
#define TAKES_GO(r) (phase[r] == READY || phase[r] == PREPARED)
#else
#define TAKES_GO(r) (phase[r] <= PREPARED)
#endif
#ifdef MUTANT_second_life_joins
#define MAY_JOIN(r, a) true
#else
#define MAY_JOIN(r, a) (!IS_GONE(r, a))
#endif
#ifdef MUTANT_failed_vote_stays
#define SAYS_PREPARED(r) ((vote_kept & BIT(r)) == 0)
#else
#define SAYS_PREPARED(r) true /* a failed vote says nothing once the record is prepared for a later attempt */
#endif

#if defined(MUTANT_closed_attempt_counts) || defined(MUTANT_untagged_vote)
#define VOTE_COUNTS(a) true
#else
#define VOTE_COUNTS(a) (mode[TERM_OF(a)] == ON && c_open[TERM_OF(a)] == (a))
#endif

/* ---- engines ---- */

#define VOTE(a, r) (VOTE_COUNTS(a) -> BIT(r) : 0)
#define COMM(r) go_comm[att[r]]
#define IS_GONE(r, a) ((gone[go_comm[a]] & BIT(r)) != 0)
#define BROKEN(comm) (joined[comm] == EVERY && gone[comm] != 0)

/* The engine dies or frees its communicator. A sum that was not complete never will be. */
inline leave(r)
{
	if
	:: att[r] != 0 ->
#if R > 1 /* one engine needs no communicator */
		gone[COMM(r)] = gone[COMM(r)] | BIT(r);
#endif
		if
		:: entered[att[r]] != EVERY ->
			entered[att[r]] = entered[att[r]] & ~BIT(r);
			summed[att[r]] = summed[att[r]] & ~BIT(r)
		:: else
		fi
	:: else
	fi
}

inline vote_failed(r)
{
	phase[r] = READY;
	vote_kept = vote_kept | BIT(r);
	failed[att[r]] = failed[att[r]] | VOTE(att[r], r)
}

/* By CLOSE, or by GO. */
inline freeze(r)
{
	I10 = ((have & BIT(r)) != 0 || ((forced >> AT(my_epoch[r], step[r])) & 1) == 1);
	assert(I10);
	frozen = frozen | BIT(r);
	closed[AT(my_epoch[r], step[r])] = closed[AT(my_epoch[r], step[r])] | BIT(r);
	told[AT(my_epoch[r], step[r])] = told[AT(my_epoch[r], step[r])] | (have & BIT(r))
}

/* A GO that is refused does not freeze. */
inline enter(r, a)
{
	if
	:: att[r] != 0 && COMM(r) != go_comm[a] -> leave(r) /* frees its old communicator */
	:: else
	fi;
	att[r] = a;
	again = again & ~BIT(r);
	if
	:: MAY_JOIN(r, a) ->
		if
		:: (frozen & BIT(r)) == 0 -> freeze(r)
		:: else
		fi;
		phase[r] = IN;
		joined[COMM(r)] = joined[COMM(r)] | (gone[COMM(r)] == 0 -> BIT(r) : 0);
		entered[a] = entered[a] | (IS_GONE(r, a) -> 0 : BIT(r)); /* the others are connected to the first life */
		summed[a] = summed[a] | (IS_GONE(r, a) -> 0 : have & BIT(r));
#ifdef MUTANT_inplace_reduce
		spoilt = spoilt | ((dirty & BIT(r)) != 0 -> BIT(a) : 0);
		dirty = dirty | BIT(r);
#endif
#ifdef MUTANT_refused_in_silence
	:: else -> phase[r] = READY
#else
	:: else -> vote_failed(r)
#endif
	fi
}

inline give_up(r)
{
	leave(r);
	vote_failed(r)
}

inline next_window(r)
{
	step[r] = step[r] + 1;
	phase[r] = READY;
#ifdef MUTANT_inplace_reduce
	dirty = dirty & ~BIT(r);
#endif
	have = have & ~BIT(r);
	frozen = frozen & ~BIT(r)
}

inline apply(r)
{
	I3 = (step[r] < length);
	assert(I3);
	I2 = (log[step[r]] == att[r]);
	assert(I2);
	params[r * S + step[r]] = att[r];
#ifdef SHARDED
	phase[r] = GATHERING
#else
	next_window(r)
#endif
}

#define HAS_SHARD(p) (step[p] > step[r] || (step[p] == step[r] && phase[p] == GATHERING))

#define say_complete(r) complete[AT(my_epoch[r], step[r])] = complete[AT(my_epoch[r], step[r])] | (have & BIT(r))

inline take_close(t, e)
{
	d_step {
		mode[t] == ON && phase[r] == READY && CLOSE_EPOCH_OK(e) && step[r] < S && (frozen & BIT(r)) == 0 &&
		((closes[t] >> AT(e, step[r])) & 1) == 1 ->
		freeze(r)
	}
}

inline take_go(a)
{
	d_step {
		((go >> a) & 1) == 1 && mode[TERM_OF(a)] == ON && GO_EPOCH_OK(go_epoch[a]) && step[r] == go_step[a] &&
		(att[r] < a || (att[r] == a && (again & BIT(r)) != 0)) && TAKES_GO(r) ->
		enter(r, a)
	}
}

/* A node without its state, or behind the epoch's base step, copies from a peer. */
inline heal(r, p)
{
	d_step {
		p != r && my_epoch[r] < epoch && (lost & BIT(r)) == 0 && CAN_HEAL(p) &&
		(phase[r] == LOST || (step[r] < base && !(phase[r] == PREPARED && MAY_APPLY(r)))) ->
		i = 0;
		do
		:: i < base ->
			params[r * S + i] = params[p * S + i];
			I2 = (params[r * S + i] == log[i]);
			assert(I2);
			i++
		:: else -> break
		od;
		step[r] = base;
		my_epoch[r] = epoch;
		phase[r] = READY;
		att[r] = 0;
		have = have & ~BIT(r);
		frozen = frozen & ~BIT(r)
	}
}

#if EPOCHS > 1
#define CLOSE_OF_TERM(t) :: take_close(t, 0) :: take_close(t, 1)
#else
#define CLOSE_OF_TERM(t) :: take_close(t, 0)
#endif
#define GO_OF_TERM(t) \
	:: take_go(ATTEMPT(t, 1)) :: take_go(ATTEMPT(t, 2)) :: take_go(ATTEMPT(t, 3)) \
	:: take_go(ATTEMPT(t, 4)) :: take_go(ATTEMPT(t, 5)) :: take_go(ATTEMPT(t, 6))

proctype engine(byte r)
{
end:
	do
	/* a window's work */
	:: d_step { phase[r] == READY && step[r] < S && (have & BIT(r)) == 0 && !FROZEN(r) ->
		have = have | BIT(r);
		say_complete(r)
	   }
	CLOSE_OF_TERM(0)
	GO_OF_TERM(0)
#if TERMS > 1
	CLOSE_OF_TERM(1)
	GO_OF_TERM(1)
#endif
#if TERMS > 2
	CLOSE_OF_TERM(2)
	GO_OF_TERM(2)
#endif
	:: d_step { phase[r] == IN && entered[att[r]] == EVERY ->
		phase[r] = PREPARED;
		vote_kept = vote_kept & ~BIT(r);
		ok[att[r]] = ok[att[r]] | VOTE(att[r], r)
	   }
	:: d_step { /* nobody answers for an engine that died after writing its record: the next one's report says it */
		phase[r] == PREPARED && VOTE_COUNTS(att[r]) && (ok[att[r]] & BIT(r)) == 0 && SAYS_PREPARED(r) ->
		ok[att[r]] = ok[att[r]] | BIT(r)
	   }
	:: d_step { phase[r] == IN && BROKEN(COMM(r)) -> give_up(r) }
	:: d_step { phase[r] == PREPARED && MAY_APPLY(r) -> apply(r) }
#ifdef SHARDED
	:: d_step { phase[r] == GATHERING && HAS_SHARD(0) && HAS_SHARD(R - 1) && HAS_SHARD(R / 2) -> next_window(r) }
#endif

	/* a new epoch; before it, the step that the base counts on is applied by the rule above */
	:: d_step { my_epoch[r] < epoch && phase[r] < LOST && step[r] >= base ->
		I7 = (step[r] == base);
		assert(I7);
		if
		:: phase[r] == IN -> give_up(r)
		:: else -> phase[r] = READY
		fi;
		again = again & ~BIT(r);
		my_epoch[r] = epoch;
#ifndef MUTANT_freeze_survives_bump
		frozen = frozen & ~BIT(r);
#endif
		if
		:: step[r] < S -> say_complete(r)
		:: else
		fi
	   }
	:: heal(r, 0)
	:: heal(r, (R - 1))
#if R > 2
	:: heal(r, 1)
#endif

	/* faults: a collective fails; the engine dies, also between its record and its answer; the node dies */
	:: d_step { phase[r] == IN && events > 0 -> events--; give_up(r) }
	:: d_step { phase[r] < LOST && att[r] != 0 && events > 0 ->
		events--;
		leave(r);
		if
		:: phase[r] == IN ->
			phase[r] = READY;
			again = again | BIT(r)
#ifdef MUTANT_prepared_volatile
		:: phase[r] == PREPARED ->
			phase[r] = READY;
			again = again | BIT(r)
#endif
#ifdef MUTANT_gathering_volatile
		:: phase[r] == GATHERING -> phase[r] = READY
#endif
		:: else
		fi
	   }
	:: d_step { phase[r] == IN && entered[att[r]] == EVERY && events > 0 ->
		events--;
		leave(r);
		phase[r] = PREPARED
	   }
	:: d_step { /* one node at a time: somebody must be left to copy from */
		phase[r] < LOST && phase[(r + 1) % R] < LOST && phase[(r + 2) % R] < LOST && lost == 0 &&
		epoch < EPOCHS - 1 && events > 0 ->
		events--;
		i = 0;
		do
		:: i < S -> params[r * S + i] = 0; i++
		:: else -> break
		od;
		leave(r);
		phase[r] = LOST;
		again = again & ~BIT(r);
		vote_kept = vote_kept & ~BIT(r);
		lost = BIT(r);
		step[r] = 0;
		att[r] = 0;
		my_epoch[r] = 0;
		have = have & ~BIT(r);
		frozen = frozen & ~BIT(r)
	   }
	od
}

/* ---- coordinators ---- */

inline read_log(t)
{
	c_len[t] = length;
	c_epoch[t] = epoch
}

inline close_attempt(t)
{
#ifndef MUTANT_closed_attempt_counts
	ok[c_open[t]] = 0;
	failed[c_open[t]] = 0;
#endif
	c_open[t] = 0;
#ifndef MUTANT_comm_reused
	c_comm[t] = 0
#endif
}

inline open_attempt(t)
{
	I9 = (c_tries[t] < TRIES); /* else attempts fail that no fault has paid for */
	assert(I9);
	c_tries[t] = c_tries[t] + 1;
	c_open[t] = ATTEMPT(t, c_tries[t]);
	if
	:: c_comm[t] == 0 -> c_comm[t] = c_open[t]
	:: else
	fi;
	go = go | BIT(c_open[t]);
	go_step[c_open[t]] = c_len[t];
	go_epoch[c_open[t]] = c_epoch[t];
	go_comm[c_open[t]] = c_comm[t]
}

/* The commit point. */
inline persist(t, a)
{
	I1 = (entered[a] == EVERY && summed[a] == told[AT(go_epoch[a], go_step[a])]);
#ifdef MUTANT_inplace_reduce
	I1 = I1 && ((spoilt >> a) & 1) == 0;
#endif
	assert(I1);
	I2 = (log[c_len[t]] == 0);
	assert(I2);
	log[c_len[t]] = a;
	c_len[t] = c_len[t] + 1;
	length = c_len[t];
	ok[a] = 0;
	c_open[t] = 0
}

#define HERE(t) AT(c_epoch[t], c_len[t])
#if defined(MUTANT_go_before_complete)
#define COMPLETE(t) true
#elif defined(MUTANT_report_survives_bump)
#define COMPLETE(t) ((complete[HERE(t)] | complete[AT(0, c_len[t])]) == EVERY)
#else
#define COMPLETE(t) (complete[HERE(t)] == EVERY)
#endif
#define CLOSING(t) (((closes[t] >> HERE(t)) & 1) == 1)
#ifdef MUTANT_close_not_continued
#define BEGUN(t) false
#else
#define BEGUN(t) (closed[HERE(t)] != 0)
#endif
#ifdef MUTANT_untagged_vote
#define VOTE_BEFORE(a) ((a) > 1 && go_step[(a) - 1] == go_step[a] -> ok[(a) - 1] : 0)
#define VOTED(a) ((ok[a] | VOTE_BEFORE(a)) == EVERY)
#else
#define VOTED(a) (ok[a] == EVERY)
#endif

proctype coordinator(byte t)
{
end:
	do
	/* the term first, then the log */
#ifdef MUTANT_log_before_term
	:: d_step { mode[t] == OFF && t == term + 1 && events > 0 -> events--; mode[t] = TAKEN; read_log(t) }
	:: d_step { mode[t] == TAKEN -> mode[t] = ON; term = t }
#else
	:: d_step { mode[t] == OFF && t == term + 1 && events > 0 -> events--; mode[t] = TAKEN; term = t }
	:: d_step { mode[t] == TAKEN -> mode[t] = ON; read_log(t) }
#endif
	:: d_step { mode[t] == ON && t < term -> mode[t] = ENDED }

	/* CLOSE: an engine is frozen already, by a predecessor, and not all parts are complete; the operator wants it */
	:: d_step { mode[t] == ON && c_len[t] < S && !CLOSING(t) && BEGUN(t) && !COMPLETE(t) ->
		closes[t] = closes[t] | BIT(HERE(t))
	   }
	:: d_step { mode[t] == ON && c_len[t] < S && !CLOSING(t) && events > 0 ->
		events--;
		closes[t] = closes[t] | BIT(HERE(t));
		forced = forced | BIT(HERE(t))
	   }

	/* attempts: all parts are complete, and GO freezes what is not frozen; or all have answered CLOSE */
	:: d_step { mode[t] == ON && c_len[t] < S && c_open[t] == 0 && (closed[HERE(t)] == EVERY || (COMPLETE(t) && !CLOSING(t))) ->
		open_attempt(t)
	   }
	:: d_step { mode[t] == ON && c_open[t] != 0 && failed[c_open[t]] != 0 -> close_attempt(t) }
	:: d_step { mode[t] == ON && c_open[t] != 0 && events > 0 -> events--; close_attempt(t) }
	:: d_step { mode[t] == ON && c_open[t] != 0 && VOTED(c_open[t]) && CAS_OK(t) -> persist(t, c_open[t]) }
#ifdef MUTANT_closed_attempt_counts
	:: d_step {
		mode[t] == ON && c_tries[t] > 1 && c_open[t] != 0 && go_step[c_open[t] - 1] == c_len[t] &&
		VOTED(c_open[t] - 1) && CAS_OK(t) ->
		persist(t, c_open[t] - 1)
	   }
#endif

	/* a node is lost */
	:: d_step { mode[t] == ON && term == t && lost != 0 ->
		lost = 0;
		epoch++;
		base = length;
#ifdef MUTANT_base_below_log
		base = (length > 0 -> length - 1 : 0);
#endif
		c_epoch[t] = epoch;
#ifndef MUTANT_attempt_survives_bump
		close_attempt(t)
#endif
	   }
	od
}

proctype calm()
{
end:
	d_step { events > 0 -> events = 0 }
}

/* I9: where nothing can happen any more, every step is committed and applied everywhere. */
#define HOME(r) (step[r] == S && phase[r] == READY && my_epoch[r] == epoch)

proctype job()
{
	timeout;
	I9 = (length == S && lost == 0 && HOME(0) && HOME(R - 1) && HOME(R / 2));
	assert(I9)
}

init {
	atomic {
		mode[0] = ON;
		i = 0;
		do
		:: i < R -> run engine(i); i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < TERMS -> run coordinator(i); i++
		:: else -> break
		od;
		run calm();
		run job()
	}
}
