/* SPDX-License-Identifier: Apache-2.0 */
/* The main program of gaccd: reads arguments and configuration, prepares the process, and becomes one of four roles:
 * daemon, engine, launcher or service manager. Single-threaded until the role starts its own threads. */
#include "base/descriptors.h"
#include "base/inherited.h"
#include "base/log.h"
#include "coll/coll_gloo.h"
#include "host/conf.h"
#include "edge/daemon.h"
#include "edge/own_certificate.h"
#include "edge/tcp.h"
#include "edge/upgrade_check.h"
#include "launch/launcher.h"
#include "host/fdstore.h"
#include "host/supervise.h"
#include "engine/engine.h"
#include "engine/channel.h"
#include "engine/device_plugin.h"

#include <errno.h>
#include <getopt.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define MAX_SET 64

static const char usage[] =
	"gaccd: gradient accumulation as a node service\n"
	"\n"
	"  gaccd --config /etc/gacc/gaccd.yaml\n"
	"  gaccd --supervise --config gaccd.yaml      keep memory over restarts where there is no systemd\n"
	"  gaccd --set runtime_dir=/tmp/g --set state_dir=/tmp/g/state     as any user; "
	"GACC_ENDPOINT=/tmp/g/gaccd.sock\n"
	"  gaccd --check-config --config gaccd.yaml\n"
	"  gaccd --check-upgrade --config gaccd.yaml\n"
	"  gaccd --accept-journal-loss --config gaccd.yaml\n"
	"\n"
	"  -c, --config FILE     configuration (default: " CONF_DEFAULT_FILE ", if it is there)\n"
	"  -s, --set KEY=VALUE   overrides file and environment; may be repeated\n"
	"      --check-config    read the configuration, say what is wrong with it, and exit\n"
	"      --print-config    print every key, its value and where it came from, and exit\n"
	"      --check-upgrade   say what becomes of this node's jobs if this gaccd takes over from the one before, "
	"and exit\n"
	"      --supervise       run gaccd as a child, keep its memory, restart it when it dies\n"
	"      --accept-journal-loss    when gaccd does not start because records of its journal are missing or "
	"altered: copies the\n"
	"                        journal's files aside, ends the jobs that have lost something, says which, and exits\n"
	"      --version\n"
	"  -h, --help\n"
	"\n"
	"Exit codes of --check-upgrade: 0 jobs go on; 1 not known; 3 jobs wait, or their ranks are started again; 4 "
	"jobs would be lost.\n"
	"Exit codes: 0 stopped; 1 cannot run; 2 wrong arguments or configuration; 74 the journal cannot be written, or "
	"lacks records;\n"
	"78 as 2, and a service manager keeps memory of jobs.\n";

struct options {
	const char *file;
	const char *set[MAX_SET + 1];
	int n_set;
	bool engine, supervise, check, print, launch, accept_loss, check_upgrade;
	struct launcher_args launcher;
};

enum {
	OPT_ENGINE = 256,
	OPT_SUPERVISE,
	OPT_CHECK,
	OPT_PRINT,
	OPT_VERSION,
	OPT_LAUNCHER,
	OPT_ACCEPT_LOSS,
	OPT_CHECK_UPGRADE
};

static const struct option long_options[] = { { "config", required_argument, NULL, 'c' },
					      { "set", required_argument, NULL, 's' },
					      { "check-config", no_argument, NULL, OPT_CHECK },
					      { "print-config", no_argument, NULL, OPT_PRINT },
					      { "check-upgrade", no_argument, NULL, OPT_CHECK_UPGRADE },
					      { "supervise", no_argument, NULL, OPT_SUPERVISE },
					      { "engine", no_argument, NULL, OPT_ENGINE },
					      { "accept-journal-loss", no_argument, NULL, OPT_ACCEPT_LOSS },
					      { "launcher", no_argument, NULL, OPT_LAUNCHER },
					      { "version", no_argument, NULL, OPT_VERSION },
					      { "help", no_argument, NULL, 'h' },
					      { NULL, 0, NULL, 0 } };

/* Exit code, or -1 to go on. */
static int parse(int argc, char **argv, struct options *o)
{
	int c;
	while ((c = getopt_long(argc, argv, "c:s:h", long_options, NULL)) != -1) {
		switch (c) {
		case 'c':
			o->file = optarg;
			break;
		case 's':
			if (o->n_set == MAX_SET) {
				fprintf(stderr, "gaccd: more than %d --set\n", MAX_SET);
				return 2;
			}
			o->set[o->n_set++] = optarg;
			break;
		case OPT_ENGINE:
			o->engine = true;
			break;
		case OPT_LAUNCHER:
			o->launch = true;
			break;
		case OPT_SUPERVISE:
			o->supervise = true;
			break;
		case OPT_ACCEPT_LOSS:
			o->accept_loss = true;
			break;
		case OPT_CHECK_UPGRADE:
			o->check_upgrade = true;
			break;
		case OPT_CHECK:
			o->check = true;
			break;
		case OPT_PRINT:
			o->print = true;
			break;
		case OPT_VERSION:
			printf("gaccd %s\n", GACC_VERSION);
			return 0;
		case 'h':
			fputs(usage, stdout);
			return 0;
		default:
			fprintf(stderr, "try: gaccd --help\n");
			return 2;
		}
	}
	if (o->launch && argc - optind == 5) {
		o->launcher = (struct launcher_args){ .job_id = strtoull(argv[optind], NULL, 10),
						      .runtime_dir = argv[optind + 1],
						      .orphan_ms = strtoull(argv[optind + 2], NULL, 10),
						      .descriptors = strtoull(argv[optind + 3], NULL, 10),
						      .uuid = argv[optind + 4] };
		return -1;
	}
	if (optind == argc && !o->launch)
		return -1;
	if (o->launch) {
		fprintf(stderr, "gaccd: --launcher is for gaccd itself\n");
		return 2;
	}
	fprintf(stderr, "gaccd: unexpected argument \"%s\"\ntry: gaccd --help\n", argv[optind]);
	return 2;
}

/* The same command line without --supervise. */
static int supervise(int argc, char **argv)
{
	char **child = calloc((size_t)argc + 1, sizeof(*child));
	int n = 0;
	if (!child)
		return 1;
	for (int i = 0; i < argc; i++)
		if (i == 0)
			child[n++] = (char *)"/proc/self/exe";
		else if (strcmp(argv[i], "--supervise") != 0)
			child[n++] = argv[i];
	char exe[4096];
	ssize_t len = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	if (len > 0) {
		exe[len] = '\0';
		child[0] = exe;
	}
	struct supervise_opts s = { .argv = child, .backoff_ms = 200, .watchdog_ms = 30000 };
	log_init("gaccd-supervise", log_auto_format(), LOG_INFO);
	int code = supervise_run(&s);
	free(child);
	return code;
}

static struct coll_net *open_net(const char *address, struct coll_failure *why)
{
	const struct coll_gloo_config c = { .address = address };
	return coll_gloo_new(&c, why);
}

static int engine(void)
{
	signal(SIGPIPE, SIG_IGN);
	signal(SIGINT, SIG_IGN); /* a terminal's Ctrl-C is for gaccd to judge */
	log_init("engine", log_auto_format(), LOG_INFO);
	static const struct engine_net net = { .open = open_net };
	static char plugin[4096];
	device_plugin_path(plugin, sizeof(plugin));
	return engine_main(ENGINE_CHANNEL_FD, &net, *plugin ? plugin : NULL);
}

/* JOB RUNTIME_DIR ORPHAN_MS DESCRIPTORS UUID */
static int launcher(const struct launcher_args *args)
{
	signal(SIGPIPE, SIG_IGN);
	log_init("launcher", log_auto_format(), LOG_INFO);
	return launcher_run(args);
}

static int run(const struct options *o)
{
	struct conf *conf;
	char why[512];
	const struct conf_sources sources = { .file = o->file, .set = o->set, .environment = environ };
	enum status st = conf_load(&sources, &conf, why, sizeof(why));
	if (st) {
		fprintf(stderr, "gaccd: %s\n", why);
		return daemon_give_up(DAEMON_EXIT_CONFIG, fdstore_inherited());
	}
	int code = 0;
	if (o->print) {
		conf_print(conf, stdout);
	} else if (o->check) {
		const bool files = tcp_check_files(conf, stderr);
		code = own_certificate_check(conf, stderr) && files ? 0 : DAEMON_EXIT_CONFIG;
		if (!code)
			printf("ok\n");
	} else if (o->check_upgrade) {
		code = upgrade_check(conf);
	} else if (o->accept_loss) {
		log_init("gaccd", LOG_TEXT, LOG_WARN);
		code = daemon_accept_journal_loss(conf);
	} else {
		signal(SIGPIPE, SIG_IGN);
		log_init("gaccd", (enum log_format)conf->log.format, (enum log_level)conf->log.level);
		code = daemon_run(conf);
	}
	conf_free(conf);
	return code;
}

/* For all that this process starts, too: a setuid or setcap program that a rank runs is a program like any other. The
 * unit says so as well (NoNewPrivileges=); elsewhere nobody else does. */
static bool give_up_new_privileges(void)
{
	return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

int main(int argc, char **argv)
{
	struct options o = { .file = NULL };
	if (!inherited_mend())
		return EXIT_FAILURE; /* there may be nowhere to say why */
	if (!give_up_new_privileges()) {
		fprintf(stderr, "gaccd: PR_SET_NO_NEW_PRIVS: %s\n", strerror(errno));
		return EXIT_FAILURE;
	}
	/* gRPC's receive buffers come and go in 64 KiB pieces: without this a third of them are page-faulted again */
	mallopt(M_TRIM_THRESHOLD, 64 << 20);
	mallopt(M_MMAP_THRESHOLD, 1 << 30);
	mallopt(M_TOP_PAD, 16 << 20);
	size_t stored = fdstore_inherited();
	int code = parse(argc, argv, &o);
	if (code >= 0)
		return daemon_give_up(code, stored);
	if (o.engine)
		return engine();
	if (o.launch)
		return launcher(&o.launcher);
	return o.supervise ? supervise(argc, argv) : run(&o);
}
