/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the seam share: a small job, its recorder, and the commands of a window. */
#include "seam.h"

#include <check.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct rig rig;
struct recorder rec;

struct rig_config seam_config(void)
{
	struct rig_config c = rig_small();
	c.optim = (struct optim_config){ .type = OPTIM_ADAMW, .lr = 1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8 };
	c.reject_nonfinite = true;
	return c;
}

void seam_attach(void)
{
	for (uint32_t rank = 0; rank < rig.config.ranks; rank++) {
		recorder_command(&rec, (struct engine_command){ .op = ENGINE_ATTACH, .rank = rank, .sgen = 1 }, NULL);
		ck_assert_uint_eq(recorder_answer(&rec).status, ST_OK);
	}
}

void seam_begin(struct rig_config c)
{
	rig_open(&rig, &c);
	rig_fill_all(&rig, 1, true);
	recorder_prepare(&rec);
	recorder_open(&rec, &rig);
	seam_attach();
	recorder_expect(&rec, "");
}

void seam_end(void)
{
	recorder_close(&rec);
	recorder_dismiss(&rec);
	rig_close(&rig);
}

/* Nothing but a push is there to be answered. */
void seam_push(uint32_t rank, uint32_t micro)
{
	recorder_command(&rec, rig_add_command(&rig, rank, micro, 1 + micro), NULL);
}

struct engine_answer seam_command(struct engine_command c)
{
	recorder_command(&rec, c, NULL);
	return recorder_answer(&rec);
}

struct engine_command seam_put(void)
{
	return (struct engine_command){
		.op = ENGINE_PUT_PARAMS, .sgen = 1, .slot = 2, .offset = 64, .bytes = 128, .last = 1
	};
}

struct engine_command seam_go(uint64_t attempt, bool norms)
{
	return (struct engine_command){
		.op = ENGINE_GO, .term = 1, .attempt = attempt, .close = 1, .want_norms = norms, .window = rig.window
	};
}

struct engine_command seam_commit(uint64_t attempt)
{
	struct engine_command c = rig_commit_command(&rig, APPLIED, 0.5, 0.25);
	c.attempt = attempt;
	return c;
}

void seam_drain(int answers)
{
	for (int i = 0; i < answers; i++)
		ck_assert_uint_eq(recorder_answer(&rec).status, ST_OK);
}

void seam_fill_window(void)
{
	for (uint32_t micro = 0; micro < 2; micro++) {
		seam_push(0, micro);
		seam_push(1, micro);
		push_pass(&rec.e);
	}
	seam_drain(4);
	rec.said[0] = '\0';
}

/* The exit code of an engine whose operation fails; it has said and published nothing since. */
int seam_run_to_failure(const char *op, void (*work)(const char *))
{
	struct engine_answer a;
	int status;
	recorder_prepare(&rec);
	rec.fail = op;
	pid_t pid = fork();
	if (pid == 0) {
		recorder_open(&rec, &rig);
		work(op);
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(WIFEXITED(status), "%s: signal %d", op, WTERMSIG(status));
	ck_assert_int_lt(packet_recv(rec.peer, &a, sizeof(a), NULL, NULL), 0);
	rig_read(&rig);
	ck_assert_uint_ne(*rec.failed_at, 0);
	ck_assert_uint_eq(rig.state.r.seq, *rec.failed_at);
	recorder_dismiss(&rec);
	return WEXITSTATUS(status);
}
