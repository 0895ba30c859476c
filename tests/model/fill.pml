/* SPDX-License-Identifier: Apache-2.0 */
/* The start of a job of several parts: who has whose parameters, until all have the same and the job runs.
 *
 * Each part may get parameters of its own from its ranks. The coordinator forms a communicator, and orders all parts to take
 * those of one part over it. step.pml begins after that. An order is state: parts know an older one for as long as they like,
 * and the coordinator knows an older report. Deaths of engines are paid from `events`; `calm` throws the rest away.
 *
 * R parts, EVENTS deaths. MUTANT_x takes one rule away, and a check must then fail.
 */
#ifndef R
#define R 3
#endif
#ifndef EVENTS
#define EVENTS 2
#endif
#define ORDERS (4 * (EVENTS + 2)) /* each death costs one communicator, or two */
#define BIT(x) (1 << (x))
#define EVERY ((1 << R) - 1)
#define NOBODYS 255 /* a mixture, or not yet any */

/* ---- state ---- */

/* In the memory of each part: the record's word that there are parameters, and whose they are. */
byte ready;
byte whose[R] = NOBODYS;

/* Orders, by number; the newest is `order`. */
byte order;
byte o_comm[ORDERS], o_fill[ORDERS]; /* o_fill: part + 1 */

/* What a part knows, and its engine's place: the communicator that it has joined; its FILL in that. */
byte known[R], joined[R];
byte filling, filled; /* parts */
byte broken;          /* the newest communicator that somebody has left */

/* What the coordinator has heard. */
byte heard[R];  /* the order that the part knew */
byte started;   /* parts that said that they have their parameters */
byte said[R] = NOBODYS; /* whose */

byte comm, fill, fill_order;
bool runs;
byte events = EVENTS;
hidden byte i;
hidden byte I9, I30;

/* ---- the rules that a mutant takes away ---- */

#ifdef MUTANT_fill_without_unready
#define UNREADY(r)
#else
#define UNREADY(r) ready = ready & ~BIT(r)
#endif
#ifdef MUTANT_old_reports_count
#define KNOWS_FILL(r) true
#else
#define KNOWS_FILL(r) (heard[r] >= fill_order)
#endif
#ifdef MUTANT_taker_says_its_own
#define TAKES(r) false
#else
#define TAKES(r) (o_fill[known[r]] != 0 && o_fill[known[r]] != r + 1 && (filled & BIT(r)) == 0)
#endif
#ifdef MUTANT_digests_not_compared
#define SAME(r) true
#else
#define SAME(r) (said[r] == said[0])
#endif

/* ---- a part ---- */

#define MAY_PUT(r) (o_fill[known[r]] == 0 || (filled & BIT(r)) != 0)
#define SOURCE(r) (o_fill[known[r]] - 1)
#define IN(r) (joined[r] != 0 && joined[r] == o_comm[known[r]] && joined[r] > broken)

inline leave(r)
{
	broken = (joined[r] > broken -> joined[r] : broken);
	joined[r] = 0;
	filling = filling & ~BIT(r);
	filled = filled & ~BIT(r)
}

proctype part(byte r)
{
end:
	do
	/* its ranks give parameters */
	:: d_step { (ready & BIT(r)) == 0 && (filling & BIT(r)) == 0 && MAY_PUT(r) && !runs ->
		ready = ready | BIT(r);
		whose[r] = r
	   }
	:: d_step { known[r] < order ->
		known[r] = order;
		if
		:: joined[r] != o_comm[order] -> leave(r)
		:: else
		fi
	   }
	:: d_step { o_comm[known[r]] > broken && joined[r] == 0 -> joined[r] = o_comm[known[r]] }

	/* FILL */
	:: d_step { IN(r) && o_fill[known[r]] != 0 && ((filling | filled) & BIT(r)) == 0 &&
		(SOURCE(r) != r || (ready & BIT(r)) != 0) ->
		filling = filling | BIT(r);
		if
		:: SOURCE(r) != r ->
			UNREADY(r);
			whose[r] = NOBODYS
		:: else
		fi
	   }
	:: d_step { IN(r) && (filling & BIT(r)) != 0 && ((filling | filled) & BIT(SOURCE(r))) != 0 &&
		joined[SOURCE(r)] == joined[r] ->
		filling = filling & ~BIT(r);
		filled = filled | BIT(r);
		whose[r] = whose[SOURCE(r)];
		ready = ready | BIT(r)
	   }
	:: d_step { (filling & BIT(r)) != 0 && !IN(r) -> filling = filling & ~BIT(r) }

	/* a report arrives */
	:: d_step { heard[r] != known[r] || said[r] != whose[r] ||
		((started & BIT(r)) != 0) != ((ready & BIT(r)) != 0 && !TAKES(r)) ->
		heard[r] = known[r];
		said[r] = whose[r];
		started = ((ready & BIT(r)) != 0 && !TAKES(r) -> started | BIT(r) : started & ~BIT(r))
	   }

	/* its engine dies; the next one has the record and the memory */
	:: d_step { events > 0 && !runs -> events--; leave(r) }
	od
}

/* ---- the coordinator ---- */

/* k is read when `order` is the new one. */
inline give_order(k, f)
{
	I9 = (order + 1 < ORDERS); /* else communicators break that no death has paid for */
	assert(I9);
	order++;
	o_comm[order] = k;
	o_fill[order] = f;
	comm = k;
	fill = f
}

#define FIRST ((started & 1) != 0 -> 1 : ((started & 2) != 0 -> 2 : 3))
#define ALL_IN (heard[0] >= comm && heard[R - 1] >= comm && heard[R / 2] >= comm)
#define ALL_SAME (SAME(0) && SAME(R - 1) && SAME(R / 2))
#define ALL_KNOW (KNOWS_FILL(0) && KNOWS_FILL(R - 1) && KNOWS_FILL(R / 2))

/* A communicator has the number of the order that has it first. */
proctype coordinator()
{
end:
	do
	:: d_step { !runs && comm <= broken -> give_order(order, 0) }
	:: d_step { !runs && comm > broken && fill == 0 && started != 0 && ALL_IN && !(started == EVERY && ALL_SAME) ->
		give_order(comm, FIRST);
		fill_order = order
	   }
	/* parameters that differ after a fill end the job: nothing could change that any more */
	:: d_step { !runs && comm > broken && started == EVERY && ALL_IN && fill != 0 && !ALL_SAME &&
		heard[0] >= fill_order && heard[R - 1] >= fill_order && heard[R / 2] >= fill_order ->
		I9 = false;
		assert(I9)
	   }
	:: d_step { !runs && comm > broken && started == EVERY && ALL_IN && ALL_SAME && (fill == 0 || ALL_KNOW) ->
		runs = true;
		I30 = (ready == EVERY && whose[0] != NOBODYS && whose[R - 1] == whose[0] && whose[R / 2] == whose[0]);
		assert(I30)
	   }
	od
}

proctype calm()
{
end:
	d_step { events > 0 -> events = 0 }
}

proctype job()
{
	timeout;
	I9 = runs;
	assert(I9)
}

init {
	atomic {
		i = 0;
		do
		:: i < R -> run part(i); i++
		:: else -> break
		od;
		run coordinator();
		run calm();
		run job()
	}
}
