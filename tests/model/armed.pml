/* SPDX-License-Identifier: Apache-2.0 */
/* The armed GO: a job of one part, whose engine votes by itself once its window is complete; the coordinator that numbers that
 * vote, and takes it unless the job is paused. Tables: engine/go.h, and docs/protocol.md, "Window at the coordinator".
 *
 * Orders and reports are states: each side sees the other's at any later moment, and may miss some. Commands and answers
 * of the engine keep their order, and are lost when it dies. A restart of gaccd ends its engine, too, and begins a term. What ranks
 * give to a window is one push, or one flush that leaves it empty; step.pml and acc.pml say more of both.
 *
 * Faults and the operator's wishes are paid from `events`; `calm` throws the rest away and resumes the job.
 * S windows, EVENTS. MUTANT_x takes one rule away, and a check must then fail.
 */
#ifndef S
#define S 2
#endif
#ifndef EVENTS
#define EVENTS 2
#endif
#define TRIES 12 /* attempts of a term: I9 says that they suffice */
#define ATTEMPT_OF(t, n) ((t) * TRIES + (n))

/* ---- state ---- */

/* The journal. */
byte length, log[S];
bool paused;
byte term;

/* The engine: its record, and what dies with it. */
bool prepared, given, flushed; /* of its window */
byte window, vote_of;          /* vote_of: the attempt that it is prepared for */
byte armed;                    /* 0: no GO waits */

/* Commands and answers. An id is 2 * attempt + (1: ordered). */
mtype = { ARM, GO, DISARM, COMMIT, VOTE, CANCELLED, REFUSED, COMPLETE, DISARMED, APPLIED };
chan to_engine = [6] of { mtype, byte, byte };   /* attempt, window */
chan from_engine = [10] of { mtype, byte, byte }; /* id or attempt, window */

/* The node: its mirror of the record, its commands, its copy of the order. */
bool m_prepared, m_complete, m_counts;
byte m_window, m_vote;
byte go_id, refused_id; /* 0: none is outstanding; none was refused */
bool disarming, committing;
mtype o_want = DISARM; /* GO, COMMIT; anything else: nothing */
byte o_window, o_attempt, o_armed;

/* What the coordinator has heard. */
bool r_prepared, r_complete, r_counts;
byte r_window, r_vote, r_armed;

/* The coordinator. */
mtype phase = COMPLETE; /* COMPLETE: it collects; GO; COMMIT */
byte c_window, attempt, tries;
bool c_armed, held, unsaid; /* unsaid: GO has begun without an order, for a mutant */

byte events = EVENTS;
bool forced[S];  /* for the checks: the operator has closed this window */
bool went_held;  /* the same: GO was begun while the job was paused */
hidden byte I2, I3, I9, I10, I11; /* README.md says what each promises */

/* ---- rules that a mutant takes away ---- */

#ifdef MUTANT_vote_taken_while_paused
#define MAY_TAKE true
#else
#define MAY_TAKE (!held)
#endif
#ifdef MUTANT_restart_closes_a_paused_window
#define MAY_FOLLOW true
#else
#define MAY_FOLLOW (!held)
#endif
#define IS_OURS (r_prepared && c_armed && r_vote == attempt)
#define WILL_VOTE (r_complete && r_counts && c_armed && r_armed == attempt)
#define WANTS_ARMED (c_armed && !held)
#ifdef MUTANT_armed_survives_its_engine
#define STILL_ARMED armed
#else
#define STILL_ARMED 0
#endif
#define WAS_REFUSED(id) (refused_id == (id))

#ifdef MUTANT_go_never_ordered_after_armed
#define WANTED (unsaid -> COMPLETE : phase)
#else
#define WANTED phase
#endif
#ifdef MUTANT_vote_of_an_old_attempt
#define IS_VOTE (r_prepared)
#else
#define IS_VOTE (r_prepared && r_vote == attempt)
#endif
#ifdef MUTANT_record_forgets_the_vote
#define KEEPS_VOTE false
#else
#define KEEPS_VOTE prepared
#endif
#ifdef MUTANT_ordered_go_waits_for_the_armed
#define MAY_GO (go_id == 0)
#else
#define MAY_GO (go_id == 0 || go_id / 2 < o_attempt || GO_IS_ARMED)
#endif

/* ---- the engine ---- */

#define DUE(a) ((a) != 0 && !prepared && given)

inline vote(a, id)
{
	I10 = (given || flushed || forced[window]);
	assert(I10);
	prepared = true;
	vote_of = a;
	from_engine!VOTE(id, window)
}

inline cancel()
{
	if
	:: armed != 0 -> from_engine!CANCELLED(2 * armed, window); armed = 0
	:: else
	fi
}

inline take_go(a, w, plain)
{
	if
	:: w != window || a < armed || (prepared && a < vote_of) -> from_engine!REFUSED(2 * a + plain, w)
	:: else ->
		cancel();
		if
		:: !plain && !prepared && !given -> armed = a
		:: else -> armed = 0; vote(a, 2 * a + plain)
		fi
	fi
}

proctype engine()
{
	byte a, w;
end:
	do
	/* the ranks: by RPC gaccd hears of it, from a mailbox only where no vote says more */
	:: d_step { window < S && !prepared && !given && !flushed ->
		given = true;
		if
		:: DUE(armed) -> a = armed; armed = 0; vote(a, 2 * a)
		:: else -> from_engine!COMPLETE(1, window)
		fi
	   }
	:: d_step { window < S && !prepared && !given && !flushed ->
		given = true;
		from_engine!COMPLETE(1, window);
		if
		:: DUE(armed) -> a = armed; armed = 0; vote(a, 2 * a)
		:: else
		fi
	   }
	:: d_step { window < S && !prepared && !given && !flushed && events > 0 ->
		events--;
		flushed = true;
		from_engine!COMPLETE(0, window)
	   }
	:: d_step { to_engine?[ARM, a, w] && len(from_engine) < 6 -> to_engine?ARM(a, w); take_go(a, w, 0) }
	:: d_step { to_engine?[GO, a, w] && len(from_engine) < 6 -> to_engine?GO(a, w); take_go(a, w, 1) }
	:: d_step { to_engine?[DISARM, a, w] && len(from_engine) < 6 ->
		to_engine?DISARM(a, w);
		if
		:: w == window -> cancel()
		:: else
		fi;
		from_engine!DISARMED(0, w)
	   }
	:: d_step { to_engine?[COMMIT, a, w] && len(from_engine) < 6 ->
		to_engine?COMMIT(a, w);
		I3 = (w == window && w < length && prepared);
		assert(I3);
		I2 = (log[w] == a && vote_of == a);
		assert(I2);
		window++;
		prepared = false; given = false; flushed = false; vote_of = 0;
		from_engine!APPLIED(0, w)
	   }
	od
}

/* ---- the node ---- */

#define COUNTS_FROM_NOW m_complete = given || flushed; m_counts = given

/* The engine's successor has the record, and no commands. */
inline engine_dies()
{
	do
	:: len(to_engine) > 0 -> to_engine?_, _, _
	:: len(to_engine) == 0 -> break
	od;
	do
	:: len(from_engine) > 0 -> from_engine?_, _, _
	:: len(from_engine) == 0 -> break
	od;
	armed = STILL_ARMED;
	prepared = KEEPS_VOTE;
	vote_of = (prepared -> vote_of : 0);
	go_id = 0; disarming = false; committing = false;
	m_prepared = prepared; m_window = window; m_vote = vote_of;
	COUNTS_FROM_NOW
}

#define ARMED_NOW ((o_want != GO && o_want != COMMIT && o_window == m_window) || (o_want == COMMIT && o_window + 1 == m_window) -> o_armed : 0)
#define GO_IS_ARMED (go_id != 0 && go_id % 2 == 0)
#define ROOM (len(to_engine) < 6)

proctype node()
{
	byte id, w;
end:
	do
	:: d_step { (o_want != WANTED || o_window != c_window || o_attempt != (phase == COMMIT -> log[c_window] : attempt) ||
		     o_armed != (WANTS_ARMED && phase != GO -> attempt : 0)) && c_window < S ->
		o_want = WANTED; o_window = c_window;
		o_attempt = (phase == COMMIT -> log[c_window] : attempt);
		o_armed = (WANTS_ARMED && phase != GO -> attempt : 0)
	   }
	:: d_step { ROOM && ARMED_NOW != 0 && go_id == 0 && !m_prepared && m_window < S && !WAS_REFUSED(2 * ARMED_NOW) ->
		go_id = 2 * ARMED_NOW;
		to_engine!ARM(go_id / 2, m_window)
	   }
	:: d_step { ROOM && GO_IS_ARMED && ARMED_NOW == 0 && o_want != GO && !disarming ->
		disarming = true;
		to_engine!DISARM(0, m_window)
	   }
	:: d_step { ROOM && o_want == GO && o_window == m_window && (!m_prepared || m_vote < o_attempt) && MAY_GO &&
		    !WAS_REFUSED(2 * o_attempt + 1) ->
		go_id = 2 * o_attempt + 1;
		to_engine!GO(o_attempt, m_window)
	   }
	:: d_step { ROOM && o_want == COMMIT && o_window == m_window && m_prepared && m_vote == o_attempt && !committing ->
		committing = true;
		to_engine!COMMIT(o_attempt, m_window)
	   }
	:: d_step { from_engine?[VOTE, id, w] ->
		from_engine?VOTE(id, w);
		if
		:: id == go_id -> go_id = 0; m_prepared = true; m_vote = id / 2; m_complete = true; m_counts = given
		:: else
		fi
	   }
	:: d_step { from_engine?[CANCELLED, id, w] ->
		from_engine?CANCELLED(id, w);
		go_id = (id == go_id -> 0 : go_id)
	   }
	:: d_step { from_engine?[REFUSED, id, w] ->
		from_engine?REFUSED(id, w);
		refused_id = (id == go_id -> id : refused_id);
		go_id = (id == go_id -> 0 : go_id)
	   }
	:: d_step { from_engine?[COMPLETE, id, w] ->
		from_engine?COMPLETE(id, w);
		if
		:: w == m_window -> m_complete = true; m_counts = id
		:: else
		fi
	   }
	:: d_step { from_engine?[DISARMED, id, w] -> from_engine?DISARMED(id, w); disarming = false }
	:: d_step { from_engine?[APPLIED, id, w] ->
		from_engine?APPLIED(id, w);
		committing = false;
		m_window = w + 1; m_prepared = false; m_complete = false; m_counts = false; m_vote = 0
	   }
	:: d_step { r_prepared != m_prepared || r_complete != m_complete || r_counts != m_counts || r_window != m_window ||
		    r_vote != m_vote || r_armed != (GO_IS_ARMED -> go_id / 2 : 0) ->
		r_prepared = m_prepared; r_complete = m_complete; r_counts = m_counts; r_window = m_window; r_vote = m_vote;
		r_armed = (GO_IS_ARMED -> go_id / 2 : 0)
	   }
	:: d_step { events > 0 && window < S -> events--; engine_dies() }
	od
}

/* ---- the coordinator ---- */

inline new_attempt()
{
	I9 = (tries + 1 < TRIES); /* else attempts are begun that no event has paid for */
	assert(I9);
	tries++;
	attempt = ATTEMPT_OF(term, tries)
}

inline begin_go()
{
	went_held = held;
	c_armed = false;
	phase = GO
}

inline arm()
{
	c_armed = !held;
	if
	:: c_armed -> new_attempt()
	:: else
	fi
}

#define HEARD (r_window == c_window && c_window < S)

proctype coordinator()
{
end:
	do
	:: d_step { phase == COMPLETE && HEARD && (IS_OURS || WILL_VOTE) && MAY_TAKE -> begin_go(); unsaid = true }
	:: d_step { phase == COMPLETE && HEARD && !IS_OURS && !WILL_VOTE && ((r_prepared && MAY_FOLLOW) || (r_complete && !held)) ->
		new_attempt();
		begin_go()
	   }
	:: d_step { phase == GO && HEARD && IS_VOTE ->
		I11 = !went_held;
		assert(I11);
		I2 = (log[c_window] == 0 && length == c_window);
		assert(I2);
		log[c_window] = attempt;
		length++;
		unsaid = false;
		phase = COMMIT;
		if
		:: length < S -> arm()
		:: else
		fi
	   }
	:: d_step { phase == COMMIT && r_window == c_window + 1 -> c_window++; phase = COMPLETE }
	/* the operator */
	:: d_step { events > 0 && !held && length < S -> events--; paused = true; held = true }
	:: d_step { events > 0 && held ->
		events--;
		paused = false; held = false;
		if
		:: phase == COMPLETE && !c_armed && c_window < S && !(r_prepared && HEARD) -> arm()
		:: else
		fi
	   }
	:: d_step { events > 0 && phase == COMPLETE && !held && c_window < S && length == c_window ->
		events--;
		forced[c_window] = true;
		new_attempt();
		begin_go()
	   }
	/* gaccd dies, and its engine with it */
	:: d_step { events > 0 && term == 0 && length < S ->
		events--;
		term = 1; tries = 0; attempt = 0;
		held = paused; c_armed = false; went_held = false; unsaid = false;
		phase = (length > 0 -> COMMIT : COMPLETE);
		c_window = (length > 0 -> length - 1 : 0);
		o_want = DISARM; o_window = 0; o_attempt = 0; o_armed = 0; refused_id = 0;
		engine_dies();
		r_prepared = false; r_complete = false; r_counts = false; r_window = S + 1; r_vote = 0; r_armed = 0;
		if
		:: length == 0 -> arm()
		:: else
		fi
	   }
	od
}

init
{
	atomic { arm(); run engine(); run node(); run coordinator() }
end:
	do
	:: d_step { events > 0 || held -> /* calm */
		events = 0;
		paused = false;
		held = false
	   }
	:: timeout ->
		I9 = (length == S && window == S);
		assert(I9);
		break
	od
}
