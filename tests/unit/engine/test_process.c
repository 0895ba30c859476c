/* The engine as gaccd sees it: a real process behind a socketpair. */
#include "engine/engine.h"
#include "rig.h"

#include <check.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COUNTED = 1, DUPLICATE = 2, ALREADY_COMMITTED = 3, VOID = 4 };
enum { APPLIED = 1, SKIPPED = 2, EMPTY = 3, DROPPED = 4 };

static struct rig rig;

static void begin(struct rig_config c)
{
	rig_open(&rig, &c);
	rig_start(&rig);
	rig_attach_all(&rig);
}

static void end(void)
{
	rig_close(&rig);
}

static void fill_all(uint64_t seed, bool exact)
{
	for (uint32_t s = 0; s < rig.plan->slots; s++)
		(exact ? rig_fill_slot_exact : rig_fill_slot)(&rig, s, seed * 100 + s);
}

/* All pushes of the window are sent before any answer is read; order[i] = rank * micro_size + micro. */
static void add_all(const uint32_t *order)
{
	uint32_t n = rig.plan->slots, m = rig.config.micro_size;
	struct engine_answer a;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t k = order ? order[i] : i;
		rig_send(&rig, rig_add_command(&rig, k / m, k % m, 1 + k));
	}
	for (uint32_t i = 0; i < n; i++) {
		ck_assert(rig_receive(&rig, &a));
		ck_assert_uint_eq(a.status, ST_OK);
		ck_assert_uint_eq(a.result, COUNTED);
	}
}

static void shuffle(uint32_t *order, uint32_t n, uint64_t seed)
{
	for (uint32_t i = 0; i < n; i++)
		order[i] = i;
	for (uint32_t i = n - 1; i > 0; i--) {
		uint32_t j = (uint32_t)(rig_mix(seed + i) % (i + 1)), k = order[i];
		order[i] = order[j];
		order[j] = k;
	}
}

static void *copy_sum(void)
{
	void *out = malloc(rig_bytes(&rig, SEG_ACCUM0, 0));
	rig_read(&rig);
	memcpy(out, rig_data(&rig, SEG_ACCUM0 + rig.state.r.x, 0), rig_bytes(&rig, SEG_ACCUM0, 0));
	return out;
}

START_TEST(a_new_engine_says_hello_and_ends_with_its_socket)
{
	struct rig_config c = rig_small();
	rig_open(&rig, &c);
	struct engine_answer a = rig_start(&rig);
	ck_assert_uint_eq(a.version, ENGINE_CHANNEL_VERSION);
	ck_assert_uint_eq(a.window, 0);
	ck_assert_uint_eq(a.record_seq, 1);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.job_id, RIG_JOB);
	ck_assert_uint_eq(rig.state.r.micro_size, 2);
	struct status_page *page = rig_data(&rig, SEG_STATUS, 0);
	ck_assert_uint_eq(page->engine_pid, (uint64_t)rig.pid);
	ck_assert_int_eq(rig_wait(&rig), 0);
	end();
}
END_TEST

START_TEST(stop_answers_what_is_queued)
{
	struct engine_answer a;
	begin(rig_small());
	uint64_t waits = rig_send(&rig, rig_add_command(&rig, 1, 0, 1));
	uint64_t stop = rig_send(&rig, (struct engine_command){ .op = ENGINE_STOP });
	ck_assert(rig_receive(&rig, &a));
	ck_assert_uint_eq(a.id, waits);
	ck_assert_uint_eq(a.status, ST_ENGINE_DOWN);
	ck_assert(rig_receive(&rig, &a));
	ck_assert_uint_eq(a.id, stop);
	ck_assert_uint_eq(a.status, ST_OK);
	ck_assert(!rig_receive(&rig, &a));
	end();
}
END_TEST

START_TEST(damaged_or_foreign_segments_are_refused)
{
	struct rig_config c = rig_small();
	int fds[32], what = _i;
	char why[200];
	struct segment other = SEGMENT_NONE;
	c.frozen = 1u << 5; /* a second range in the first group */
	rig_open(&rig, &c);
	rig_start(&rig);
	rig_attach_all(&rig);
	ck_assert_int_eq(rig_wait(&rig), 0);
	for (int i = 0; i < rig.n_segments; i++)
		fds[i] = rig.segment[i].fd;
	int n = rig.n_segments;
	switch (what) {
	case 0: /* both records */
		memset((char *)rig.page.base + 8, 0xee, rig.page.record_bytes);
		memset((char *)rig.page.base + rig.page.record_bytes + 8, 0xee, rig.page.record_bytes - 8);
		break;
	case 1: /* two segments exchanged */
		fds[n - 1] = rig.segment[n - 2].fd;
		fds[n - 2] = rig.segment[n - 1].fd;
		break;
	case 2: /* another generation */
		ck_assert_int_eq(segment_create(&other, RIG_JOB, RIG_GENERATION + 1, rig.plan->fingerprint, SEG_STATUS, 0,
						sizeof(struct status_page), false, why, sizeof(why)), ST_OK);
		fds[1] = other.fd;
		break;
	case 3: /* other threads: another number of undo areas */
		rig.plan->threads++;
		ck_assert_int_eq(pwrite(rig.plan_fd, rig.plan, rig.plan->bytes, 0), (ssize_t)rig.plan->bytes);
		rig.plan->threads--;
		break;
	case 4: /* a header that lies */
		rig.segment[2].header->fingerprint++;
		break;
	default: /* other ranges of the same arena: chunks would be numbered otherwise */
		ck_assert_uint_eq(rig.plan->n_ranges, 4);
		((struct plan_range *)((char *)rig.plan + rig.plan->ranges_offset))[0].count -= ARENA_ALIGN;
		((struct plan_range *)((char *)rig.plan + rig.plan->ranges_offset))[1].start -= ARENA_ALIGN;
		((struct plan_range *)((char *)rig.plan + rig.plan->ranges_offset))[1].count += ARENA_ALIGN;
		ck_assert_int_eq(pwrite(rig.plan_fd, rig.plan, rig.plan->bytes, 0), (ssize_t)rig.plan->bytes);
	}
	struct engine_answer a = rig_start_with(&rig, fds, n);
	ck_assert_uint_eq(a.op, ENGINE_START);
	ck_assert_uint_eq(a.status, ST_SEGMENT_CORRUPT);
	ck_assert_uint_gt(strlen(a.text), 10);
	ck_assert_int_eq(rig_wait(&rig), ENGINE_EXIT_REFUSED);
	segment_close(&other);
	end();
}
END_TEST

/* Two engines over one segment: the second waits until the first is gone. */
START_TEST(a_second_engine_waits_for_the_first)
{
	struct rig_config c = rig_small();
	struct rig second;
	int fds[32];
	begin(c);
	second = rig;
	for (int i = 0; i < rig.n_segments; i++)
		fds[i] = rig.segment[i].fd;
	rig_send(&rig, rig_add_command(&rig, 0, 0, 1));
	struct engine_answer a;
	ck_assert(rig_receive(&rig, &a));
	kill(rig.pid, SIGSTOP);
	rig_read(&rig);
	uint64_t seq = rig.state.r.seq;
	pid_t killer = fork();
	if (killer == 0) {
		/* while the first is stopped it holds its lock: the second, which starts meanwhile, must publish nothing */
		for (volatile uint64_t i = 0; i < 20000000; i++)
			;
		rig_read(&rig);
		kill(rig.pid, SIGKILL);
		_exit(rig.state.r.seq != seq);
	}
	a = rig_start_with(&second, fds, second.n_segments);
	ck_assert_uint_eq(a.status, ST_OK);
	ck_assert_uint_eq(a.record_seq, seq + 1);
	int early;
	ck_assert_int_eq(waitpid(killer, &early, 0), killer);
	ck_assert_int_eq(early, 0);
	ck_assert_int_eq(rig_wait(&rig), -SIGKILL);
	rig.fd = second.fd;
	rig.pid = second.pid;
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, DUPLICATE);
	end();
}
END_TEST

START_TEST(more_descriptors_than_a_packet_carries)
{
	struct rig_config c = rig_small();
	c.ranks = 16;
	c.micro_size = 4;
	begin(c);
	ck_assert_int_gt(rig.n_segments, CHANNEL_MAX_FDS);
	rig_fill_slot_exact(&rig, 0, 3);
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, COUNTED);
	ck_assert_double_eq(rig_sum(&rig, 1, 0, 5), rig_gradient(&rig, 0, 0, 5));
	end();
}
END_TEST

START_TEST(only_commands_that_make_sense_are_obeyed)
{
	begin(rig_small());
	struct engine_command good = rig_add_command(&rig, 0, 0, 1), c;
#define REFUSED(change, want)                                         \
	do {                                                          \
		c = good;                                             \
		change;                                               \
		ck_assert_uint_eq(rig_call(&rig, c).status, ST_##want); \
	} while (0)
	REFUSED(c.rank = 2, RANK_OUT_OF_RANGE);
	REFUSED(c.rank = UINT32_MAX, RANK_OUT_OF_RANGE);
	REFUSED(c.slot = 4, BAD_SLOT);
	REFUSED(c.micro = 2, WINDOW_FULL);
	REFUSED(c.micro = 5, INVALID_ARGUMENT);
	REFUSED(c.micro = UINT32_MAX, INVALID_ARGUMENT);
	REFUSED(c.weight = 0, BAD_WEIGHT);
	REFUSED(c.weight = NAN, BAD_WEIGHT);
	REFUSED(c.coefficient = INFINITY, INVALID_ARGUMENT);
	REFUSED(c.window = 1, NOT_CURRENT_WINDOW);
	REFUSED(c.sgen = 0, SESSION_FENCED);
	REFUSED(c.sgen = 2, SESSION_UNKNOWN);
	REFUSED(c.n_present = 1, INVALID_ARGUMENT); /* no bitmap behind it */
	REFUSED(c.op = 0, INVALID_ARGUMENT);
	REFUSED(c.op = 99, INVALID_ARGUMENT);
	REFUSED(c.op = ENGINE_START, INVALID_ARGUMENT);
	REFUSED((c.op = ENGINE_ATTACH, c.rank = 2), RANK_OUT_OF_RANGE);
	REFUSED((c.op = ENGINE_FLUSH, c.rank = 2), RANK_OUT_OF_RANGE);
	REFUSED((c.op = ENGINE_FLUSH, c.window = 1), NOT_CURRENT_WINDOW);
	REFUSED((c.op = ENGINE_CLOSE, c.window = 1), NOT_CURRENT_WINDOW);
	REFUSED((c.op = ENGINE_GO, c.term = 1), NOT_READY);
	REFUSED((c.op = ENGINE_COMMIT), NOT_READY);
	REFUSED((c.op = ENGINE_ACK_STEP), NOT_CURRENT_WINDOW);
	REFUSED((c.op = ENGINE_PUT_PARAMS, c.slot = 4), INVALID_ARGUMENT);
	REFUSED((c.op = ENGINE_PUT_PARAMS, c.bytes = UINT64_MAX), INVALID_ARGUMENT);
	REFUSED((c.op = ENGINE_PUT_PARAMS, c.offset = UINT64_MAX, c.bytes = 2), INVALID_ARGUMENT);
	REFUSED((c.op = ENGINE_PUT_PARAMS, c.offset = rig.plan->param_bytes - 1, c.bytes = 2), INVALID_ARGUMENT);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.count, 0);
	ck_assert_uint_eq(rig_call(&rig, good).result, COUNTED);
	end();
}
END_TEST

START_TEST(a_short_packet_ends_the_engine)
{
	struct engine_answer a;
	begin(rig_small());
	ck_assert_int_eq(channel_send(rig.fd, "?", 1, NULL, 0, NULL, 0), 0);
	ck_assert(!rig_receive(&rig, &a));
	end();
}
END_TEST

static const enum dtype grads[] = { DTYPE_NONE, DTYPE_F32, DTYPE_F16, DTYPE_BF16 };

/* Whole numbers: the sum has one right answer, in every dtype, with and without a canonical order. */
START_TEST(sums_are_exact)
{
	struct rig_config c = _i / 16 ? rig_large() : rig_small();
	uint32_t order[16];
	c.grad_dtype = grads[_i % 4];
	c.acc_dtype = _i / 4 % 2 ? DTYPE_F64 : DTYPE_F32;
	c.arrival = _i / 8 % 2;
	c.ranks = 3;
	begin(c);
	fill_all(1, true);
	shuffle(order, rig.plan->slots, (uint64_t)_i);
	add_all(order);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.count, 6);
	ck_assert_double_eq(rig.state.r.sum_weight, 21);
	ck_assert_double_eq(rig.state.r.sum_loss, 21 * 1.5);
	uint64_t wrong = 0;
	double sumsq = 0;
	for (int t = 0; t < c.n_tensors; t++)
		for (uint64_t i = 0; rig.arena.tensor[t].alias < 0 && i < rig.arena.tensor[t].count; i++) {
			double want = 0;
			for (uint32_t s = 0; s < rig.plan->slots; s++)
				want += (1 + s) * (double)rig_gradient(&rig, s, t, i);
			wrong += rig_sum(&rig, rig.state.r.x, t, i) != want;
			sumsq += want * want;
		}
	ck_assert_uint_eq(wrong, 0);
	struct engine_answer a = rig_close_window(&rig);
	ck_assert_uint_eq(a.count, 6);
	ck_assert_double_eq(a.sum_weight, 21);
	a = rig_go(&rig, 1);
	ck_assert_double_eq_tol(a.sumsq, sumsq, 1e-6 * sumsq);
	ck_assert_uint_eq(a.nonfinite, 0);
	end();
}
END_TEST

/* Random values, any order of arrival, one pass or many, with a restart before GO: the same bits. */
START_TEST(order_of_arrival_does_not_change_a_bit)
{
	struct rig_config c = rig_small();
	c.ranks = 3;
	c.micro_size = 3;
	uint32_t order[16];
	void *want = NULL;
	struct engine_answer first = { 0 }, a;
	for (int round = 0; round < 8; round++) {
		begin(c);
		fill_all(5, false);
		shuffle(order, rig.plan->slots, (uint64_t)round);
		if (round == 0)
			for (uint32_t m = 0; m < 3; m++)
				for (uint32_t r = 0; r < 3; r++)
					ck_assert_uint_eq(rig_add(&rig, r, m, 1 + r * 3 + m).result, COUNTED);
		else
			add_all(order);
		void *got = copy_sum();
		if (round % 2) {
			rig_kill(&rig);
			rig_start(&rig);
		}
		rig_close_window(&rig);
		a = rig_go(&rig, 1);
		if (!want) {
			want = got;
			first = a;
		} else {
			ck_assert_mem_eq(got, want, rig_bytes(&rig, SEG_ACCUM0, 0));
			ck_assert_double_eq(a.sumsq, first.sumsq);
			ck_assert_uint_eq(a.digest, first.digest);
			ck_assert_double_eq(a.sum_weight, first.sum_weight);
			ck_assert_uint_eq(a.last_rank, 2);
			free(got);
		}
		end();
	}
	free(want);
}
END_TEST

START_TEST(present_bitmaps_arrive_with_the_push)
{
	begin(rig_small());
	unsigned char present = 1u << 3 | 1u << 5;
	struct engine_command c = rig_add_command(&rig, 0, 0, 2);
	struct engine_answer a;
	rig_fill_slot_exact(&rig, 0, 1);
	c.n_present = 1;
	ck_assert_int_eq(channel_send(rig.fd, &c, sizeof(c), &present, 1, NULL, 0), 0);
	ck_assert(rig_receive(&rig, &a));
	ck_assert_uint_eq(a.result, COUNTED);
	rig_read(&rig);
	uint64_t wrong = 0;
	for (int t = 0; t < rig.config.n_tensors; t++)
		for (uint64_t i = 0; i < rig.arena.tensor[t].count; i++)
			wrong += rig_sum(&rig, rig.state.r.x, t, i) !=
				 (t == 3 || t == 5 ? 2 * (double)rig_gradient(&rig, 0, t, i) : 0);
	ck_assert_uint_eq(wrong, 0);
	c = rig_add_command(&rig, 1, 0, 2);
	c.n_present = 2;
	ck_assert_int_eq(channel_send(rig.fd, &c, sizeof(c), "\xff\xff", 2, NULL, 0), 0);
	ck_assert(rig_receive(&rig, &a));
	ck_assert_uint_eq(a.status, ST_INVALID_ARGUMENT);
	end();
}
END_TEST

static bool slot_is_zero(uint32_t slot)
{
	const unsigned char *p = rig_data(&rig, SEG_SLOT, slot);
	for (size_t i = 0; i < rig.plan->slot_bytes; i++)
		if (p[i])
			return false;
	return true;
}

START_TEST(zero_after_leaves_a_zero_slot)
{
	struct rig_config config = rig_small();
	config.reject_nonfinite = true;
	begin(config);
	struct engine_command c = rig_add_command(&rig, 0, 0, 1), bad = rig_add_command(&rig, 1, 0, 1);
	c.zero_after = bad.zero_after = 1;
	fill_all(1, true);
	rig_set_gradient(&rig, c.slot, 0, 0, 5);
	rig_set_gradient(&rig, bad.slot, 0, 0, NAN);
	ck_assert_uint_eq(rig_call(&rig, c).result, COUNTED);
	ck_assert(slot_is_zero(c.slot));
	ck_assert(!slot_is_zero(bad.slot));
	ck_assert_uint_eq(rig_call(&rig, bad).result, VOID);
	ck_assert(slot_is_zero(bad.slot));
	ck_assert_double_eq(rig_sum(&rig, 1, 0, 0), 5);
	ck_assert_uint_eq(rig_add(&rig, 0, 1, 1).result, COUNTED);
	ck_assert(!slot_is_zero(1));
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.n_zero, 0);
	end();
}
END_TEST

/* The engine died between the flip and the answer: its successor zeroes, and not what has been answered. */
START_TEST(a_successor_zeroes_what_the_record_names)
{
	begin(rig_small());
	fill_all(1, true);
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, COUNTED);
	rig_kill(&rig);
	rig_read(&rig);
	rig.state.r.n_zero = 2;
	rig.state.r.zero_slot[0] = 0;
	rig.state.r.zero_slot[1] = 3;
	control_page_publish(&rig.page, &rig.state);
	rig_start(&rig);
	ck_assert(slot_is_zero(0) && slot_is_zero(3));
	ck_assert(!slot_is_zero(1) && !slot_is_zero(2));
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.n_zero, 0);
	end();
}
END_TEST

START_TEST(non_finite_micro_batches_become_void)
{
	struct rig_config config = rig_small();
	config.reject_nonfinite = true;
	config.ranks = 4;
	config.micro_size = 1;
	begin(config);
	struct engine_answer a;
	fill_all(2, true);
	rig_set_gradient(&rig, 1, 3, 7, INFINITY);
	rig_set_gradient(&rig, 1, 5, 7, NAN);
	rig_set_gradient(&rig, 3, 1, 7, -INFINITY);
	/* the last in canonical order first, so that all four are in one pass */
	for (uint32_t i = 4; i-- > 0;)
		rig_send(&rig, rig_add_command(&rig, i, 0, 1 + i));
	uint32_t voids = 0;
	for (uint32_t i = 0; i < 4; i++) {
		ck_assert(rig_receive(&rig, &a));
		bool bad = a.rank == 1 || a.rank == 3;
		ck_assert_uint_eq(a.status, ST_OK);
		ck_assert_uint_eq(a.result, bad ? VOID : COUNTED);
		ck_assert_uint_eq(a.nonfinite_count, a.rank == 1 ? 2 : a.rank == 3);
		ck_assert_uint_eq(a.counted, !bad);
		voids += bad;
	}
	ck_assert_uint_eq(voids, 2);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.count, 2);
	ck_assert_double_eq(rig.state.r.sum_weight, 4);
	ck_assert_uint_eq(rig.state.r.last_rank, 2);
	uint64_t wrong = 0;
	for (uint64_t i = 0; i < 3001; i++)
		wrong += rig_sum(&rig, rig.state.r.x, 3, i) != rig_gradient(&rig, 0, 3, i) + 3 * rig_gradient(&rig, 2, 3, i);
	ck_assert_uint_eq(wrong, 0);
	ck_assert_uint_eq(rig_add(&rig, 1, 0, 1).result, VOID);
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, DUPLICATE);
	a = rig_close_window(&rig);
	ck_assert_uint_eq(a.count, 2);
	ck_assert_uint_eq(rig_go(&rig, 1).nonfinite, 0);
	end();
}
END_TEST

START_TEST(a_window_of_void_pushes_stays_empty)
{
	struct rig_config config = rig_small();
	config.reject_nonfinite = true;
	config.ranks = 1;
	config.micro_size = 1;
	begin(config);
	rig_zero_params(&rig);
	rig_set_gradient(&rig, 0, 0, 0, NAN);
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, VOID);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.filled, 0);
	ck_assert_uint_eq(rig.state.r.x, 0);
	struct engine_answer a = rig_close_window(&rig);
	ck_assert_uint_eq(a.count, 0);
	ck_assert_uint_eq(a.last_rank, UINT32_MAX);
	a = rig_go(&rig, 1);
	ck_assert_double_eq(a.sumsq, 0);
	ck_assert_uint_eq(rig_call(&rig, rig_commit_command(&rig, APPLIED, 1, 1)).status, ST_INVALID_ARGUMENT);
	ck_assert_uint_eq(rig_call(&rig, rig_commit_command(&rig, EMPTY, 0, 0)).status, ST_OK);
	end();
}
END_TEST

START_TEST(without_rejection_non_finite_values_show_in_the_vote)
{
	struct rig_config config = rig_small();
	config.ranks = config.micro_size = 1;
	begin(config);
	rig_set_gradient(&rig, 0, 0, 0, NAN);
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, COUNTED);
	rig_close_window(&rig);
	ck_assert_uint_eq(rig_go(&rig, 1).nonfinite, 1);
	end();
}
END_TEST

START_TEST(attach_fences_older_sessions)
{
	struct engine_answer a;
	begin(rig_small());
	uint64_t waits = rig_send(&rig, rig_add_command(&rig, 1, 0, 1));
	struct engine_command attach = { .op = ENGINE_ATTACH, .rank = 1, .sgen = 5 };
	memset(attach.session.token, 0xab, sizeof(attach.session.token));
	uint64_t id = rig_send(&rig, attach);
	ck_assert(rig_receive(&rig, &a));
	ck_assert_uint_eq(a.id, waits);
	ck_assert_uint_eq(a.status, ST_SESSION_FENCED);
	ck_assert(rig_receive(&rig, &a));
	ck_assert_uint_eq(a.id, id);
	ck_assert_uint_eq(a.status, ST_OK);
	ck_assert_uint_eq(rig_add(&rig, 1, 0, 1).status, ST_SESSION_FENCED);
	attach.sgen = 4;
	ck_assert_uint_eq(rig_call(&rig, attach).status, ST_SESSION_FENCED);
	rig_kill(&rig);
	rig_start(&rig);
	ck_assert_uint_eq(rig_add(&rig, 1, 0, 1).status, ST_SESSION_FENCED);
	attach.sgen = 5;
	ck_assert_uint_eq(rig_call(&rig, attach).status, ST_OK);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.rank[1].sgen, 5);
	ck_assert_uint_eq(rig.state.rank[1].session.token[15], 0xab);
	end();
}
END_TEST

START_TEST(flush_is_durable_and_completes_the_window)
{
	struct engine_answer a;
	begin(rig_small());
	fill_all(1, true);
	uint64_t waits = rig_send(&rig, rig_add_command(&rig, 1, 1, 1)); /* its turn has not come */
	uint64_t id = rig_send(&rig, (struct engine_command){ .op = ENGINE_FLUSH, .rank = 1, .sgen = 1 });
	ck_assert(rig_receive(&rig, &a));
	ck_assert_uint_eq(a.id, waits);
	ck_assert_uint_eq(a.status, ST_FLUSHED);
	ck_assert(rig_receive(&rig, &a));
	ck_assert_uint_eq(a.id, id);
	ck_assert_uint_eq(a.status, ST_OK);
	ck_assert_uint_eq(rig_add(&rig, 1, 0, 1).status, ST_FLUSHED);
	rig_kill(&rig);
	rig_start(&rig);
	ck_assert_uint_eq(rig_add(&rig, 1, 0, 1).status, ST_FLUSHED);
	ck_assert_uint_eq(rig_flush(&rig, 1, false).status, ST_OK);
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, COUNTED);
	ck_assert_uint_eq(rig_add(&rig, 0, 1, 2).result, COUNTED); /* waits for nobody */
	rig_step(&rig, SKIPPED, 0, 0);
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, COUNTED);
	ck_assert_uint_eq(rig_add(&rig, 1, 0, 1).result, COUNTED); /* a flush is of one window */
	ck_assert_uint_eq(rig_call(&rig, (struct engine_command){ .op = ENGINE_FLUSH, .rank = 1, .sgen = 1 }).status,
			  ST_WINDOW_CLOSED);
	end();
}
END_TEST

START_TEST(a_push_whose_turn_it_is_counts_before_flush_and_close)
{
	struct engine_answer a;
	begin(rig_small());
	rig_send(&rig, rig_add_command(&rig, 0, 0, 1));
	rig_send(&rig, (struct engine_command){ .op = ENGINE_FLUSH, .rank = 0, .sgen = 1 });
	rig_send(&rig, rig_add_command(&rig, 1, 0, 1));
	uint64_t waits = rig_send(&rig, rig_add_command(&rig, 1, 1, 1));
	rig_send(&rig, (struct engine_command){ .op = ENGINE_CLOSE });
	ck_assert(rig_receive(&rig, &a));
	ck_assert(a.op == ENGINE_ADD && a.result == COUNTED);
	ck_assert(rig_receive(&rig, &a));
	ck_assert(a.op == ENGINE_FLUSH && a.status == ST_OK && a.counted == 1);
	for (int i = 0; i < 2; i++) {
		ck_assert(rig_receive(&rig, &a));
		ck_assert(a.op == ENGINE_ADD && a.result == COUNTED && a.rank == 1);
	}
	ck_assert_uint_eq(a.id, waits);
	ck_assert(rig_receive(&rig, &a));
	ck_assert(a.op == ENGINE_CLOSE && a.status == ST_OK && a.count == 3);
	end();
}
END_TEST

START_TEST(who_has_left_is_not_waited_for_until_it_comes_back)
{
	begin(rig_small());
	rig_zero_params(&rig);
	ck_assert_uint_eq(rig_flush(&rig, 1, true).status, ST_OK);
	ck_assert_uint_eq(rig_flush(&rig, 1, false).status, ST_OK); /* still gone for good */
	for (int w = 0; w < 2; w++) {
		ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, COUNTED);
		ck_assert_uint_eq(rig_add(&rig, 0, 1, 1).result, COUNTED);
		rig_step(&rig, APPLIED, 1, 1);
	}
	ck_assert_uint_eq(rig_call(&rig, (struct engine_command){ .op = ENGINE_ATTACH, .rank = 1, .sgen = 2 }).status,
			  ST_OK);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.rank[1].flushed, 1);
	struct engine_command c = rig_add_command(&rig, 1, 0, 1);
	c.sgen = 2;
	ck_assert_uint_eq(rig_call(&rig, c).status, ST_FLUSHED); /* from the next window on */
	rig_close_window(&rig);
	c = (struct engine_command){ .op = ENGINE_FLUSH, .rank = 0, .sgen = 1, .window = rig.window };
	ck_assert_uint_eq(rig_call(&rig, c).status, ST_WINDOW_CLOSED);
	c.leave = 1;
	ck_assert_uint_eq(rig_call(&rig, c).status, ST_OK); /* of a frozen window: holds from the next one on */
	rig_step(&rig, EMPTY, 0, 0);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.rank[0].flushed, 2);
	ck_assert_uint_eq(rig.state.rank[1].flushed, 0);
	end();
}
END_TEST

START_TEST(close_freezes_and_go_repeats)
{
	struct engine_answer a, b;
	begin(rig_small());
	fill_all(1, true);
	rig_add(&rig, 0, 0, 1);
	uint64_t waits = rig_send(&rig, rig_add_command(&rig, 0, 1, 1));
	uint64_t id = rig_send(&rig, (struct engine_command){ .op = ENGINE_CLOSE });
	ck_assert(rig_receive(&rig, &a));
	ck_assert_uint_eq(a.id, waits);
	ck_assert_uint_eq(a.status, ST_WINDOW_CLOSED);
	ck_assert(rig_receive(&rig, &a));
	ck_assert_uint_eq(a.id, id);
	ck_assert_uint_eq(rig_add(&rig, 1, 0, 1).status, ST_WINDOW_CLOSED);
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, DUPLICATE);
	b = rig_close_window(&rig);
	ck_assert_uint_eq(b.count, a.count);
	a = rig_go(&rig, 2);
	ck_assert_uint_eq(rig_go(&rig, 1).status, ST_STALE_ATTEMPT);
	b = rig_go(&rig, 2);
	ck_assert_double_eq(a.sumsq, b.sumsq);
	ck_assert_uint_eq(a.digest, b.digest);
	b = rig_go(&rig, 3);
	ck_assert_uint_eq(b.status, ST_OK);
	ck_assert_uint_eq(a.digest, b.digest);
	ck_assert_uint_eq(rig_close_window(&rig).status, ST_OK);
	ck_assert_uint_eq(rig_call(&rig, (struct engine_command){ .op = ENGINE_GO, .term = 2, .attempt = 1 }).status, ST_OK);
	ck_assert_uint_eq(rig_go(&rig, 9).status, ST_STALE_TERM);
	rig_kill(&rig);
	rig_start(&rig);
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.phase, WINDOW_PREPARED); /* a vote survives the voter */
	ck_assert_uint_eq(rig.state.r.prepared_attempt, 1);
	struct engine_command c = rig_commit_command(&rig, SKIPPED, 0, 0);
	ck_assert_uint_eq(rig_call(&rig, c).status, ST_STALE_ATTEMPT);
	c.term = 2;
	ck_assert_uint_eq(rig_call(&rig, c).status, ST_OK);
	end();
}
END_TEST

START_TEST(a_commit_is_checked_and_done_once)
{
	begin(rig_small());
	fill_all(3, true);
	add_all(NULL);
	struct engine_command good = rig_commit_command(&rig, APPLIED, 1, 1), c;
	ck_assert_uint_eq(rig_call(&rig, good).status, ST_NOT_READY); /* no vote */
	rig_close_window(&rig);
	rig_go(&rig, 1);
	ck_assert_uint_eq(rig_call(&rig, good).status, ST_NOT_READY); /* no parameters */
	rig_zero_params(&rig);
	REFUSED(c.outcome = 0, INVALID_ARGUMENT);
	REFUSED(c.outcome = 5, INVALID_ARGUMENT);
	REFUSED(c.next_micro_size = 0, INVALID_ARGUMENT);
	REFUSED(c.next_micro_size = 6, INVALID_ARGUMENT);
	REFUSED(c.applied_step = 0, INVALID_ARGUMENT);
	REFUSED(c.applied_step = 2, INVALID_ARGUMENT);
	REFUSED(c.scale = NAN, INVALID_ARGUMENT);
	REFUSED(c.clip_value = -1, INVALID_ARGUMENT);
	REFUSED(c.next_loss_scale = 0, INVALID_ARGUMENT);
	REFUSED(c.attempt = 2, STALE_ATTEMPT);
	REFUSED(c.window = 1, NOT_CURRENT_WINDOW);
	good.next_micro_size = 3;
	good.next_loss_scale = 8;
	struct engine_answer a = rig_call(&rig, good), b = rig_call(&rig, good);
	ck_assert_uint_eq(a.status, ST_OK);
	ck_assert_uint_eq(b.status, ST_OK);
	ck_assert_uint_ne(a.digest, 0);
	ck_assert_uint_eq(a.digest, b.digest);
	REFUSED(c.attempt = 2, WINDOW_CLOSED); /* another attempt than the committed one */
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.window, 1);
	ck_assert_uint_eq(rig.state.r.applied_step, 1);
	ck_assert_uint_eq(rig.state.r.micro_size, 3);
	ck_assert_double_eq(rig.state.r.loss_scale, 8);
	ck_assert_uint_eq(rig.state.r.count, 0);
	ck_assert_uint_eq(rig.state.rank[0].counted, 0);
	struct status_page *page = rig_data(&rig, SEG_STATUS, 0);
	ck_assert_uint_eq(page->seq, 2);
	ck_assert_uint_eq(page->window, 1);
	ck_assert_uint_eq(page->applied_step, 1);
	ck_assert_uint_eq(page->micro_size, 3);
	uint64_t wrong = 0;
	for (uint64_t i = 0; i < 9999; i++) {
		double want = 0;
		for (uint32_t s = 0; s < 4; s++)
			want -= (1 + s) * rig_gradient(&rig, s, 5, i);
		wrong += rig_param(&rig, 5, i) != want;
	}
	ck_assert_uint_eq(wrong, 0);
	struct engine_command late = rig_add_command(&rig, 1, 1, 1);
	late.window = 0;
	ck_assert_uint_eq(rig_call(&rig, late).result, ALREADY_COMMITTED);
	end();
}
END_TEST

START_TEST(late_pushes_learn_whether_they_count)
{
	begin(rig_small());
	rig_zero_params(&rig);
	fill_all(3, true);
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, COUNTED);
	rig_flush(&rig, 0, false);
	rig_flush(&rig, 1, false);
	rig_step(&rig, APPLIED, 1, 1);
	struct engine_command in = rig_add_command(&rig, 0, 0, 1), out = rig_add_command(&rig, 1, 0, 1);
	in.window = out.window = 0;
	ck_assert_uint_eq(rig_call(&rig, in).result, ALREADY_COMMITTED);
	ck_assert_uint_eq(rig_call(&rig, out).status, ST_WINDOW_CLOSED);
	rig_kill(&rig);
	rig_start(&rig);
	ck_assert_uint_eq(rig_call(&rig, in).result, ALREADY_COMMITTED);
	end();
}
END_TEST

/* Three steps of each optimizer against its kernel over the whole arena; skipped windows leave everything as it was. */
START_TEST(steps_are_those_of_the_optimizer)
{
	static const struct optim_config optims[] = {
		{ .type = OPTIM_SGD, .lr = 0.5, .momentum = 0.9 },
		{ .type = OPTIM_ADAM, .lr = 0.5, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1 },
		{ .type = OPTIM_ADAMW, .lr = 0.5, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1 },
	};
	struct rig_config c = _i / 3 ? rig_large() : rig_small();
	c.optim = optims[_i % 3];
	c.init = (struct init_rule){ INIT_NORMAL, 0, 1 };
	begin(c);
	ck_assert_uint_eq(rig_call(&rig, (struct engine_command){ .op = ENGINE_INIT_PARAMS }).status, ST_OK);
	uint64_t n = rig.arena.group[0].count;
	size_t bytes = n * sizeof(float);
	float *p = aligned_alloc(64, bytes), *m = aligned_alloc(64, bytes), *v = aligned_alloc(64, bytes);
	memcpy(p, rig_data(&rig, SEG_PARAMS, 0), bytes);
	memset(m, 0, bytes);
	memset(v, 0, bytes);
	const struct optim_group group = { 1, c.optim.weight_decay, false };
	for (int step = 1; step <= 3; step++) {
		fill_all((uint64_t)step, false);
		add_all(NULL);
		rig_read(&rig);
		const void *sum = rig_data(&rig, SEG_ACCUM0 + rig.state.r.x, 0);
		struct kernel_params k = { .p = p, .m = m, .v = c.optim.type == OPTIM_SGD ? NULL : v };
		struct kernel_update u;
		optim_step(&c.optim, &group, (uint64_t)step, 0.5 / step, 0.25, 0, &u);
		optim_apply(kernels_get(NULL), &c.optim, &k, sum, DTYPE_F32, n, &u, NULL);
		rig_step(&rig, APPLIED, 0.25, 0.5 / step);
		ck_assert_mem_eq(rig_data(&rig, SEG_PARAMS, 0), p, bytes);
		add_all(NULL);
		uint64_t digest = rig_step(&rig, SKIPPED, 0.25, 1).digest;
		ck_assert_mem_eq(rig_data(&rig, SEG_PARAMS, 0), p, bytes);
		rig_read(&rig);
		ck_assert_uint_eq(rig.state.r.params_digest, digest);
		ck_assert_uint_eq(rig.state.r.applied_step, (uint64_t)step);
	}
	free(p);
	free(m);
	free(v);
	end();
}
END_TEST

/* Optimizer CLIENT: the reduced gradient stays put in P[1-x] until it is acknowledged. */
START_TEST(client_gradients_stay_until_acknowledged)
{
	struct rig_config c = rig_small();
	struct engine_answer a;
	c.optim = (struct optim_config){ .type = OPTIM_CLIENT, .lr = 1 };
	c.ranks = 1;
	begin(c);
	for (uint64_t w = 0; w < 4; w++) {
		fill_all(w + 1, true);
		add_all(NULL);
		ck_assert_uint_eq(rig_close_window(&rig).status, ST_OK);
		ck_assert_uint_eq(rig_go(&rig, 1).status, ST_OK);
		struct engine_command commit = rig_commit_command(&rig, APPLIED, 0.5, 1);
		a = rig_call(&rig, commit);
		ck_assert_uint_eq(a.status, ST_OK);
		rig.window++;
		rig.applied_step++;
		uint32_t half = 1 - a.x;
		double want[2], *sum = want;
		for (uint32_t s = 0; s < 2; s++)
			sum[s] = rig_gradient(&rig, s, 3, 77);
		double reduced = 0.5 * (want[0] + 2 * want[1]);
		ck_assert_double_eq(rig_sum(&rig, half, 3, 77), reduced);
		void *kept = malloc(rig_bytes(&rig, SEG_ACCUM0, 0));
		memcpy(kept, rig_data(&rig, SEG_ACCUM0 + half, 0), rig_bytes(&rig, SEG_ACCUM0, 0));
		/* the next window's first push is added, the second waits */
		fill_all(w + 50, true);
		ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, COUNTED);
		uint64_t second = rig_send(&rig, rig_add_command(&rig, 0, 1, 2));
		ck_assert_uint_eq(rig_call(&rig, (struct engine_command){ .op = ENGINE_ATTACH, .sgen = 1 }).status, ST_OK);
		ck_assert_mem_eq(rig_data(&rig, SEG_ACCUM0 + half, 0), kept, rig_bytes(&rig, SEG_ACCUM0, 0));
		rig_read(&rig);
		ck_assert_uint_eq(rig.state.r.client_pending, 1);
		ck_assert_uint_eq(rig.state.r.client_window, rig.window - 1);
		ck_assert_uint_eq(1 - rig.state.r.x, half);
		if (w) /* an acknowledgement of the step before changes nothing */
			ck_assert_uint_eq(rig_call(&rig, (struct engine_command){ .op = ENGINE_ACK_STEP,
										  .window = rig.window - 3 }).status, ST_OK);
		rig_send(&rig, (struct engine_command){ .op = ENGINE_ACK_STEP, .window = rig.window - 1 });
		ck_assert(rig_receive(&rig, &a) && a.op == ENGINE_ACK_STEP && a.status == ST_OK);
		ck_assert(rig_receive(&rig, &a) && a.id == second && a.result == COUNTED);
		rig_read(&rig);
		ck_assert_double_eq(rig_sum(&rig, rig.state.r.x, 3, 77),
				    rig_gradient(&rig, 0, 3, 77) + 2 * rig_gradient(&rig, 1, 3, 77));
		rig_step(&rig, DROPPED, 0, 0);
		free(kept);
	}
	end();
}
END_TEST

START_TEST(a_client_commit_waits_for_the_last_acknowledgement)
{
	struct rig_config c = rig_small();
	c.optim = (struct optim_config){ .type = OPTIM_CLIENT, .lr = 1 };
	c.ranks = c.micro_size = 1;
	begin(c);
	rig_add(&rig, 0, 0, 1);
	rig_step(&rig, APPLIED, 1, 1);
	rig_add(&rig, 0, 0, 1);
	rig_close_window(&rig);
	rig_go(&rig, 1);
	ck_assert_uint_eq(rig_call(&rig, rig_commit_command(&rig, APPLIED, 1, 1)).status, ST_NOT_READY);
	rig_kill(&rig);
	rig_start(&rig);
	ck_assert_uint_eq(rig_call(&rig, rig_commit_command(&rig, APPLIED, 1, 1)).status, ST_NOT_READY);
	ck_assert_uint_eq(rig_call(&rig, (struct engine_command){ .op = ENGINE_ACK_STEP, .window = 0 }).status, ST_OK);
	ck_assert_uint_eq(rig_call(&rig, rig_commit_command(&rig, APPLIED, 1, 1)).status, ST_OK);
	end();
}
END_TEST

/* Uploads in odd pieces, out of order and twice; masters follow. */
START_TEST(parameters_are_uploaded_through_slots)
{
	struct rig_config c = _i ? rig_large() : rig_small();
	c.no_master = _i == 2;
	c.grad_dtype = DTYPE_F32; /* slots larger than the parameters */
	begin(c);
	uint64_t n = rig.plan->param_bytes, piece = n / 7 + 3;
	unsigned char *want = malloc(n);
	for (uint64_t i = 0; i < n; i++)
		want[i] = (unsigned char)(rig_mix(i) & 0x3f); /* no NaN in any dtype */
	struct engine_answer a;
	for (int k = 7; k-- > 0;) {
		uint64_t at = (uint64_t)k * piece, bytes = at + piece < n ? piece : n - at;
		memcpy(rig_data(&rig, SEG_SLOT, 1), want + at, bytes);
		struct engine_command put = { .op = ENGINE_PUT_PARAMS, .slot = 1, .offset = at, .bytes = bytes,
					      .last = k == 0 };
		a = rig_call(&rig, put);
		ck_assert_uint_eq(a.status, ST_OK);
		ck_assert_uint_eq(a.result, 0);
	}
	ck_assert_mem_eq(rig_data(&rig, SEG_PARAMS, 0), want, n);
	ck_assert_uint_ne(a.digest, 0);
	for (int g = 0; !c.no_master && g < rig.arena.n_groups; g++) {
		const struct arena_group *group = &rig.arena.group[g];
		if (group->param_dtype == DTYPE_F32)
			continue;
		float *f = aligned_alloc(64, group->count * sizeof(float));
		kernels_get("reference")->to_f32(f, want + group->param_offset, group->param_dtype, group->count);
		ck_assert_mem_eq((float *)rig_data(&rig, SEG_MASTER, 0) + group->start, f, group->count * sizeof(float));
		free(f);
	}
	memset(rig_data(&rig, SEG_SLOT, 1), 0, 100);
	a = rig_call(&rig, (struct engine_command){ .op = ENGINE_PUT_PARAMS, .slot = 1, .bytes = 100 });
	ck_assert_uint_eq(a.status, ST_OK);
	ck_assert_uint_eq(a.result, 1); /* too late: they are ready */
	ck_assert_mem_eq(rig_data(&rig, SEG_PARAMS, 0), want, n);
	rig_kill(&rig);
	rig_start(&rig);
	a = rig_call(&rig, (struct engine_command){ .op = ENGINE_INIT_PARAMS });
	ck_assert_uint_eq(a.result, 1);
	free(want);
	end();
}
END_TEST

START_TEST(parameters_are_drawn)
{
	struct rig_config c = rig_small();
	c.init = (struct init_rule){ INIT_UNIFORM, -1, 1 };
	c.no_master = _i;
	begin(c);
	struct engine_answer a = rig_call(&rig, (struct engine_command){ .op = ENGINE_INIT_PARAMS });
	ck_assert_uint_eq(a.status, ST_OK);
	ck_assert_uint_eq(a.result, 0);
	const struct plan_tensor *t = plan_tensors(rig.plan);
	for (int i = 0; i < c.n_tensors; i++) {
		float *want = malloc(t[i].count * sizeof(float)), rounded;
		uint64_t wrong = 0, source = t[i].alias < 0 ? (uint64_t)i : (uint64_t)t[i].alias;
		init_fill(want, 0, t[i].count, &c.init, t[i].fan_in, t[i].fan_out, rig.plan->seed, t[source].key);
		enum dtype d = rig.arena.group[t[i].dtype_group].param_dtype;
		for (uint64_t k = 0; k < t[i].count; k++) {
			rounded = want[k];
			if (d != DTYPE_F32) {
				uint16_t bits;
				kernels_get("reference")->from_f32(&bits, d, &want[k], 1);
				kernels_get("reference")->to_f32(&rounded, &bits, d, 1);
				if (!c.no_master)
					wrong += ((float *)rig_data(&rig, SEG_MASTER, 0))[t[i].start + k] != want[k];
			}
			wrong += rig_param(&rig, i, k) != rounded;
		}
		ck_assert_uint_eq(wrong, 0);
		free(want);
	}
	rig_read(&rig);
	ck_assert_uint_eq(rig.state.r.params_ready, 1);
	end();
}
END_TEST

int main(void)
{
	Suite *s = suite_create("engine");
	TCase *t = tcase_create("life");
	tcase_add_test(t, a_new_engine_says_hello_and_ends_with_its_socket);
	tcase_add_test(t, stop_answers_what_is_queued);
	tcase_add_loop_test(t, damaged_or_foreign_segments_are_refused, 0, 6);
	tcase_add_test(t, a_second_engine_waits_for_the_first);
	tcase_add_test(t, more_descriptors_than_a_packet_carries);
	tcase_add_test(t, only_commands_that_make_sense_are_obeyed);
	tcase_add_test(t, a_short_packet_ends_the_engine);
	suite_add_tcase(s, t);
	t = tcase_create("window");
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, sums_are_exact, 0, 32);
	tcase_add_test(t, order_of_arrival_does_not_change_a_bit);
	tcase_add_test(t, present_bitmaps_arrive_with_the_push);
	tcase_add_test(t, zero_after_leaves_a_zero_slot);
	tcase_add_test(t, a_successor_zeroes_what_the_record_names);
	tcase_add_test(t, non_finite_micro_batches_become_void);
	tcase_add_test(t, a_window_of_void_pushes_stays_empty);
	tcase_add_test(t, without_rejection_non_finite_values_show_in_the_vote);
	tcase_add_test(t, attach_fences_older_sessions);
	tcase_add_test(t, flush_is_durable_and_completes_the_window);
	tcase_add_test(t, a_push_whose_turn_it_is_counts_before_flush_and_close);
	tcase_add_test(t, who_has_left_is_not_waited_for_until_it_comes_back);
	suite_add_tcase(s, t);
	t = tcase_create("step");
	tcase_set_timeout(t, 60);
	tcase_add_test(t, close_freezes_and_go_repeats);
	tcase_add_test(t, a_commit_is_checked_and_done_once);
	tcase_add_test(t, late_pushes_learn_whether_they_count);
	tcase_add_loop_test(t, steps_are_those_of_the_optimizer, 0, 6);
	tcase_add_test(t, client_gradients_stay_until_acknowledged);
	tcase_add_test(t, a_client_commit_waits_for_the_last_acknowledgement);
	tcase_add_loop_test(t, parameters_are_uploaded_through_slots, 0, 3);
	tcase_add_loop_test(t, parameters_are_drawn, 0, 2);
	suite_add_tcase(s, t);
	SRunner *r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
