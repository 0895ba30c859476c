/* SPDX-License-Identifier: Apache-2.0 */
/* Of mailbox.pml: the engine, as far as it serves one rank. */

#define HAS(b) ((reads & BIT(b)) != 0)
#define IS_PUSH(id) (WHAT_OF(id) < M)
#define IS_THERE(b, c) (CHECK_OK(b, c) && (!IS_PUSH(request[AT(b, c)]) || PRESENT_OK(b, c)) && request[AT(b, c)] != 0)
#define IS_OF_NOW(id) (IS_PUSH(id) && WINDOW_OF(id) == window)

/* MAILBOX, for a session in force, and only while the job runs. */
inline take_box(r)
{
	d_step {
		up && given[r] != 0 && MAY_GIVE(r) && IN_FORCE(r) && !HAS(BOX(r, given[r])) ->
#ifdef MUTANT_fence_by_mailbox
		drop_box(BOX(r, given[r] + 1));
#endif
		x = BOX(r, given[r]);
		reads = reads | BIT(x);
		i = 0;
		do
		:: i < CELLS ->
#ifndef MUTANT_d_not_reset
			D(x, i) = answer[AT(x, i)];
#endif
			i++
		:: else -> break
		od;
		look[x] = (SCANS -> EVERY_CELL : 0);
#ifndef MUTANT_taken_without_bell
		to_ring = to_ring | BIT(r)
#endif
	}
}

/* A repeat, and a WAIT, are answered by the rules below. */
inline offer(r, b, c, id)
{
	if
	:: IS_OF_NOW(id) && OPEN && (flushed & BIT(r)) == 0 && UNSEEN(PAIR(r, WHAT_OF(id))) && AFTER_ITS_OWN(r, WHAT_OF(id)) ->
		I6 = (b == BOX(r, sgen[r]) && EPOCH_OF(id) == epoch);
		assert(I6);
		parked[r] = parked[r] | BIT(WHAT_OF(id))
	:: else ->
		if
		:: IS_PUSH(id) && !(IS_OF_NOW(id) && ((counted | voided) & PAIR(r, WHAT_OF(id))) != 0) ->
			write_answer(b, c, NOT_OK) /* WINDOW_CLOSED, FLUSHED, OUT_OF_ORDER, WINDOW_FORGOTTEN */
		:: else
		fi
	fi
}

inline look_at(b, c)
{
	d_step {
		HAS(b) && look[b] != 0 && (look[b] & BIT(c)) != 0 && (look[b] & (BIT(c) - 1)) == 0 ->
#ifdef MUTANT_one_cell_a_bell
		look[b] = 0;
#else
		look[b] = look[b] & ~BIT(c);
#endif
#ifdef MUTANT_bell_seen_after_scan
		rung = (look[b] == 0 -> rung & ~BIT(b) : rung);
#endif
		if
		:: IS_THERE(b, c) && seq[AT(b, c)] != D(b, c) ->
			D(b, c) = seq[AT(b, c)];
			if
			:: asks[AT(b, c)] != 0 ->
#ifdef MUTANT_old_answer_for_new_seq
				skip
#else
				write_answer(b, c, NOT_OK) /* SLOT_BUSY; the copy before counts, and is no more answered here */
#endif
			:: else ->
				I8 = ((torn[b] & BIT(c)) == 0 && (!IS_PUSH(request[AT(b, c)]) || (half[b] & BIT(c)) == 0));
				assert(I8);
				asks[AT(b, c)] = request[AT(b, c)];
				offer((b) / 2, b, c, asks[AT(b, c)])
			fi
		:: else
		fi
	}
}

/* What may not be parked is answered by the rule below. */

inline answer_push(r, b, c)
{
	d_step {
		HAS(b) && asks[AT(b, c)] != 0 && IS_PUSH(asks[AT(b, c)]) &&
#ifdef MUTANT_answer_before_bit
		true ->
#else
		(!IS_OF_NOW(asks[AT(b, c)]) || ((parked[r] & BIT(WHAT_OF(asks[AT(b, c)]))) == 0 &&
			((UNTOLD | ZEROING) & PAIR(r, WHAT_OF(asks[AT(b, c)]))) == 0)) ->
#endif
		pair = PAIR(r, WHAT_OF(asks[AT(b, c)]));
		if
#ifdef MUTANT_void_is_duplicate
		:: IS_OF_NOW(asks[AT(b, c)]) && ((counted | voided) & pair) != 0 -> write_answer(b, c, COUNTED)
#else
		:: IS_OF_NOW(asks[AT(b, c)]) && (counted & pair) != 0 -> write_answer(b, c, COUNTED)
		:: IS_OF_NOW(asks[AT(b, c)]) && (voided & pair) != 0 -> write_answer(b, c, VOID)
#endif
#ifdef MUTANT_answer_before_bit
		:: IS_OF_NOW(asks[AT(b, c)]) && (parked[r] & BIT(WHAT_OF(asks[AT(b, c)]))) != 0 -> write_answer(b, c, COUNTED)
#endif
		:: else -> write_answer(b, c, NOT_OK) /* it was parked until the window was closed */
		fi
	}
}

inline write_block(b)
{
	d_step { HAS(b) && WHAT_OF(asks[AT(b, 0)]) == M && asks[AT(b, 0)] != 0 && WINDOW_OF(asks[AT(b, 0)]) + 1 == window && block[b] != window -> block[b] = window }
}

inline answer_wait(b, c)
{
	d_step { /* gaccd and the step block first; a successor has the scalars in the record */
		GACCD_FIRST && HAS(b) && asks[AT(b, c)] != 0 && WHAT_OF(asks[AT(b, c)]) == M && WINDOW_OF(asks[AT(b, c)]) + 1 == window && SAW_COMMIT && BLOCK_THERE(b) ->
		write_answer(b, c, OVER)
	}
}

inline forget_wait(b, c)
{
	d_step { /* WINDOW_FORGOTTEN */
		HAS(b) && asks[AT(b, c)] != 0 && WHAT_OF(asks[AT(b, c)]) == M && WINDOW_OF(asks[AT(b, c)]) + 1 < window ->
		write_answer(b, c, NOT_OK)
	}
}

/* A push by RPC whose predecessor is missing, and a FLUSH, must not overtake what lies in cells. */
#define LOWEST_RPC(r) ((by_rpc[r] & 1) != 0 -> 0 : 1)
#define RPC_ARRIVES(r) \
	(up && running && OPEN && (by_rpc[r] & EVERY_MICRO) != 0 && doing[r] >= AWAKE && CONNECTED(r) && my_gen[r] == sgen[r] && \
	 my_epoch[r] == epoch && my_window[r] == window && (flushed & BIT(r)) == 0 && UNSEEN(PAIR(r, LOWEST_RPC(r))))
#define FLUSH_ARRIVES(r) \
	(up && running && OPEN && (flushing & BIT(r)) != 0 && doing[r] >= AWAKE && CONNECTED(r) && my_gen[r] == sgen[r] && \
	 my_epoch[r] == epoch && my_window[r] == window && (flushed & BIT(r)) == 0)
#define OVERTAKEN(b, c) \
	((torn[b] & BIT(c)) == 0 && seq[AT(b, c)] != answer[AT(b, c)] && IS_OF_NOW(request[AT(b, c)]) && EPOCH_OF(request[AT(b, c)]) == epoch && \
	 ((counted | voided) & PAIR(r, WHAT_OF(request[AT(b, c)]))) == 0)

/* A pass: one record, in which x flips and the bit is set; or it is not finite and void. */
inline flip(r, m)
{
	d_step {
		up && OPEN && (parked[r] & BIT(m)) != 0 && IS_TURN(PAIR(r, m)) ->
		RUN = running;
		assert(RUN);
		I6 = ((fenced[r] & BIT(m)) == 0);
		assert(I6);
		parked[r] = parked[r] & ~BIT(m);
		twice = twice | (once & PAIR(r, m));
		once = once | PAIR(r, m);
		counted = counted | PAIR(r, m);
#if RECORD
		untold = PAIR(r, m);
		zeroing = zeroing | PAIR(r, m);
#endif
#ifdef MUTANT_progress_not_repeated
		fresh = true;
#endif
		check()
	}
}

inline refuse(r, m)
{
	d_step {
		up && OPEN && (parked[r] & BIT(m)) != 0 && IS_TURN(PAIR(r, m)) && events > 0 ->
		events--;
		parked[r] = parked[r] & ~BIT(m);
		voided = voided | PAIR(r, m);
#if RECORD
		untold = PAIR(r, m);
#endif
#ifdef MUTANT_progress_not_repeated
		fresh = true;
#endif
		check()
	}
}

proctype door(byte r)
{
end:
	do
	:: take_box(r)
	:: d_step { (rung & BIT(BOX(r, 0))) != 0 ->
#ifndef MUTANT_bell_seen_after_scan
		rung = rung & ~BIT(BOX(r, 0));
#endif
		look[BOX(r, 0)] = EVERY_CELL
	   }
	:: d_step { (rung & BIT(BOX(r, 1))) != 0 ->
#ifndef MUTANT_bell_seen_after_scan
		rung = rung & ~BIT(BOX(r, 1));
#endif
		look[BOX(r, 1)] = EVERY_CELL
	   }
	:: look_at(BOX(r, 0), 0)
	:: look_at(BOX(r, 1), 0)
	:: answer_push(r, BOX(r, 0), 0)
	:: answer_push(r, BOX(r, 1), 0)
	:: answer_wait(BOX(r, 0), 0)
	:: answer_wait(BOX(r, 1), 0)
	:: forget_wait(BOX(r, 0), 0)
	:: forget_wait(BOX(r, 1), 0)
#if CELLS > 1
	:: look_at(BOX(r, 0), 1)
	:: look_at(BOX(r, 1), 1)
	:: answer_push(r, BOX(r, 0), 1)
	:: answer_push(r, BOX(r, 1), 1)
#endif
	:: write_block(BOX(r, 0))
	:: write_block(BOX(r, 1))
	:: d_step { (to_ring & BIT(r)) != 0 -> to_ring = to_ring & ~BIT(r); awaited = awaited | BIT(r) }

	/* calls */
	:: d_step { (scanned & BIT(r)) == 0 && HAS_BOX(r) && (FLUSH_ARRIVES(r) || (RPC_ARRIVES(r) && !AFTER_ITS_OWN(r, LOWEST_RPC(r)))) ->
		scanned = scanned | BIT(r);
		look[BOX(r, sgen[r])] = (HAS(BOX(r, sgen[r])) -> EVERY_CELL : 0)
	   }
	:: d_step { RPC_ARRIVES(r) && (parked[r] & BIT(LOWEST_RPC(r))) == 0 && (AFTER_ITS_OWN(r, LOWEST_RPC(r)) || RPC_HAS_SCANNED(r)) ->
		scanned = scanned & ~BIT(r);
		/* else it is told OUT_OF_ORDER, or NOT_CURRENT_WINDOW, and has done nothing wrong */
		ORDER = (AFTER_ITS_OWN(r, LOWEST_RPC(r)) && heard == window);
		assert(ORDER);
		parked[r] = parked[r] | BIT(LOWEST_RPC(r))
	   }
#ifdef MUTANT_repeat_not_joined
	:: d_step { RPC_ARRIVES(r) && (parked[r] & BIT(LOWEST_RPC(r))) != 0 && (parked_again[r] & BIT(LOWEST_RPC(r))) == 0 ->
		parked_again[r] = parked_again[r] | BIT(LOWEST_RPC(r))
	   }
	:: d_step { parked_again[r] != 0 && OPEN && (parked_again[r] & parked[r]) == 0 ->
		twice = twice | (once & PAIR(r, ((parked_again[r] & 1) != 0 -> 0 : 1)));
		parked_again[r] = 0;
		check()
	   }
#endif
	:: d_step { FLUSH_ARRIVES(r) && HAS_SCANNED(r) && HAS_BOX(r) && NONE_PARKED(r) && (by_rpc[r] & EVERY_MICRO) == 0 ->
		scanned = scanned & ~BIT(r);
		FLUSH = (given[r] != sgen[r] || (!OVERTAKEN(BOX(r, sgen[r]), 0) && !OVERTAKEN(BOX(r, sgen[r]), CELLS - 1)));
		assert(FLUSH);
		parked[r] = 0;
		flushed = flushed | BIT(r);
		untold = 0;
#ifdef MUTANT_progress_not_repeated
		fresh = true
#endif
	   }

	/* passes */
	:: flip(r, 0)
	:: refuse(r, 0)
#if M > 1
	:: flip(r, 1)
	:: refuse(r, 1)
#endif

	/* ATTACH: the record, and in the same turn the older session's mailbox and pushes are dropped; then the answer */
	:: d_step { up && doing[r] == ATTACHING && sgen[r] == my_gen[r] && zeroing == 0 ->
		sgen[r] = sgen[r] + 1;
		untold = 0;
#ifdef MUTANT_attach_keeps_parked
		fenced[r] = parked[r];
#else
		parked[r] = 0;
#endif
#if !defined(MUTANT_no_fence) && !defined(MUTANT_fence_by_mailbox)
		drop_box(BOX(r, my_gen[r]));
#endif
		to_ring = to_ring & ~BIT(r);
		scanned = scanned & ~BIT(r)
	   }
	:: d_step { up && doing[r] == ATTACHING && sgen[r] != my_gen[r] ->
		my_gen[r] = sgen[r];
		empty_box(BOX(r, my_gen[r]));
		if
		:: (zombie & BIT(r)) == 0 && (reads & BIT(BOX(r, my_gen[r] + 1))) == 0 -> empty_box(BOX(r, my_gen[r] + 1))
		:: else
		fi;
		given[r] = (r < BOXES -> my_gen[r] : 0);
		hung = hung & ~BIT(r);
		box_closed = box_closed & ~BIT(r);
		awaited = awaited & ~BIT(r);
		no_box = (no_box & ~BIT(r)) | (r < BOXES -> 0 : BIT(r));
		doing[r] = AWAKE;
		learn(r)
	   }
	od
}
