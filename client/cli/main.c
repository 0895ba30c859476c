/* SPDX-License-Identifier: Apache-2.0 */
/* The main program of gaccctl: finds the command in the table, runs its handler, and makes a failed write to stdout
 * an error, except when the reader of a pipe has gone. One thread, except in `bench`. */
#include "commands.h"
#include "parse.h"
#include "ranks.h"

#include <poll.h>
#include <signal.h>
#include <string.h>

/* `gaccctl jobs | head`: nobody wants the rest, which is no news to anybody. */
static bool reader_has_gone(void)
{
	struct pollfd p = { .fd = fileno(stdout) };

	return poll(&p, 1, 0) == 1 && p.revents & POLLERR;
}

int main(int argc, char **argv)
{
	struct invocation inv = { .out = stdout, .err = stderr, .headers = true };
	int st;

	if (argc > 1 && !strcmp(argv[1], "--exec-rank"))
		return exec_rank(argc, argv);
	signal(SIGPIPE, SIG_IGN); /* the write fails, the program ends in order */
	st = parse(&gaccctl_commands, argc, argv, &inv);
	if (st < 0)
		st = inv.command->run(&inv);
	gacc_close(inv.client);
	if ((ferror(stdout) | fflush(stdout)) && !st) {
		if (!reader_has_gone())
			fputs("error: the answer could not be written\n", stderr);
		st = EXIT_FAILED;
	}
	return st;
}
