/* SPDX-License-Identifier: Apache-2.0 */
/* Members of communicators over Gloo: how they are opened, looked at and freed. gloo_join.c connects them, gloo_ops.c
 * has the operations, gloo_watch.c failures. For the engine; threads as coll.h says. */
#include "coll/coll_gloo.h"
#include "coll/gloo_impl.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#define CLOSE_MS 1000 /* at most, until Gloo's thread has seen that a connection is shut down */

/* The last member that the net has opened for a part of a job: no second one of its id. */
struct gloo_opened {
	struct coll_id id;
	uint32_t part;
	struct gloo_opened *next;
};

/* ---- open ---- */

static struct gloo_opened *find_opened(struct gloo_net *net, const struct coll_config *config)
{
	struct gloo_opened *o = net->opened;
	while (o && (o->id.job != config->id.job || o->part != config->part))
		o = o->next;
	return o;
}

/* Takes the part's place in the communicator; *before: what it had until now. */
static enum status take_place(struct gloo_net *net, const struct coll_config *config, struct coll_id *before,
			      struct coll_failure *why)
{
	*before = (struct coll_id){ .job = config->id.job };
	pthread_mutex_lock(&net->mutex);
	struct gloo_opened *o = find_opened(net, config);
	if (o && coll_id_compare(&o->id, &config->id) >= 0) {
		coll_failure_set(why, ST_ALREADY_EXISTS, gloo_bit(config->part),
				 "this or another life of the part is or was in the communicator already");
	} else if (o) {
		*before = o->id;
		o->id = config->id;
	} else if ((o = malloc(sizeof(*o)))) {
		*o = (struct gloo_opened){ .id = config->id, .part = config->part, .next = net->opened };
		net->opened = o;
	} else {
		coll_failure_set(why, ST_NO_MEMORY, 0, "no memory for a member");
	}
	pthread_mutex_unlock(&net->mutex);
	return why->status;
}

/* It could not be opened. */
static void leave_place(struct gloo_net *net, const struct coll_config *config, const struct coll_id *before)
{
	pthread_mutex_lock(&net->mutex);
	struct gloo_opened *o = find_opened(net, config);
	if (o && !coll_id_compare(&o->id, &config->id))
		o->id = *before;
	pthread_mutex_unlock(&net->mutex);
}

static const struct coll_ops ops;

/* Frees what there is of a member. */
static void free_member(struct gloo_member *m)
{
	for (uint32_t s = 0; s < m->base.n_parts; s++) {
		shim_buffer_free(m->peer[s].words);
		shim_buffer_free(m->peer[s].last);
		shim_buffer_free(m->peer[s].waiting);
	}
	shim_buffer_free(m->last_words);
	shim_buffer_free(m->waiting_words);
	shim_buffer_free(m->working_words);
	gloo_small_free(m);
	if (m->context)
		shim_context_free(m->context);
	for (uint32_t s = 0; s < m->base.n_parts; s++)
		if (m->peer[s].socket >= 0)
			close(m->peer[s].socket);
	if (m->wakes_watch >= 0)
		close(m->wakes_watch);
	pthread_cond_destroy(&m->changed);
	pthread_mutex_destroy(&m->mutex);
	free(m->scratch);
	free(m);
}

static struct gloo_member *make_member(struct gloo_net *net, const struct coll_config *config)
{
	struct gloo_member *m = calloc(1, sizeof(*m));
	if (!m)
		return NULL;
	m->base =
		(struct coll){ .ops = &ops, .part = config->part, .n_parts = config->n_parts, .small = config->small };
	m->net = net;
	m->id = config->id;
	m->life = config->life;
	m->stall_ns = config->stall_ns;
	m->join_ns = config->join_ns;
	m->wakes_watch = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	for (uint32_t s = 0; s < config->n_parts; s++) {
		m->peer[s].member = m;
		m->peer[s].part = s;
		m->peer[s].socket = -1;
	}
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&m->changed, &attr);
	pthread_condattr_destroy(&attr);
	pthread_mutex_init(&m->mutex, NULL);
	return m;
}

/* The address for the others: where this member listens, and its part of the key. */
static bool make_blob(struct gloo_member *m)
{
	struct gloo_blob *b = &m->blob;
	*b = (struct gloo_blob){ .magic = GLOO_MAGIC, .id = m->id, .part = m->base.part, .life = m->life };
	b->n_parts = m->base.n_parts;
	b->small = m->base.small;
	for (uint32_t s = 0; s < m->base.n_parts; s++)
		if (s != m->base.part)
			shim_address(m->context, s, &b->address[s]);
	return getrandom(b->key, sizeof(b->key), 0) == (ssize_t)sizeof(b->key);
}

static enum status gloo_open(struct coll_net *base, const struct coll_config *config, struct coll **out,
			     struct coll_failure *why)
{
	struct gloo_net *net = (struct gloo_net *)base;
	char text[SHIM_TEXT] = "no memory for a member";
	struct coll_id before;
	if (take_place(net, config, &before, why) != ST_OK)
		return why->status;
	struct gloo_member *m = make_member(net, config);
	if (m && m->wakes_watch >= 0)
		m->context = shim_context_new(net->device, config->part, config->n_parts, text);
	if (m && m->context && make_blob(m)) {
		*out = &m->base;
		return ST_OK;
	}
	if (m)
		free_member(m);
	leave_place(net, config, &before);
	coll_failure_set(why, ST_NO_MEMORY, 0, text); /* memory, descriptors or ports: later there may be some */
	return ST_NO_MEMORY;
}

static const void *gloo_blob(const struct coll *base, size_t *n)
{
	*n = gloo_blob_size(base->n_parts);
	return &((const struct gloo_member *)base)->blob;
}

/* ---- poll, failures, leave ---- */

static void gloo_poll(struct coll *base, struct coll_state *out)
{
	struct gloo_member *m = (struct gloo_member *)base;
	*out = (struct coll_state){ .phase = COLL_OPENED };
	pthread_mutex_lock(&m->mutex);
	for (uint32_t s = 0; s < base->n_parts; s++)
		out->connected += m->peer[s].joined;
	out->phase = m->phase;
	out->pieces = m->pieces;
	out->failure = m->failure;
	pthread_mutex_unlock(&m->mutex);
}

static void gloo_at_work(struct coll *base)
{
	struct gloo_member *m = (struct gloo_member *)base;
	pthread_mutex_lock(&m->mutex);
	if (m->phase == COLL_READY) {
		m->pieces++;
		m->worked++;
	}
	pthread_mutex_unlock(&m->mutex);
}

static enum status gloo_fail(struct coll *base, enum status st, const char *text)
{
	return gloo_break((struct gloo_member *)base, st == ST_CANCELLED ? GLOO_ABORTED : GLOO_FAILED, st, 0, text);
}

static void gloo_leave(struct coll *base)
{
	struct gloo_member *m = (struct gloo_member *)base;
	gloo_watch_stop(m);
	pthread_mutex_lock(&m->mutex);
	bool whole = m->phase == COLL_READY, alone = !m->last_words;
	if (whole)
		m->last_out = (struct gloo_last_word){ .kind = GLOO_LEFT, .operations = m->completed };
	pthread_mutex_unlock(&m->mutex);
	if (whole)
		gloo_tell(m);
	if (alone)
		gloo_stop_listening(m, true);
	/* What was sent goes out first. Gloo's thread sees the end and closes: faster than to close from here. */
	for (uint32_t s = 0; s < base->n_parts; s++)
		if (m->peer[s].socket >= 0)
			shutdown(m->peer[s].socket, SHUT_RDWR);
	for (uint32_t s = 0; s < base->n_parts; s++)
		if (m->peer[s].socket >= 0 && !m->peer[s].gone)
			shim_received(m->peer[s].last, CLOSE_MS);
	free_member(m);
}

static const struct coll_ops ops = {
	.ordered = true,
	.blob = gloo_blob,
	.join = gloo_join,
	.exchange = gloo_exchange,
	.gather = gloo_gather,
	.sum_small = gloo_sum_small,
	.broadcast = gloo_broadcast,
	.barrier = gloo_barrier,
	.poll = gloo_poll,
	.at_work = gloo_at_work,
	.fail = gloo_fail,
	.leave = gloo_leave,
};

/* ---- the net ---- */

static void gloo_net_free(struct coll_net *base)
{
	struct gloo_net *net = (struct gloo_net *)base;
	for (struct gloo_opened *o = net->opened, *next; o; o = next) {
		next = o->next;
		free(o);
	}
	if (net->device)
		shim_device_free(net->device);
	pthread_mutex_destroy(&net->mutex);
	free(net);
}

/* Gloo reads what is not there when a name does not resolve, and leaks when it finds no address: it is asked for what
 * exists alone. */
static bool is_own_address(const char *text)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6 };
	bool is_v4 = inet_pton(AF_INET, text, &v4.sin_addr) == 1;
	if (!is_v4 && inet_pton(AF_INET6, text, &v6.sin6_addr) != 1)
		return false;
	int fd = socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool own = fd >= 0 &&
		   !bind(fd, is_v4 ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6, is_v4 ? sizeof(v4) : sizeof(v6));
	if (fd >= 0)
		close(fd);
	return own;
}

static bool has_address(const char *interface)
{
	struct ifaddrs *all = NULL;
	bool has = false;
	if (getifaddrs(&all))
		return false;
	for (const struct ifaddrs *i = all; i && !has; i = i->ifa_next)
		has = i->ifa_addr && !strcmp(i->ifa_name, interface) &&
		      (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6);
	freeifaddrs(all);
	return has;
}

static const char *wrong_config(const struct coll_gloo_config *config)
{
	if (!config->interface == !config->address)
		return "either an interface or an address is needed";
	if (config->address && !is_own_address(config->address))
		return "the address is no numeric address of this machine";
	if (config->interface && !has_address(config->interface))
		return "there is no such interface, or it has no address";
	if (config->congestion && strlen(config->congestion) >= sizeof(((struct gloo_net *)0)->congestion))
		return "no such congestion control";
	return NULL;
}

/* A peer that has gone would end the process. */
static void ignore_sigpipe(void)
{
	struct sigaction now;
	if (!sigaction(SIGPIPE, NULL, &now) && !(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_DFL)
		signal(SIGPIPE, SIG_IGN);
}

/* Gloo's thread is to take no signals. */
static struct shim_device *make_device(const struct coll_gloo_config *config, char text[SHIM_TEXT])
{
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	struct shim_device *d = shim_device_new(config->interface, config->address, text);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return d;
}

struct coll_net *coll_gloo_new(const struct coll_gloo_config *config, struct coll_failure *why)
{
	static const struct coll_net_ops net_ops = { gloo_open, gloo_net_free };
	struct coll_failure unwanted;
	char text[SHIM_TEXT] = "";
	const char *wrong = wrong_config(config);
	why = why ? why : &unwanted;
	*why = (struct coll_failure){ .status = ST_OK };
	struct gloo_net *net = wrong ? NULL : calloc(1, sizeof(*net));
	if (wrong || !net) {
		coll_failure_set(why, wrong ? ST_INVALID_ARGUMENT : ST_NO_MEMORY, 0, wrong ? wrong : "no memory");
		return NULL;
	}
	net->base.ops = &net_ops;
	pthread_mutex_init(&net->mutex, NULL);
	if (config->congestion)
		strcpy(net->congestion, config->congestion);
	ignore_sigpipe();
	net->device = make_device(config, text);
	if (net->device)
		return &net->base;
	coll_failure_set(why, ST_INVALID_ARGUMENT, 0, text);
	gloo_net_free(&net->base);
	return NULL;
}
