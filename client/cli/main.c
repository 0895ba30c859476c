#include <signal.h>
#include <string.h>

#include "command.h"
#include "ranks.h"

int main(int argc, char **argv)
{
	struct invocation inv = { .out = stdout, .err = stderr, .headers = true };
	int st;

	if (argc > 1 && !strcmp(argv[1], "--exec-rank"))
		return exec_rank(argc, argv);
	signal(SIGPIPE, SIG_IGN); /* `gaccctl jobs | head`: the write fails, the program ends in order */
	st = parse(argc, argv, &inv);
	if (st < 0)
		st = inv.command->run(&inv);
	gacc_close(inv.client);
	if (fflush(stdout) && !st)
		st = EXIT_FAILED;
	return st;
}
