/* SPDX-License-Identifier: Apache-2.0 */
/* Of mailbox.pml: trainers. */

#define IS_ANSWERED(r, k) ((in_cell[r] & BIT(k)) != 0 && answer[MY_CELL(r, k)] == seq[MY_CELL(r, k)])
#define SEES_ANSWER(r) (IS_ANSWERED(r, 0) || IS_ANSWERED(r, M - 1) || IS_ANSWERED(r, M))
#if defined(MUTANT_cell_used_again) || defined(MUTANT_seq_repeated) || defined(MUTANT_old_answer_for_new_seq)
#define IS_ITS_OWN(k) ((in_cell[r] & BIT(k)) != 0 && CELL_OF(k) == CELL_OF(WANTED(r)))
#define MAY_WRITE(r) (!IS_ITS_OWN(0) && !IS_ITS_OWN(M - 1) && !IS_ITS_OWN(M))
#else
#define MAY_WRITE(r) (answer[MY_CELL(r, WANTED(r))] == seq[MY_CELL(r, WANTED(r))]) /* also when nobody wants its answer any more */
#endif
#define SLOT_IS_MINE(r) (SLOTS == M || (in_cell[r] == 0 && by_rpc[r] == 0))
#define MAY_PUSH(r) (doing[r] == AWAKE && my_window[r] < S && NEXT(r) < M && (flushing & BIT(r)) == 0 && SLOT_IS_MINE(r))
#if MIX
#define MIXES(r) true
#else
#define MIXES(r) ((no_box & BIT(r)) != 0 || !MAY_WRITE(r))
#endif
#define MAY_WAIT(r) (doing[r] == AWAKE && my_window[r] < S && passed[r] == EVERY_MICRO && in_cell[r] == 0 && by_rpc[r] == 0)
#define WANTED(r) (passed[r] == EVERY_MICRO -> M : NEXT(r))
#define SLOTS_PAIRS(r, m) (SLOTS == 1 -> PAIRS_OF(BIT(r)) : PAIR(r, m))

/* The answer counts for the trainer whatever happens next. */
inline knows(r, m)
{
	scanned = scanned & ~BIT(r);
	passed[r] = passed[r] | BIT(m);
	said = said | (my_window[r] == window && my_epoch[r] == epoch -> PAIR(r, m) : 0)
}

inline next_window(r)
{
	in_cell[r] = 0;
	by_rpc[r] = 0;
	my_window[r] = my_window[r] + 1;
	passed[r] = 0
}

/* It fills a slot again only when that is no more the engine's to zero. */
inline fill_slot(r, m)
{
	I8 = (my_epoch[r] != epoch || my_window[r] != window || (zeroing & SLOTS_PAIRS(r, m)) == 0);
	assert(I8)
}

/* Only whether numbers are equal matters, so a free cell's begin anew. */
inline forget_cell(b, c)
{
	request[AT(b, c)] = 0;
	seq[AT(b, c)] = 0;
	answer[AT(b, c)] = 0;
	status[AT(b, c)] = 0;
	D(b, c) = 0
}

inline take_answer(r, k)
{
	d_step {
		doing[r] == AWAKE && IS_ANSWERED(r, k) ->
		in_cell[r] = in_cell[r] & ~BIT(k);
		i = status[MY_CELL(r, k)];
		forget_cell(BOX(r, my_gen[r]), CELL_OF(k));
		if
		:: i == NOT_OK || my_epoch[r] != epoch -> by_rpc[r] = by_rpc[r] | BIT(k)
		:: i == COUNTED && my_epoch[r] == epoch ->
			I4 = IS_IN(r, k);
			assert(I4);
			knows(r, k)
		:: i == VOID && my_epoch[r] == epoch ->
			I4 = IS_VOID(r, k);
			assert(I4);
			knows(r, k)
		:: i == OVER && my_epoch[r] == epoch ->
			BLOCK = (my_window[r] < window && block[BOX(r, my_gen[r])] > my_window[r]);
			assert(BLOCK);
			next_window(r)
		fi;
#ifdef MUTANT_one_answer_a_bell
		doing[r] = (in_cell[r] != 0 -> ASLEEP : AWAKE);
#endif
	}
}

inline rpc_answer(r, m)
{
	d_step { /* COUNTED, DUPLICATE, ALREADY_COMMITTED, VOID */
		LISTENS(r) && (by_rpc[r] & BIT(m)) != 0 && my_epoch[r] == epoch && CONNECTED(r) && (IS_IN(r, m) || IS_VOID(r, m)) &&
		(my_window[r] < window || RPC_SAYS(PAIR(r, m))) ->
		by_rpc[r] = by_rpc[r] & ~BIT(m);
		knows(r, m)
	}
}

inline rpc_refusal(r, m)
{
	d_step { /* WINDOW_CLOSED, FLUSHED: not counted */
		LISTENS(r) && (by_rpc[r] & BIT(m)) != 0 && my_epoch[r] == epoch && CONNECTED(r) && !IS_IN(r, m) && !IS_VOID(r, m) &&
		(my_window[r] < window || closed || (flushed & BIT(r)) != 0) ->
		by_rpc[r] = 0;
		in_cell[r] = 0;
		passed[r] = EVERY_MICRO
	}
}

inline zombie_pushes(r, m)
{
	d_step {
		(zombie & BIT(r)) != 0 && window < S && ((reads & BIT(ZOMBIES_BOX(r))) != 0 || (doing[r] == ATTACHING && given[r] != 0)) ->
		i = ZOMBIES_BOX(r);
		rung = rung | (reads & BIT(i));
		torn[i] = torn[i] & ~BIT(CELL_OF(m));
		half[i] = half[i] & ~BIT(CELL_OF(m));
		i = AT(i, CELL_OF(m));
		request[i] = REQUEST(epoch, window, m);
		seq[i] = (seq[i] + 1) % 4;
		zombie = zombie & ~BIT(r)
	}
}

proctype trainer(byte r)
{
end:
	do
	/* life and death */
	:: d_step { doing[r] == DEAD && (zombie & BIT(r)) == 0 -> doing[r] = ATTACHING }
	:: d_step { doing[r] > ATTACHING && events > 0 && sgen[r] < GENS ->
		events--;
		doing[r] = DEAD;
		in_cell[r] = 0;
		by_rpc[r] = 0;
		flushing = flushing & ~BIT(r)
	   }
	:: d_step { /* a second trainer claims the rank while the first lives and has its mailbox mapped */
		doing[r] > ATTACHING && events > 0 && sgen[r] < GENS && (zombie & BIT(r)) == 0 ->
		events--;
		zombie = zombie | BIT(r);
		in_cell[r] = 0;
		by_rpc[r] = 0;
		flushing = flushing & ~BIT(r);
		doing[r] = ATTACHING
	   }
	:: d_step { doing[r] == AWAKE && (hung & BIT(r)) != 0 && (zombie & BIT(r)) == 0 ->
		doing[r] = ATTACHING; /* gaccd has died: anew, with another session */
		in_cell[r] = 0;
		by_rpc[r] = 0;
		flushing = flushing & ~BIT(r)
	   }

	/* a request: the stores, in any order; then the bell */
	:: d_step { (MAY_PUSH(r) || MAY_WAIT(r)) && (no_box & BIT(r)) == 0 && MAY_WRITE(r) ->
		if
		:: WANTED(r) < M -> fill_slot(r, WANTED(r))
		:: else
		fi;
		i = MY_CELL(r, WANTED(r));
		request[i] = REQUEST(my_epoch[r], my_window[r], WANTED(r));
#ifdef MUTANT_seq_repeated
		seq[i] = (seq[i] == answer[i] -> (seq[i] + 1) % 4 : seq[i]);
#else
		seq[i] = (seq[i] + 1) % 4;
#endif
		x = CELL_OF(WANTED(r));
		torn[BOX(r, my_gen[r])] = torn[BOX(r, my_gen[r])] | BIT(x);
		half[BOX(r, my_gen[r])] = half[BOX(r, my_gen[r])] | (WANTED(r) < M -> BIT(x) : 0);
		doing[r] = WRITING;
#ifdef MUTANT_bell_before_store
		rung = rung | (reads & BIT(BOX(r, my_gen[r])));
#endif
	   }
	:: d_step { doing[r] == WRITING && (half[BOX(r, my_gen[r])] & BIT(CELL_OF(WANTED(r)))) != 0 ->
		half[BOX(r, my_gen[r])] = half[BOX(r, my_gen[r])] & ~BIT(CELL_OF(WANTED(r)))
	   }
	:: d_step { doing[r] == WRITING && (torn[BOX(r, my_gen[r])] & BIT(CELL_OF(WANTED(r)))) != 0 ->
		torn[BOX(r, my_gen[r])] = torn[BOX(r, my_gen[r])] & ~BIT(CELL_OF(WANTED(r)))
	   }
	:: d_step { doing[r] == WRITING && ((torn[BOX(r, my_gen[r])] | half[BOX(r, my_gen[r])]) & BIT(CELL_OF(WANTED(r)))) == 0 ->
#ifndef MUTANT_bell_before_store
		rung = rung | (reads & BIT(BOX(r, my_gen[r])));
#endif
		in_cell[r] = in_cell[r] | BIT(WANTED(r));
		doing[r] = AWAKE
	   }

	/* the same by RPC: at will, when it was told to, when `closed` is set, after its own time limit */
	:: d_step { MAY_PUSH(r) && by_rpc[r] == 0 && MIXES(r) -> fill_slot(r, NEXT(r)); by_rpc[r] = BIT(NEXT(r)); scanned = scanned & ~BIT(r) }
	:: d_step { MAY_WAIT(r) && MIXES(r) -> by_rpc[r] = BIT(M) }
	:: d_step { doing[r] == AWAKE && (box_closed & ~no_box & BIT(r)) != 0 ->
		no_box = no_box | BIT(r);
		by_rpc[r] = by_rpc[r] | in_cell[r];
		in_cell[r] = 0
	   }
	:: d_step { LISTENS(r) && in_cell[r] != 0 && events > 0 ->
		events--;
		by_rpc[r] = by_rpc[r] | in_cell[r];
		in_cell[r] = 0;
		doing[r] = AWAKE
	   }
	:: d_step { /* FLUSH, while its pushes may lie in cells */
		doing[r] == AWAKE && my_window[r] < S && passed[r] != EVERY_MICRO && (flushing & BIT(r)) == 0 && by_rpc[r] == 0 && events > 0 ->
		events--;
		scanned = scanned & ~BIT(r);
		flushing = flushing | BIT(r)
	   }

	/* answers */
	:: take_answer(r, 0)
#if M > 1
	:: take_answer(r, 1)
#endif
	:: take_answer(r, M)
	:: d_step { doing[r] == AWAKE && in_cell[r] != 0 && !SEES_ANSWER(r) && (box_closed & ~no_box & BIT(r)) == 0 && (hung & BIT(r)) == 0 ->
		doing[r] = ASLEEP
	   }
	:: d_step { doing[r] == ASLEEP && (awaited & BIT(r)) != 0 -> awaited = awaited & ~BIT(r); doing[r] = AWAKE }
#ifndef MUTANT_hangup_not_watched
	:: d_step { doing[r] == ASLEEP && (hung & BIT(r)) != 0 -> doing[r] = AWAKE }
#endif
	:: rpc_answer(r, 0)
	:: rpc_refusal(r, 0)
#if M > 1
	:: rpc_answer(r, 1)
	:: rpc_refusal(r, 1)
#endif
	:: d_step { LISTENS(r) && (by_rpc[r] & BIT(M)) != 0 && my_epoch[r] == epoch && my_window[r] < heard && CONNECTED(r) -> next_window(r) }
	:: d_step { LISTENS(r) && (flushing & BIT(r)) != 0 && my_epoch[r] == epoch && CONNECTED(r) &&
		((flushed & BIT(r)) != 0 || closed || my_window[r] < window) ->
		flushing = flushing & ~BIT(r);
		in_cell[r] = 0;
		by_rpc[r] = 0;
		passed[r] = EVERY_MICRO;
		doing[r] = AWAKE
	   }
	:: d_step { /* StepAborted, by RPC or when it asks */
		LISTENS(r) && my_epoch[r] < epoch && CONNECTED(r) && (by_rpc[r] != 0 || (flushing & BIT(r)) != 0 || in_cell[r] == 0) ->
		learn(r);
		no_box = no_box | BIT(r);
		doing[r] = AWAKE
	   }
	:: d_step { /* the last breath of a fenced trainer: it may push whatever it wants, into any cell; its calls are acc.pml's */
		(zombie & BIT(r)) != 0 -> zombie = zombie & ~BIT(r)
	   }
	:: zombie_pushes(r, 0)
#if M > 1
	:: zombie_pushes(r, 1)
#endif
	od
}
