/* SPDX-License-Identifier: Apache-2.0 */
/* Mapping memory over an attach socket whose other end is this test. */
#include "map_rig.h"

#include "support/suite.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

START_TEST(maps_and_shares)
{
	struct map_daemon d;
	unsigned char byte;
	int before = map_open_fds();

	map_daemon_init(&d);
	ck_assert_int_eq(map_with(&d), ST_OK);
	ck_assert_uint_eq(d.asked_session, 42);
	for (int i = 0; i < 2; i++) {
		mapping_data(&map_job.memory.slot[i])[5] = (unsigned char)(10 + i);
		ck_assert_int_eq(pread(d.fds[i], &byte, 1, PAGE + 5), 1);
		ck_assert_uint_eq(byte, 10 + (unsigned)i);
	}
	byte = 99;
	ck_assert_int_eq(pwrite(d.fds[2], &byte, 1, PAGE), 1);
	ck_assert_uint_eq(mapping_data(&map_job.memory.params)[0], 99);
	ck_assert(!memory_hung_up(&map_job.memory));
	map_daemon_fini(&d);
	ck_assert(memory_hung_up(&map_job.memory));
	ck_assert_int_eq(map_open_fds(), before + 1); /* the socket alone */
}
END_TEST

/* Another daemon with other memory: the trainer's pointers and what it has written stay. */
START_TEST(remaps_in_place)
{
	struct map_daemon first, second;
	unsigned char *slot, byte = 7;
	const unsigned char *params;

	map_daemon_init(&first);
	ck_assert_int_eq(map_with(&first), ST_OK);
	slot = mapping_data(&map_job.memory.slot[0]);
	params = mapping_data(&map_job.memory.params);
	memset(slot, 0x5a, 2 * PAGE);
	map_daemon_fini(&first);
	map_daemon_init(&second);
	ck_assert_int_eq(pwrite(second.fds[2], &byte, 1, PAGE), 1);
	ck_assert_int_eq(map_with(&second), ST_OK);
	ck_assert_ptr_eq(mapping_data(&map_job.memory.slot[0]), slot);
	ck_assert_ptr_eq(mapping_data(&map_job.memory.params), params);
	ck_assert_uint_eq(params[0], 7);
	ck_assert_uint_eq(slot[2 * PAGE - 1], 0x5a);
	ck_assert_int_eq(pread(second.fds[0], &byte, 1, PAGE), 1);
	ck_assert_uint_eq(byte, 0x5a); /* the new daemon sees it */
	map_daemon_fini(&second);
}
END_TEST

/* The same memory again, as a daemon with a descriptor store offers it. */
START_TEST(keeps_the_same_memory)
{
	struct map_daemon d;
	unsigned char *slot;

	map_daemon_init(&d);
	ck_assert_int_eq(map_with(&d), ST_OK);
	slot = mapping_data(&map_job.memory.slot[1]);
	slot[0] = 3;
	pthread_join(d.thread, NULL);
	close(d.connection);
	close(d.listener);
	ck_assert_int_eq(map_with(&d), ST_OK);
	ck_assert_ptr_eq(mapping_data(&map_job.memory.slot[1]), slot);
	ck_assert_uint_eq(slot[0], 3);
	map_daemon_fini(&d);
}
END_TEST

enum change { LARGER_SLOT, LARGER_PARAMS, SMALLER_SLOT, OTHER_OFFSET, LARGER_STATUS, N_CHANGES };

static void resize(struct map_daemon *d, int i, size_t pages)
{
	close(d->fds[i]);
	d->fds[i] = map_memfd(pages * PAGE, true);
	d->segment[i].bytes = pages * PAGE;
}

/* Memory of another size does not fit where the old one was: what lies behind that is the trainer's. The status page
 * may lie anywhere. */
START_TEST(remaps_what_has_the_same_shape)
{
	struct map_daemon first, second;
	unsigned char *slot, was;

	map_daemon_init(&first);
	resize(&first, 1, 4);
	ck_assert_int_eq(map_with(&first), ST_OK);
	map_daemon_fini(&first);
	slot = mapping_data(&map_job.memory.slot[1]);
	slot[0] = was = 9;
	map_daemon_init(&second);
	resize(&second, 1, _i == LARGER_SLOT ? 6 : _i == SMALLER_SLOT ? 3 : 4);
	resize(&second, 2, _i == LARGER_PARAMS ? 5 : 3);
	resize(&second, 3, _i == LARGER_STATUS ? 5 : 3);
	second.segment[1].data_offset = _i == OTHER_OFFSET ? 2 * PAGE : PAGE;
	ck_assert_int_eq(map_with(&second), _i == LARGER_STATUS ? ST_OK : ST_LAYOUT_MISMATCH);
	ck_assert(mapping_data(&map_job.memory.slot[1]) == slot && slot[0] == was);
	ck_assert_uint_eq(map_job.memory.status.bytes, _i == LARGER_STATUS ? 5 * PAGE : 3 * PAGE);
	map_daemon_fini(&second);
}
END_TEST

enum lie { UNSEALED, SHORT_FILE, SMALL_SLOT, NO_PARAMS, TWICE, FD_MISSING, OFFSET_OUTSIDE, REFUSED, N_LIES };

static void tell_lie(struct map_daemon *d, enum lie lie)
{
	switch (lie) {
	case UNSEALED:
		close(d->fds[1]);
		d->fds[1] = map_memfd(3 * PAGE, false);
		break;
	case SHORT_FILE:
		d->segment[2].bytes = 4 * PAGE;
		break;
	case SMALL_SLOT:
		d->segment[1].bytes = 2 * PAGE;
		break;
	case NO_PARAMS:
		d->segment[2].kind = KIND(UNSPECIFIED);
		break;
	case TWICE:
		d->segment[1].index = 0;
		break;
	case FD_MISSING:
		d->n_fds = N_SEGMENTS - 1;
		break;
	case OFFSET_OUTSIDE:
		d->segment[0].data_offset = 5 * PAGE;
		break;
	default:
		d->reason = "SESSION_UNKNOWN";
	}
}

START_TEST(believes_no_lie)
{
	struct map_daemon d;
	int before = map_open_fds();
	enum status st;

	map_daemon_init(&d);
	tell_lie(&d, (enum lie)_i);
	st = map_with(&d);
	ck_assert_int_ne(st, ST_OK);
	if (_i == REFUSED)
		ck_assert_int_eq(st, ST_SESSION_UNKNOWN);
	ck_assert_ptr_null(map_job.memory.params.base);
	ck_assert_int_eq(map_job.memory.socket, -1);
	map_daemon_fini(&d);
	ck_assert_int_eq(map_open_fds(), before);
}
END_TEST

/* ---- the mailbox ---- */

START_TEST(a_mailbox_comes_along)
{
	struct map_daemon d;
	int before = map_open_fds();

	map_daemon_init(&d);
	map_add_mailbox(&d, 11);
	ck_assert_int_eq(map_with(&d), ST_OK);
	ck_assert(d.asked_mailbox && cells_usable(&map_job.memory.cells));
	ck_assert_uint_eq(map_job.memory.cells.sgen, 11);
	map_daemon_fini(&d);
	ck_assert_int_eq(map_open_fds(), before + 4); /* the socket, two bells and a timer */
	memory_unmap(&map_job.memory);
	ck_assert_int_eq(map_open_fds(), before);
}
END_TEST

START_TEST(the_next_session_has_another)
{
	struct map_daemon first, second;
	struct gacc_box_answer a;
	uint64_t seq;
	int before = map_open_fds();

	map_daemon_init(&first);
	map_add_mailbox(&first, 11);
	ck_assert_int_eq(map_with(&first), ST_OK);
	map_daemon_fini(&first);
	map_daemon_init(&second);
	map_add_mailbox(&second, 12);
	map_job.generation = 12;
	ck_assert_int_eq(map_with(&second), ST_OK);
	ck_assert(cells_usable(&map_job.memory.cells));
	ck_assert_uint_eq(map_job.memory.cells.sgen, 12);
	seq = cells_publish(&map_job.memory.cells, (struct gacc_box_request){ .kind = GACC_BOX_PUSH }, NULL);
	map_daemon_fini(&second);
	ck_assert_int_eq(map_open_fds(), before + 4);
	ck_assert(!cells_await(&map_job.memory.cells, seq, 20000, &a)); /* this socket's hang-up is watched */
}
END_TEST

/* gacc_ready_word's address and values stay. */
START_TEST(ready_words_move_to_the_next_session)
{
	struct map_daemon d[2];
	int before = map_open_fds();

	for (int i = 0; i < 2; i++) {
		map_daemon_init(&d[i]);
		map_add_mailbox(&d[i], 11 + (uint64_t)i);
		map_job.generation = 11 + (uint64_t)i;
		ck_assert_int_eq(map_with(&d[i]), ST_OK);
		map_daemon_fini(&d[i]);
		ck_assert_int_eq(words_open(&map_job.memory.words, &map_job.memory.cells), ST_OK);
		ck_assert(map_job.memory.words.sgen == map_job.generation &&
			  map_job.memory.words.page == 2 + (uint64_t)i);
		ck_assert_uint_eq(map_job.memory.cells.mem->ready[4].value, i ? 77 : 0);
		__atomic_store_n(&map_job.memory.words.at[4].value, 77, __ATOMIC_RELEASE);
	}
	memory_unmap(&map_job.memory);
	ck_assert_int_eq(map_open_fds(), before);
}
END_TEST

static void *fill_late(void *slot)
{
	sleep_ms(30);
	memset(slot, 6, PAGE);
	__atomic_store_n(&map_job.memory.words.at[4].value, 78, __ATOMIC_RELEASE);
	return NULL;
}

/* What another thread still writes to a slot is not lost when the next session has other memory. */
START_TEST(a_slot_moves_when_it_is_complete)
{
	struct map_daemon first, second;
	unsigned char *slot, full[PAGE];
	pthread_t thread;

	map_daemon_init(&first);
	ck_assert_int_eq(map_with(&first), ST_OK);
	map_daemon_fini(&first);
	ck_assert_int_eq(words_open(&map_job.memory.words, &map_job.memory.cells), ST_OK);
	slot = mapping_data(&map_job.memory.slot[1]);
	memset(full, 6, sizeof(full));
	map_daemon_init(&second);
	map_job.memory.late[1] = (struct late){ 5, 78, _i ? INT64_MAX : 0, 12, 3 };
	ck_assert_int_eq(pthread_create(&thread, NULL, fill_late, slot), 0);
	ck_assert_int_eq(map_with(&second), _i ? ST_OK : ST_STALLED);
	pthread_join(thread, NULL);
	if (!_i) {
		ck_assert_str_eq(map_failure.message, "slot 1, with micro-batch 3 of window 12, is still written to: "
						      "ready word 5 has not come to 78 in time");
		ck_assert(map_failure.is_final && *map_failure.hint);
	}
	ck_assert_ptr_eq(mapping_data(&map_job.memory.slot[1]), slot);
	ck_assert_mem_eq(slot, full, sizeof(full)); /* not in time: it is the old memory yet */
	map_daemon_fini(&second);
	memory_unmap(&map_job.memory);
}
END_TEST

/* gacc_detach has a limit for all words. */
START_TEST(no_slot_is_awaited_for_ever_by_detach)
{
	struct map_daemon first, second;
	int64_t start;

	map_daemon_init(&first);
	ck_assert_int_eq(map_with(&first), ST_OK);
	map_daemon_fini(&first);
	ck_assert_int_eq(words_open(&map_job.memory.words, &map_job.memory.cells), ST_OK);
	map_daemon_init(&second);
	map_job.memory.late[0] = (struct late){ .at = 1, .value = 1, .until = now_ms() + 20000 };
	start = now_ms();
	map_job.ready_by = start + 100; /* as gacc_detach does */
	ck_assert_int_eq(map_with(&second), ST_STALLED);
	ck_assert(now_ms() - start >= 100 && now_ms() - start < 10000);
	map_daemon_fini(&second);
}
END_TEST

START_TEST(the_next_session_has_none)
{
	struct map_daemon first, second;
	int before = map_open_fds();

	map_daemon_init(&first);
	map_add_mailbox(&first, 11);
	ck_assert_int_eq(map_with(&first), ST_OK);
	map_daemon_fini(&first);
	map_daemon_init(&second);
	ck_assert_int_eq(map_with(&second), ST_OK);
	ck_assert(!cells_usable(&map_job.memory.cells));
	map_daemon_fini(&second);
	ck_assert_int_eq(map_open_fds(), before + 1);
}
END_TEST

START_TEST(none_is_asked_for)
{
	const char *value[] = { "0", "", "1" };
	struct map_daemon d;

	setenv("GACC_MAILBOX", value[_i], 1);
	map_daemon_init(&d);
	ck_assert_int_eq(map_with(&d), ST_OK);
	ck_assert_int_eq(d.asked_mailbox, _i > 0);
	ck_assert(!map_job.memory.cells_told);
	map_daemon_fini(&d);
}
END_TEST

/* Something is wrong with it: one sentence, and the rest of the memory is mapped as ever. */
START_TEST(a_wrong_mailbox_is_left)
{
	struct map_daemon d;
	char said[256] = "";
	int before = map_open_fds(), to[2], stderr_was = dup(STDERR_FILENO);

	unsetenv("GACC_QUIET");
	ck_assert_int_eq(pipe2(to, O_CLOEXEC | O_NONBLOCK), 0);
	dup2(to[1], STDERR_FILENO);
	for (int i = 0; i < 2; i++) {
		map_daemon_init(&d);
		map_add_mailbox(&d, 11 + 1);
		if (_i == 1)
			d.segment[N_SEGMENTS + 1].kind = KIND(ANSWER); /* two of a kind */
		ck_assert_int_eq(map_with(&d), ST_OK);
		ck_assert(map_job.memory.params.base && map_job.memory.socket >= 0);
		ck_assert(!cells_usable(&map_job.memory.cells));
		map_daemon_fini(&d);
	}
	dup2(stderr_was, STDERR_FILENO);
	ck_assert_int_gt(read(to[0], said, sizeof(said) - 1), 0);
	ck_assert_ptr_nonnull(strstr(said, "rank 3: pushes go by RPC"));
	ck_assert_ptr_null(strstr(strchr(said, '\n') + 1, "gacc")); /* once */
	close(stderr_was);
	close(to[0]);
	close(to[1]);
	ck_assert_int_eq(map_open_fds(), before + 1);
}
END_TEST

START_TEST(nobody_listens)
{
	struct rpc_failure f = { 0 };

	ck_assert_int_eq(memory_map(&map_job.memory, &map_job, &f), ST_UNAVAILABLE);
	ck_assert_ptr_nonnull(strstr(f.message, "No such file"));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client map");
	TCase *tc = tcase_create("all");

	tcase_add_checked_fixture(tc, map_setup, map_teardown);
	tcase_add_test(tc, maps_and_shares);
	tcase_add_test(tc, remaps_in_place);
	tcase_add_loop_test(tc, remaps_what_has_the_same_shape, 0, N_CHANGES);
	tcase_add_test(tc, keeps_the_same_memory);
	tcase_add_loop_test(tc, believes_no_lie, 0, N_LIES);
	tcase_add_test(tc, a_mailbox_comes_along);
	tcase_add_test(tc, the_next_session_has_another);
	tcase_add_test(tc, the_next_session_has_none);
	tcase_add_loop_test(tc, a_slot_moves_when_it_is_complete, 0, 2);
	tcase_add_test(tc, no_slot_is_awaited_for_ever_by_detach);
	tcase_add_test(tc, ready_words_move_to_the_next_session);
	tcase_add_loop_test(tc, none_is_asked_for, 0, 3);
	tcase_add_loop_test(tc, a_wrong_mailbox_is_left, 0, 2);
	tcase_add_test(tc, nobody_listens);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
