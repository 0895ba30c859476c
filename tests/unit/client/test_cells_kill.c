/* SPDX-License-Identifier: Apache-2.0 */
/* Deaths of a trainer between the stores of a request, at the library's failpoints. What it leaves counts once or not
 * at all, and its successor goes on with the same mailbox. What other stores leave behind: engine/test_box_hostile.c.
 */
#include "lib/cells.h"

#include "lib/clock.h"
#include "proto/failpoint.h"
#include "support/box.h"
#include "support/scratch.h"
#include "support/suite.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define TENSORS 70
#define MICRO 4
#define LONG_MS 20000

static const unsigned char bits[(TENSORS + 7) / 8] = { 1, 2, 3, 4, 5, 6, 7, 8, 0x3f };

static char dir[SCRATCH_PATH], path[SCRATCH_PATH + 16], said[32768];
static struct box_world world;

static void arm(const char *point)
{
	char command[128];

	ck_assert(scratch_make(dir));
	snprintf(path, sizeof(path), "%s/failpoints", dir);
	unsetenv("GACC_FAILPOINTS_FILE");
	ck_assert_int_eq(failpoint_make(dir), ST_OK);
	snprintf(command, sizeof(command), "arm %s crash skip 1 count 1", point);
	failpoint_command(command, said, sizeof(said));
	ck_assert_str_eq(said, "ok\n");
}

static struct gacc_box_request push_of(uint32_t micro)
{
	return (struct gacc_box_request){
		.kind = GACC_BOX_PUSH, .micro = micro, .slot = micro % 2, .weight = 1, .n_present = sizeof(bits)
	};
}

static void open_cells(struct cells *c)
{
	struct cells_fds fds = { dup(world.fds[0].memory), dup(world.fds[0].submit), dup(world.fds[0].waits) };
	struct cells_owner o = { .job = 7, .sgen = 1, .rank = 0, .slots = world.slots, .n_tensors = TENSORS };
	char why[160] = "";
	int line[2]; /* the attach socket */

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line), 0);
	ck_assert_msg(cells_open(c, &fds, &o, line[0], why, sizeof(why)) == ST_OK, "%s", why);
}

/* Pushes until it dies. */
static _Noreturn void train(void)
{
	struct gacc_box_answer a;
	struct cells c;

	open_cells(&c);
	for (uint32_t m = 0; m < MICRO; m++)
		if (!cells_await(&c, cells_publish(&c, push_of(m), bits), LONG_MS, &a))
			break;
	_exit(1);
}

static void dies_at(const char *point)
{
	int status;
	pid_t trainer;

	arm(point);
	box_world_make(&world, 1, MICRO, TENSORS);
	pid_t server = box_spawn(&world);
	trainer = fork();
	if (trainer == 0)
		train();
	ck_assert_int_eq(waitpid(trainer, &status, 0), trainer);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	box_kill(server);
}

/* The second push was not there: it is no duplicate. */
START_TEST(half_a_request)
{
	struct gacc_box_answer a;
	struct cells c;

	dies_at("client_box_half");
	pid_t server = box_spawn(&world);
	open_cells(&c);
	ck_assert(cells_usable(&c));
	ck_assert(cells_await(&c, cells_publish(&c, push_of(1), bits), LONG_MS, &a));
	ck_assert(a.status == ST_OK && a.result == 1 && a.counted == 2);
	cells_close(&c);
	box_kill(server);
	box_world_free(&world);
	unlink(path);
}
END_TEST

/* It was there, without a bell: the next look finds it, and it counts once. */
START_TEST(a_request_without_its_bell)
{
	struct gacc_box_answer a;
	struct cells c;
	int64_t start = now_ms();

	dies_at("client_box_published");
	pid_t server = box_spawn(&world);
	open_cells(&c);
	while (!cells_usable(&c) && now_ms() < start + LONG_MS)
		sleep_ms(1);
	ck_assert(cells_usable(&c)); /* answered by the engine that has come */
	ck_assert(cells_await(&c, cells_publish(&c, push_of(1), bits), LONG_MS, &a));
	ck_assert(a.status == ST_OK && a.result == 2 && a.counted == 2);
	cells_close(&c);
	box_kill(server);
	box_world_free(&world);
	unlink(path);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client cells, deaths");
	TCase *tc = tcase_create("all");

	tcase_add_test(tc, half_a_request);
	tcase_add_test(tc, a_request_without_its_bell);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
