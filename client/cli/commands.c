#include "command.h"

#include <string.h>

const struct option_row global_options[] = {
	{ "endpoint", 0, "URI", "gaccd to talk to (GACC_ENDPOINT; unix:/run/gaccd/gaccd.sock)" },
	{ "output", 'o', "FORMAT", "table, wide, json, jsonl or name" },
	{ "no-headers", 0, NULL, "tables without the first line" },
	{ "timeout", 0, "TIME", "of each request to gaccd (10s)" },
	{ "help", 'h', NULL, "this text" },
	{ NULL, 0, NULL, NULL },
};

static const struct option_row no_options[] = {
	{ NULL, 0, NULL, NULL },
};

static const struct option_row run_options[] = {
	{ "ranks", 'n', "N", "how many ranks to start (1, or the job file's)" },
	{ "micro-size", 0, "K", "micro-batches of each rank in one step" },
	{ "file", 'f', "FILE", "job file; - is the standard input" },
	{ "set", 0, "KEY=VALUE", "override one key of the job file; may be repeated" },
	{ "name", 0, "NAME", "of the job (the program's name)" },
	{ "steps", 0, "N", "steps after which the job completes (0: when all ranks have left)" },
	{ "batch", 0, "B", "samples in one micro-batch, for display" },
	{ "log-dir", 0, "DIR", "where the ranks' output goes; %j is the job's id, %x its name" },
	{ "tee", 0, "RANKS", "whose output is shown here too: all, none, or 0,2 (0)" },
	{ "max-restarts", 0, "N", "start a rank that died again, at most N times in all (0)" },
	{ "grace", 0, "TIME", "between asking ranks to end and killing them (10s)" },
	{ NULL, 0, NULL, NULL },
};

static const struct option_row jobs_options[] = {
	{ "all", 'a', NULL, "ended jobs too" },
	{ NULL, 0, NULL, NULL },
};

static const struct option_row status_options[] = {
	{ "watch", 'w', NULL, "show every change until the job ends" },
	{ NULL, 0, NULL, NULL },
};

static const struct option_row logs_options[] = {
	{ "follow", 'f', NULL, "go on until the job ends" },
	{ "rank", 0, "RANKS", "only these: 0,2" },
	{ "tail", 0, "N", "only the last N lines of each rank" },
	{ NULL, 0, NULL, NULL },
};

static const struct option_row cancel_options[] = {
	{ "reason", 0, "TEXT", "kept with the job" },
	{ NULL, 0, NULL, NULL },
};

const struct command commands[] = {
	{
		.name = "run",
		.group = "Start",
		.summary = "register a job, start its ranks here, follow it and end with it",
		.usage = "[-n N] [--micro-size K] [-f job.yaml] [options] -- COMMAND [ARGUMENTS]",
		.examples = "gaccctl run -n 4 --micro-size 8 --set optimizer.type=sgd -- ./mlp --data fashion-mnist\n"
			    "gaccctl run -n 2 -f job.yaml --set optimizer.lr=0.01 -- python3 train.py",
		.details = "Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, "
			   "MASTER_PORT, GACC_JOB_ID, GACC_RANK, GACC_WORLD_SIZE, GACC_ENDPOINT, GACC_MICRO_SIZE, "
			   "GACC_RESTART_COUNT and GACC_LOG_DIR, and OMP_NUM_THREADS=1 unless that is set. Its output goes "
			   "to worker_RANK.log in the log directory. Ctrl-C cancels the job and asks the ranks to end; a "
			   "second one kills them. Ends with the highest status of a rank (128 + signal for a killed one).",
		.options = run_options,
		.min_operands = 1,
		.max_operands = -1,
		.runs_program = true,
		.run = cmd_run,
	},
	{
		.name = "jobs",
		.aliases = "ps list",
		.group = "Look",
		.summary = "list jobs",
		.usage = "[-a]",
		.examples = "gaccctl jobs\ngaccctl jobs -a -o json | jq '.jobs[0].applied_step'",
		.options = jobs_options,
		.run = cmd_jobs,
	},
	{
		.name = "status",
		.group = "Look",
		.summary = "show each rank's progress and who is late",
		.usage = "[JOB] [-w]",
		.examples = "gaccctl status 42\ngaccctl status mlp -w",
		.details = "Without JOB, all jobs that have not ended.",
		.options = status_options,
		.max_operands = 1,
		.run = cmd_status,
	},
	{
		.name = "describe",
		.group = "Look",
		.summary = "show everything about a job, a rank or the node, with events",
		.usage = "job/ID | rank/ID.RANK | node",
		.examples = "gaccctl describe job/42\ngaccctl describe rank/42.3\ngaccctl describe node",
		.options = no_options,
		.min_operands = 1,
		.max_operands = 1,
		.run = cmd_describe,
	},
	{
		.name = "logs",
		.group = "Look",
		.summary = "show the output of a job's ranks",
		.usage = "JOB [-f] [--rank 0,2] [--tail N]",
		.examples = "gaccctl logs 42 --rank 3 --tail 50\ngaccctl logs 42 -f",
		.options = logs_options,
		.min_operands = 1,
		.max_operands = 1,
		.run = cmd_logs,
	},
	{
		.name = "cancel",
		.group = "Control",
		.summary = "end jobs",
		.usage = "JOB... [--reason TEXT]",
		.examples = "gaccctl cancel 42",
		.options = cancel_options,
		.min_operands = 1,
		.max_operands = -1,
		.run = cmd_cancel,
	},
	{
		.name = "flush",
		.group = "Control",
		.summary = "close a job's open window now, with what is counted in it",
		.usage = "JOB",
		.examples = "gaccctl flush 42",
		.options = no_options,
		.min_operands = 1,
		.max_operands = 1,
		.run = cmd_flush,
	},
	{
		.name = "health",
		.group = "Node",
		.summary = "ask gaccd whether it is well",
		.usage = "",
		.examples = "gaccctl health && echo well",
		.options = no_options,
		.run = cmd_health,
	},
	{
		.name = "config",
		.group = "Node",
		.summary = "check a job file",
		.usage = "validate FILE",
		.examples = "gaccctl config validate job.yaml\ngaccctl config validate job.yaml -o json",
		.details = "FILE may be - for the standard input. The daemon's own file is checked by gaccd --check-config.",
		.options = no_options,
		.min_operands = 2,
		.max_operands = 2,
		.run = cmd_config,
	},
	{
		.name = "version",
		.group = "Help",
		.summary = "versions of gaccctl and gaccd",
		.usage = "",
		.options = no_options,
		.run = cmd_version,
	},
	{
		.name = "completion",
		.group = "Help",
		.summary = "print a completion script",
		.usage = "bash|zsh|fish",
		.examples = "source <(gaccctl completion bash)",
		.options = no_options,
		.min_operands = 1,
		.max_operands = 1,
		.run = cmd_completion,
	},
	{
		.name = "help",
		.group = "Help",
		.summary = "explain a command",
		.usage = "[COMMAND]",
		.options = no_options,
		.max_operands = 1,
		.run = cmd_help,
	},
	{ .name = NULL },
};

static bool is_alias(const char *aliases, const char *word)
{
	size_t n = strlen(word);

	for (const char *p = aliases; p && *p; p += strspn(p, " ")) {
		size_t m = strcspn(p, " ");

		if (m == n && !strncmp(p, word, n))
			return true;
		p += m;
	}
	return false;
}

const struct command *command_find(const char *word)
{
	for (const struct command *c = commands; c->name; c++)
		if (!strcmp(c->name, word) || is_alias(c->aliases, word))
			return c;
	return NULL;
}
