/* SPDX-License-Identifier: Apache-2.0 */
/* A mailbox for a trainer in another language.
 *
 *     box_server serve MICRO_SIZE TENSORS COMMAND...    serves the mailbox of a job of one rank while COMMAND runs,
 * which gets three more arguments: its descriptors of memory, submit bell and waits. Its exit code is that of COMMAND
 *     box_server layout TENSORS                         reads one request a line from stdin (cell kind flags window
 * micro slot weight loss data_key loss_scale ready_at ready_value lr present in hexadecimal, or -), writes each into
 * one mailbox, and prints the mailbox in hexadecimal
 */
#include "support/box.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_PRESENT 1024

static void pass_on(int fd, char *name, size_t n)
{
	snprintf(name, n, "%d", fd);
	fcntl(fd, F_SETFD, 0);
}

/* Runs argv with the descriptors behind it. */
static int serve(uint32_t micro_size, uint64_t n_tensors, char **argv, int argc)
{
	struct box_world w;
	char name[3][16];
	int ws;
	box_world_make(&w, 1, micro_size, n_tensors);
	pid_t server = box_spawn(&w);
	pid_t trainer = fork();
	if (trainer == 0) {
		char **all = calloc((size_t)argc + 4, sizeof(*all));
		const int fd[3] = { w.fds[0].memory, w.fds[0].submit, w.fds[0].waits };
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		memcpy(all, argv, (size_t)argc * sizeof(*all));
		for (int i = 0; i < 3; i++) {
			pass_on(fd[i], name[i], sizeof(name[i]));
			all[argc + i] = name[i];
		}
		execvp(all[0], all);
		perror(all[0]);
		_exit(127);
	}
	waitpid(trainer, &ws, 0);
	box_kill(server);
	return WIFEXITED(ws) ? WEXITSTATUS(ws) : 1;
}

static uint32_t from_hex(const char *text, unsigned char *out)
{
	uint32_t n = 0;
	unsigned byte;
	while (n < MAX_PRESENT && sscanf(text + 2 * n, "%2x", &byte) == 1)
		out[n++] = (unsigned char)byte;
	return n;
}

static int layout(uint64_t n_tensors)
{
	struct box_world w;
	struct box_trainer t;
	struct gacc_box_request q = { 0 };
	unsigned char present[MAX_PRESENT];
	char hex[2 * MAX_PRESENT + 1];
	uint32_t cell;
	box_world_make(&w, 1, 1, n_tensors);
	box_trainer_open(&t, &w.fds[0], n_tensors);
	while (scanf("%" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNu64 " %" SCNu32 " %" SCNu32 " %la %la %" SCNu64
		     " %la %" SCNu32 " %" SCNu64 " %la %2048s",
		     &cell, &q.kind, &q.flags, &q.window, &q.micro, &q.slot, &q.weight, &q.loss, &q.data_key,
		     &q.loss_scale, &q.ready_at, &q.ready_value, &q.lr, hex) == 14) {
		q.n_present = strcmp(hex, "-") == 0 ? 0 : from_hex(hex, present);
		box_publish(&t, cell, q, present);
	}
	for (size_t i = 0; i < gacc_box_bytes(n_tensors); i++)
		printf("%02x", ((unsigned char *)t.mem)[i]);
	printf("\n");
	return 0;
}

int main(int argc, char **argv)
{
	if (argc >= 5 && strcmp(argv[1], "serve") == 0)
		return serve((uint32_t)atoi(argv[2]), (uint64_t)atoll(argv[3]), argv + 4, argc - 4);
	if (argc == 3 && strcmp(argv[1], "layout") == 0)
		return layout((uint64_t)atoll(argv[2]));
	fprintf(stderr, "usage: %s serve MICRO_SIZE TENSORS COMMAND... | layout TENSORS\n", argv[0]);
	return 2;
}
