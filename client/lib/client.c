/* SPDX-License-Identifier: Apache-2.0 */
/* gacc_open and gacc_close: resolves the endpoint and the token, opens the channel, and starts helper threads with
 * all signals blocked. Also the library's version and the names of its errors. Any thread. */
#include "lib/internal.h"

#include "lib/channel.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define DEFAULT_ENDPOINT "unix:/run/gaccd/gaccd.sock"
#define ADMIN_TIMEOUT_MS 10000
#define TOKEN_FILE_MAX 4096

static void block_signals(sigset_t *before)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, before);
}

enum status thread_start(pthread_t *out, void *(*run)(void *), void *arg)
{
	sigset_t before;
	int err;

	block_signals(&before);
	err = pthread_create(out, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return err ? ST_RESOURCE_EXHAUSTED : ST_OK;
}

const char *gacc_version(void)
{
	return GACC_VERSION;
}

const char *gacc_strerror(gacc_status st)
{
	switch (st) {
	case GACC_OK:
		return "ok";
	case GACC_EAGAIN:
		return "not now";
	case GACC_ETIMEOUT:
		return "timed out";
	case GACC_EUNAVAIL:
		return "gaccd cannot be reached";
	case GACC_EINVAL:
		return "invalid argument or wrong time";
	case GACC_ENOTFOUND:
		return "not found";
	case GACC_EPERM:
		return "permission denied";
	case GACC_ENOMEM:
		return "out of memory or over a limit";
	case GACC_ESTALE:
		return "stale: a newer session exists, or the window has closed";
	case GACC_ECANCELLED:
		return "the job was cancelled or failed";
	case GACC_ELAYOUT:
		return "the tensor set differs from the declared one";
	case GACC_EDONE:
		return "the job has completed";
	case GACC_ENONFINITE:
		return "non-finite gradient";
	case GACC_EINTERNAL:
		return "internal error";
	case GACC_ENOSYS:
		return "this gaccd is older and has no such call";
	}
	return "unknown status";
}

/* gRPC's name for what people write: a path (it has a slash, host:port has none), "unix:PATH", "unix:///PATH",
 * "host:port". */
static char *target_of(const char *endpoint)
{
	static const char *const schemes[] = { "dns:", "ipv4:", "ipv6:" };
	bool is_unix = !strncmp(endpoint, "unix:", 5);
	const char *path = is_unix ? endpoint + 5 : endpoint;
	char *target;

	for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++)
		if (!strncmp(endpoint, schemes[i], strlen(schemes[i])))
			return strdup(endpoint);
	if (is_unix && !strncmp(path, "///", 3))
		path += 2;
	return asprintf(&target, "%s%s", is_unix || strchr(path, '/') ? "unix:" : "dns:", path) < 0 ? NULL : target;
}

/* The file's first line. */
static enum status read_token(const char *path, char token[TOKEN_FILE_MAX])
{
	FILE *f = fopen(path, "re");
	bool ok = f && fgets(token, TOKEN_FILE_MAX, f);

	if (f)
		fclose(f);
	if (!ok)
		return ST_IO_ERROR;
	token[strcspn(token, "\r\n")] = '\0';
	return ST_OK;
}

static enum status open_channel(const char *target, struct rpc_channel **out_channel)
{
	const char *token_file = getenv("GACC_TOKEN_FILE");
	char token[TOKEN_FILE_MAX];
	struct rpc_channel_options opts = { .target = target };
	sigset_t before;
	enum status st;

	if (token_file && *token_file && strncmp(target, "unix:", 5) != 0) {
		st = read_token(token_file, token);
		if (st)
			return st;
		opts.token = token;
	}
	opts.cert_path = getenv("GACC_TLS_CERT");
	opts.key_path = getenv("GACC_TLS_KEY");
	opts.ca_path = getenv("GACC_TLS_CA");
	block_signals(&before); /* the channel and gRPC make threads, too */
	st = rpc_channel_open(&opts, out_channel);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return st;
}

#define MARK_BYTES 4096

/* A page that the kernel clears in forked children. NULL: there is none. */
static const unsigned char *make_mark(void)
{
	unsigned char *p = mmap(NULL, MARK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	if (madvise(p, MARK_BYTES, MADV_WIPEONFORK)) {
		munmap(p, MARK_BYTES);
		return NULL;
	}
	*p = 1;
	return p;
}

gacc_status gacc_open(const char *endpoint, gacc_client **out)
{
	struct gacc_client *client;
	enum status st = ST_NO_MEMORY;

	if (!out)
		return GACC_EINVAL;
	if (!endpoint || !*endpoint)
		endpoint = getenv("GACC_ENDPOINT");
	if (!endpoint || !*endpoint)
		endpoint = DEFAULT_ENDPOINT;
	client = calloc(1, sizeof(*client));
	if (!client)
		return GACC_ENOMEM;
	pthread_mutex_init(&client->lock, NULL);
	client->pid = getpid();
	client->ours = make_mark();
	client->admin_timeout_ms = ADMIN_TIMEOUT_MS;
	client->endpoint = target_of(endpoint);
	if (!client->endpoint)
		goto fail;
	st = open_channel(client->endpoint, &client->channel);
	if (st)
		goto fail;
	*out = client;
	return GACC_OK;
fail:
	gacc_close(client);
	return gacc_status_of(st);
}

void gacc_close(gacc_client *client)
{
	if (!client || client->pid != getpid())
		return;
	rpc_channel_close(client->channel);
	if (client->ours)
		munmap((void *)client->ours, MARK_BYTES);
	pthread_mutex_destroy(&client->lock);
	free(client->endpoint);
	free(client);
}

const char *gacc_client_error(const gacc_client *client)
{
	return client->failure.text;
}

const char *gacc_endpoint(const gacc_client *client)
{
	return client->endpoint;
}

gacc_status client_fail(struct gacc_client *client, const struct failure *f)
{
	pthread_mutex_lock(&client->lock);
	client->failure = *f;
	pthread_mutex_unlock(&client->lock);
	return f->code;
}

/* 0, or the errno of a connect() to the socket. */
static int probe(const char *path)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd, err;

	if (strlen(path) >= sizeof(addr.sun_path))
		return ENAMETOOLONG;
	strcpy(addr.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return errno;
	err = connect(fd, (struct sockaddr *)&addr, sizeof(addr)) ? errno : 0;
	close(fd);
	return err;
}

#define SILENT "it is stopped, hangs or has too much to do: systemctl status gaccd"

static void explain_silence(const char *endpoint, struct rpc_failure *rpc)
{
	snprintf(rpc->message, sizeof(rpc->message), "gaccd at %.200s does not answer", endpoint);
	snprintf(rpc->hint, sizeof(rpc->hint), "%s", SILENT);
}

/* gaccd listens now: what gRPC says is about the moment before, or about one that gaccd did not survive. */
static void explain_no_answer(const char *endpoint, struct rpc_failure *rpc)
{
	char why[sizeof(rpc->message)];

	if (strstr(rpc->message, "before receiving SETTINGS")) { /* the kernel has accepted, gaccd has not */
		explain_silence(endpoint, rpc);
		return;
	}
	snprintf(why, sizeof(why), "%s", rpc->message);
	snprintf(rpc->message, sizeof(rpc->message), "gaccd at %.200s did not answer%s%.250s", endpoint,
		 *why ? ": " : "", why);
	snprintf(rpc->hint, sizeof(rpc->hint),
		 "it may have been restarted just now: repeat; if it stays so: systemctl status gaccd");
}

/* gRPC says why, in many words, of which the last are the cause. */
static void explain_no_network(const char *endpoint, struct rpc_failure *rpc)
{
	char why[sizeof(rpc->message)];

	if (*rpc->hint) /* gaccd's own words */
		return;
	snprintf(why, sizeof(why), "%s", rpc->message);
	snprintf(rpc->message, sizeof(rpc->message), "cannot reach gaccd at %.200s%s%.250s", endpoint, *why ? ": " : "",
		 why);
	snprintf(rpc->hint, sizeof(rpc->hint),
		 "is gaccd running there with listen.tcp, and GACC_TLS_CERT, _KEY and _CA set if it has tls? "
		 "a socket file is named by its path");
}

void explain_unreachable(const char *endpoint, struct rpc_failure *rpc)
{
	int err;

	if (rpc->status == ST_CANCELLED && !*rpc->reason) /* by nobody: gaccd died between accept and answer */
		rpc->status = ST_UNAVAILABLE;
	if (rpc->status == ST_STALLED && !*rpc->reason) { /* gRPC's own deadline: not a word came from gaccd */
		rpc->status = ST_DEADLINE;
		snprintf(rpc->message, sizeof(rpc->message), "gaccd at %.200s did not answer in time", endpoint);
		snprintf(rpc->hint, sizeof(rpc->hint), "%s", SILENT ", or give it more time");
	}
	if (rpc->status != ST_UNAVAILABLE)
		return;
	if (strncmp(endpoint, "unix:", 5) != 0) {
		explain_no_network(endpoint, rpc);
		return;
	}
	err = probe(endpoint + 5);
	if (!err) {
		if (!*rpc->hint) /* else it is gaccd's own words */
			explain_no_answer(endpoint, rpc);
		return;
	}
	if (err == EAGAIN) {
		explain_silence(endpoint, rpc);
		return;
	}
	snprintf(rpc->message, sizeof(rpc->message), "cannot reach gaccd at %.200s: %s", endpoint, strerror(err));
	if (err == EACCES) {
		rpc->status = ST_PERMISSION_DENIED;
		snprintf(rpc->reason, sizeof(rpc->reason), "%s", status_info(ST_PERMISSION_DENIED)->name);
		snprintf(rpc->hint, sizeof(rpc->hint), "you are not in the socket's group; see ls -l %.150s",
			 endpoint + 5);
	} else {
		snprintf(rpc->hint, sizeof(rpc->hint),
			 "is gaccd running? systemctl status gaccd, or set GACC_ENDPOINT");
	}
}
