/* SPDX-License-Identifier: Apache-2.0 */
/* The table of gaccctl's commands with their options and help texts; parsing, help, completion and the man page are
 * derived from it. Constant data. */
#include "commands.h"

static const struct option_row global_options[] = {
	{ "endpoint", 0, "URI", "gaccd to talk to (GACC_ENDPOINT; unix:/run/gaccd/gaccd.sock)" },
	{ "output", 'o', "FORMAT", "table, wide, json, jsonl, yaml or name" },
	{ "no-headers", 0, NULL, "tables without the first line" },
	{ "timeout", 0, "TIME",
	  "of each request to gaccd (10s; longer where it has to work: run, submit, checkpoint, norms)" },
	{ "help", 'h', NULL, "this text" },
	{ NULL, 0, NULL, NULL },
};

static const struct option_row no_options[] = {
	{ NULL, 0, NULL, NULL },
};

/* What several commands have. */
#define OPTION_SET                                                                                                     \
	{                                                                                                              \
		"set", 0, "KEY=VALUE", "override one key of the job file; may be repeated"                             \
	}
#define OPTION_FILE                                                                                                    \
	{                                                                                                              \
		"file", 'f', "FILE", "job file; - is the standard input"                                               \
	}
#define OPTION_LOG_DIR                                                                                                 \
	{                                                                                                              \
		"log-dir", 0, "DIR", "where the ranks' output goes; %j is the job's id, %x its name, %u its uuid"      \
	}
#define OPTION_REASON                                                                                                  \
	{                                                                                                              \
		"reason", 0, "TEXT", "kept with the job"                                                               \
	}

#define OPTIONS(...)                                                                                                   \
	(const struct option_row[])                                                                                    \
	{                                                                                                              \
		__VA_ARGS__,                                                                                           \
		{                                                                                                      \
			NULL, 0, NULL, NULL                                                                            \
		}                                                                                                      \
	}

static const struct command commands[] = {
	{
		.name = "run",
		.group = "Start",
		.summary = "register a job, start its ranks here, follow it and end with it",
		.usage = "[-n N] [--micro-size K] [-f job.yaml] [--nodes a:4,b:4] [options] -- COMMAND [ARGUMENTS]",
		.examples = "gaccctl run -n 4 --micro-size 8 --set optimizer.type=sgd -- ./mlp --data fashion-mnist\n"
			    "gaccctl run -n 2 -f job.yaml --set optimizer.lr=0.01 -- python3 train.py\n"
			    "gaccctl run --nodes a:4,b:4 -f job.yaml -- python3 train.py",
		.details =
			"Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, "
			"MASTER_PORT, GACC_JOB_ID, GACC_RANK, GACC_WORLD_SIZE, GACC_ENDPOINT, GACC_MICRO_SIZE, "
			"GACC_RESTART_COUNT and GACC_LOG_DIR, and OMP_NUM_THREADS=1 and PYTHONUNBUFFERED=1 unless they "
			"are set. Its output goes "
			"to worker_RANK.log in the log directory. Ctrl-C cancels the job and asks the ranks to end; a "
			"second one kills them. Ends with the highest status of a rank (128 + signal for a killed "
			"one).\n"
			"With --no-torch-env only variables that begin with GACC_ tell a rank where it is, for "
			"programs whose libraries start torch.distributed when they find RANK or LOCAL_RANK.\n"
			"With --nodes the gaccds of these nodes start the ranks, each those of its part (as submit "
			"does with launch.mode daemon): with a small environment and the job file's "
			"launch.environment, in this directory or launch.working_dir. The exit status is that of the "
			"rank that failed first, or 7 when only the job failed.",
		.options = OPTIONS(
			{ "ranks", 'n', "N", "how many ranks to start (1, or the job file's)" },
			{ "nodes", 0, "NODES", "where gaccds start them: a,b with -n, or a:4,b:4" },
			{ "micro-size", 0, "K", "micro-batches of each rank in one step" }, OPTION_FILE, OPTION_SET,
			{ "name", 0, "NAME", "of the job (the program's name)" },
			{ "steps", 0, "N", "steps after which the job completes (0: when all ranks have left)" },
			{ "batch", 0, "B", "samples in one micro-batch, for display" }, OPTION_LOG_DIR,
			{ "tee", 0, "RANKS", "whose output is shown here too: all, none, or 0,2 (0)" },
			{ "max-restarts", 0, "N", "start a rank that died again, at most N times in all (0)" },
			{ "grace", 0, "TIME", "between asking ranks to end and killing them (10s)" },
			{ "no-torch-env", 0, NULL, "GACC_RANK and the like, but no RANK, WORLD_SIZE, MASTER_ADDR" }),
		.min_operands = 1,
		.max_operands = -1,
		.runs_program = true,
		.run = cmd_run,
	},
	{
		.name = "submit",
		.group = "Start",
		.summary = "register a job; print its id",
		.usage = "[-f job.yaml] [--set KEY=VALUE]... [--wait] [--dry-run]",
		.examples = "gaccctl submit -f job.yaml\ngaccctl submit -f - --set ranks=8 --wait < job.yaml",
		.details =
			"With launch.mode daemon, gaccd starts the ranks when the job's turn has come; else they come "
			"by "
			"themselves (srun, mpirun, torchrun, a shell) with GACC_JOB_ID, RANK and WORLD_SIZE in their "
			"environment. With --wait: shows the output of rank 0, ends with the status of the rank that "
			"failed "
			"first, or with 7 when only the job failed; Ctrl-C leaves the job alone.",
		.options = OPTIONS(OPTION_FILE, OPTION_SET, { "ranks", 'n', "N", "how many ranks" },
				   { "name", 0, "NAME", "of the job (the file's name)" }, OPTION_LOG_DIR,
				   { "wait", 0, NULL, "follow the job, and end with it" },
				   { "tee", 0, "RANKS", "with --wait: whose output is shown: all, none, or 0,2 (0)" },
				   { "dry-run", 0, NULL, "print the specification as JSON and submit nothing" }),
		.run = cmd_submit,
	},
	{
		.name = "cluster",
		.group = "Start",
		.summary = "start and end throw-away gaccds, for trying and tests",
		.usage = "up [--nodes N [--netns]] | down | status",
		.words = "up down status",
		.examples = "eval \"$(gaccctl cluster up)\"\neval \"$(gaccctl cluster up --nodes 3)\"\n"
			    "gaccctl cluster down",
		.details =
			"up starts gaccd in a private directory and prints the line that sets GACC_ENDPOINT. With "
			"--nodes, "
			"N gaccds that are one cluster: node0, which coordinates and is that endpoint, node1, and "
			"so on; -o name "
			"prints the endpoints of all. With --netns, for root, each is in a network namespace, and they "
			"reach each other over a bridge, with certificates; the network of the machine is not "
			"touched. down cancels the jobs, ends exactly those processes, and "
			"deletes the "
			"directory.",
		.options = OPTIONS({ "dir", 0, "DIR",
				     "where it lives (XDG_RUNTIME_DIR/gacc-cluster, or TMPDIR/gacc-cluster-UID)" },
				   { "nodes", 0, "N", "up: how many gaccds (1)" },
				   { "netns", 0, NULL, "up: each in a network namespace of its own" },
				   { "gaccd", 0, "PATH", "the program (the one beside gaccctl, or by PATH)" }),
		.min_operands = 1,
		.max_operands = 1,
		.run = cmd_cluster,
	},
	{
		.name = "jobs",
		.aliases = "ps list",
		.group = "Look",
		.summary = "list jobs",
		.usage = "[-a] [-w] [--state STATES] [--user NAME]",
		.examples = "gaccctl jobs\ngaccctl jobs --state failed,node_fail --user ana\n"
			    "gaccctl jobs -a -o json | jq '.jobs[0].applied_step'",
		.details = "A state that is an end (completed, failed, cancelled, node_fail) asks for ended jobs, too.",
		.options = OPTIONS({ "all", 'a', NULL, "ended jobs too" },
				   { "watch", 'w', NULL, "show the list whenever it changes" },
				   { "state", 0, "STATES", "only jobs in one of these states: running,stalled" },
				   { "user", 0, "NAME", "only jobs of this user" }),
		.run = cmd_jobs,
	},
	{
		.name = "status",
		.group = "Look",
		.summary = "show each rank's progress and who is late",
		.usage = "[JOB] [-w]",
		.examples = "gaccctl status 42\ngaccctl status mlp -w",
		.details = "Without JOB, all jobs that have not ended.",
		.options = OPTIONS({ "watch", 'w', NULL, "show every change until the job ends" }),
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
		.usage = "JOB [-f] [--rank 0,2] [--tail N] [--raw]",
		.examples = "gaccctl logs 42 --rank 3 --tail 50\ngaccctl logs 42 -f",
		.details = "On a terminal control characters are shown as \\x1b and the like; a pipe or a file gets "
			   "what the ranks wrote.",
		.options = OPTIONS({ "follow", 'f', NULL, "go on until the job ends" },
				   { "rank", 0, "RANKS", "only these: 0,2" },
				   { "tail", 0, "N", "only the last N lines of each rank" },
				   { "raw", 0, NULL,
				     "as the ranks wrote it, also to a terminal: colours, and whatever else it does" }),
		.min_operands = 1,
		.max_operands = 1,
		.run = cmd_logs,
	},
	{
		.name = "top",
		.group = "Look",
		.summary = "show jobs and ranks as they change",
		.usage = "[-d 1s] [-n N]",
		.examples = "gaccctl top\ngaccctl top -n 1",
		.details = "On a terminal each picture replaces the one before; elsewhere they follow each other.",
		.options = OPTIONS({ "interval", 'd', "TIME", "between two pictures (1s)" },
				   { "count", 'n', "N", "how many of them" }),
		.run = cmd_top,
	},
	{
		.name = "history",
		.group = "Look",
		.summary = "show what became of a job's windows, newest first",
		.usage = "JOB [-n N | --whole] [--micros]",
		.examples = "gaccctl history 42\ngaccctl history 42 -n 1 --micros\ngaccctl history 42 --whole -o json",
		.details = "LAST is the rank that completed the window and LATE BY how long after the one before; "
			   "SHORT are the "
			   "ranks that gave fewer than micro_size. With --micros: who contributed which micro-batches, "
			   "with "
			   "what weight and loss, and how long after the first push of that index by any rank. With "
			   "--whole: "
			   "the job from its first window to its newest, with at most 512 windows in between, evenly "
			   "spaced.",
		.options = OPTIONS({ "count", 'n', "N", "how many windows (20)" },
				   { "micros", 0, NULL, "a line for each micro-batch of each rank" },
				   { "whole", 0, NULL, "the whole job, thinned out" }),
		.min_operands = 1,
		.max_operands = 1,
		.run = cmd_history,
	},
	{
		.name = "norms",
		.group = "Look",
		.summary = "show the gradient and parameter norm of each tensor in the next window",
		.usage = "JOB",
		.examples = "gaccctl norms 42",
		.details = "Waits until that window closes, --timeout (10m) at most. Gradients are averaged, unscaled, "
			   "and not "
			   "yet clipped; parameters are those before the step.",
		.options = no_options,
		.min_operands = 1,
		.max_operands = 1,
		.run = cmd_norms,
	},
	{
		.name = "comms",
		.group = "Look",
		.summary = "show which parts of a job reach each other",
		.usage = "JOB",
		.examples = "gaccctl comms 42",
		.details =
			"Of a job of several parts. JOINED is the number of the communicator that the part's engine is "
			"in; those that exchange have the same. CANNOT REACH names the parts that an engine did not "
			"reach when it last failed an attempt, until an attempt succeeds: where two name each other, "
			"look "
			"at the network between them; where all name one, at that one. With -o name: the parts that "
			"are "
			"named.",
		.options = no_options,
		.min_operands = 1,
		.max_operands = 1,
		.run = cmd_comms,
	},
	{
		.name = "events",
		.group = "Look",
		.summary = "show what has happened, oldest first",
		.usage = "[JOB] [-w] [--since 5m]",
		.examples = "gaccctl events 42\ngaccctl events -w --since 1m",
		.details = "Without JOB, of the node and all jobs that you may see.",
		.options = OPTIONS({ "watch", 'w', NULL, "go on with what happens" },
				   { "since", 0, "TIME", "only the last 5m, 1h, ..." }),
		.max_operands = 1,
		.run = cmd_events,
	},
	{
		.name = "wait",
		.group = "Control",
		.summary = "wait until a job has ended, or has reached a state or step",
		.usage = "JOB [--for state=completed|step=100] [--timeout 10m]",
		.examples = "gaccctl wait 42\ngaccctl wait 42 --for step=100 --timeout 10m",
		.details = "Ends with 0 when the goal is reached, 7 when the job has failed or cannot reach it any "
			   "more, 5 when the "
			   "time is up (without --timeout it waits for ever). It also waits for a gaccd that cannot be "
			   "reached.",
		.options = OPTIONS({ "for", 0, "GOAL", "state=NAME or step=N (any end)" }),
		.min_operands = 1,
		.max_operands = 1,
		.run = cmd_wait,
	},
	{
		.name = "cancel",
		.group = "Control",
		.summary = "end jobs",
		.usage = "JOB... [--reason TEXT] [--grace 30s]",
		.examples = "gaccctl cancel 42\ngaccctl cancel 42 43 --grace 1m",
		.details = "Ranks that gaccctl run has started are ended by gaccctl run. A second cancel can make the "
			   "grace shorter, not longer.",
		.options = OPTIONS(
			OPTION_REASON,
			{ "grace", 0, "TIME",
			  "what ranks that gaccd has started get between SIGTERM and SIGKILL (the job's own)" }),
		.min_operands = 1,
		.max_operands = -1,
		.run = cmd_cancel,
	},
	{
		.name = "pause",
		.group = "Control",
		.summary = "hold jobs at the next window boundary",
		.usage = "JOB... [--reason TEXT]",
		.examples = "gaccctl pause 42",
		.details = "The open window may fill, but is not closed before the job is resumed.",
		.options = OPTIONS(OPTION_REASON),
		.min_operands = 1,
		.max_operands = -1,
		.run = cmd_pause,
	},
	{
		.name = "resume",
		.group = "Control",
		.summary = "let paused jobs go on",
		.usage = "JOB...",
		.examples = "gaccctl resume 42",
		.options = no_options,
		.min_operands = 1,
		.max_operands = -1,
		.run = cmd_resume,
	},
	{
		.name = "update",
		.group = "Control",
		.summary = "change values of a job that runs; print from which window on they hold",
		.usage = "JOB KEY=VALUE... [--window W]",
		.examples = "gaccctl update 42 lr=0.01 clip_norm=1\ngaccctl update 42 micro_size=16 --window 500",
		.details = "Keys: lr (the optimizer's base rate; the schedule goes on), clip_norm and clip_value (0: "
			   "off), "
			   "micro_size. All ranks see them from the same window on.",
		.options = OPTIONS({ "window", 0, "W", "from this window on (as soon as possible)" }),
		.min_operands = 2,
		.max_operands = -1,
		.run = cmd_update,
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
		.name = "checkpoint",
		.group = "Control",
		.summary = "save a job's parameters and state, list what was saved, start a new job from it",
		.usage = "save JOB | list JOB | restore JOB|DIRECTORY",
		.words = "save list restore",
		.examples = "gaccctl checkpoint save 42\ngaccctl checkpoint list 42\n"
			    "gaccctl checkpoint restore 42 -n 8 --set optimizer.lr=0.01\n"
			    "gaccctl checkpoint restore /data/ckpt/42/step-1000-3-9f2c41aa --dry-run",
		.details =
			"restore submits a new job with restore_from set: with the specification of the job, or, for a "
			"directory, the one that was saved in it. Without --id, from the newest complete checkpoint.",
		.options = OPTIONS({ "inside-window", 0, NULL,
				     "save: with the sum of the open window; else as the last step left the job" },
				   { "no-wait", 0, NULL, "save: return when it has begun" },
				   { "id", 0, "N", "restore: that checkpoint (the newest complete one)" },
				   { "file", 'f', "FILE", "restore: job file (the specification that was saved)" },
				   { "set", 0, "KEY=VALUE", "restore: override one key; may be repeated" },
				   { "ranks", 'n', "N", "restore: how many ranks" },
				   { "name", 0, "NAME", "restore: of the new job" },
				   { "wait", 0, NULL, "restore: follow the new job, and end with it" },
				   { "tee", 0, "RANKS", "restore: with --wait, whose output is shown (0)" },
				   { "dry-run", 0, NULL, "restore: print the specification and submit nothing" }),
		.min_operands = 2,
		.max_operands = 2,
		.run = cmd_checkpoint,
	},
	{
		.name = "bench",
		.group = "Measure",
		.summary = "measure pushing and reducing gradients on this node, and check the sums",
		.usage = "[-b 1M] [-e 64M] [-f 4] [-n 20] [-r 2] [--path shm|inline]",
		.examples = "gaccctl bench\ngaccctl bench -b 4M -e 4M -r 4 --path inline -J bench.json",
		.details = "Runs real jobs with optimizer client, one for each size, one micro-batch of each rank in a "
			   "window. "
			   "push: a rank's push until it is counted; turn: how long it waited to be added in rank "
			   "order; reduce: "
			   "from then until the reduced gradient is readable; total: the window of the slowest rank; "
			   "algbw: size "
			   "/ total; busbw: the gradients of all ranks / total. The columns are those of nccl-tests.",
		.options = OPTIONS(
			{ "begin", 'b', "SIZE", "bytes of the smallest gradient (1M)" },
			{ "end", 'e', "SIZE", "bytes of the largest (64M)" },
			{ "factor", 'f', "N", "from one size to the next (4)" },
			{ "iters", 'n', "N", "measured windows of each size (20)" },
			{ "warmup", 'w', "N", "windows before them (2)" },
			{ "check", 'c', "0|1", "compare every reduced element with the sum that was pushed (1)" },
			{ "ranks", 'r', "N", "ranks, which are threads of this program (2)" },
			{ "path", 0, "shm|inline", "shared memory, or gradients inside the messages (shm)" },
			{ "json", 'J', "FILE", "the results as JSON, too" }),
		.run = cmd_bench,
	},
	{
		.name = "buffers",
		.group = "Node",
		.summary = "show shared memory by job, node and kind",
		.usage = "[JOB]",
		.examples = "gaccctl buffers\ngaccctl buffers 42",
		.options = no_options,
		.max_operands = 1,
		.run = cmd_buffers,
	},
	{
		.name = "nodes",
		.group = "Node",
		.summary = "show the nodes of the cluster; keep new jobs away from one",
		.usage = "[drain NAME | undrain NAME]",
		.words = "drain undrain",
		.examples = "gaccctl nodes\ngaccctl nodes -o json | jq '.nodes[] | select(.state != \"UP\") | .name'\n"
			    "gaccctl nodes drain b",
		.details =
			"SUSPECT: no word for 3 s, or its link has ended; DOWN: no word for cluster.lease. Jobs with "
			"parts there wait, and go on when it is back. drain: new jobs get no parts there, and those "
			"that are there stay; until undrain, or a restart of the coordinator.",
		.options = no_options,
		.max_operands = 2,
		.run = cmd_nodes,
	},
	{
		.name = "health",
		.group = "Node",
		.summary = "ask gaccd whether it is well",
		.usage = "[--gpus]",
		.examples = "gaccctl health && echo well\ngaccctl health --gpus",
		.details = "Ends with 0 when gaccd is well, 8 when it is stopping or the disk of its state_dir is "
			   "full, 3 when it cannot be reached. With a gaccd on this machine it also looks at the "
			   "machine's "
			   "NVIDIA GPUs. Without --gpus it prints what is wrong with the driver, with gaccd's "
			   "limit of locked memory and with its access to the driver's nodes, asks no GPU, and ends as "
			   "though there were none. --gpus asks each GPU, too, prints what is right as well, and "
			   "ends with 8 if something is wrong.",
		.options = OPTIONS(
			{ "gpus", 0, NULL, "compute mode, persistence mode and MPS of this machine's GPUs, too" }),
		.run = cmd_health,
	},
	{
		.name = "config",
		.group = "Node",
		.summary = "check a job file; show gaccd's configuration; print the job file's JSON Schema",
		.usage = "validate FILE | show | schema",
		.words = "validate show schema",
		.examples = "gaccctl config validate job.yaml\ngaccctl config validate job.yaml -o json\ngaccctl "
			    "config show",
		.details = "validate checks keys, types and ranges; what several keys must fulfil together, gaccd "
			   "checks when the job is "
			   "submitted. FILE may be - for the standard input. The daemon's own file is checked by gaccd "
			   "--check-config.",
		.options = no_options,
		.min_operands = 1,
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
		.words = "bash zsh fish",
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

const struct command_table gaccctl_commands = { .commands = commands, .options = global_options };
