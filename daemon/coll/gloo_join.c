/* SPDX-License-Identifier: Apache-2.0 */
/* How a member over Gloo meets the others: checks their addresses, connects to all at once, and makes sure of each
 * one's life. On the communication thread, and on one thread for each other member while it lasts. */
#include "coll/gloo_impl.h"

#include "base/clock.h"

#include <assert.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEEPALIVE_S 5, 5, 3   /* idle, interval, count: a cut network is noticed within 20 s */
#define USER_TIMEOUT_MS 20000 /* for bytes that nobody acknowledges */

/* ---- addresses ---- */

static bool is_address(const struct sockaddr_storage *a, sa_family_t family)
{
	if (a->ss_family != family)
		return false;
	if (family == AF_INET)
		return ((const struct sockaddr_in *)a)->sin_port != 0;
	return family == AF_INET6 && ((const struct sockaddr_in6 *)a)->sin6_port != 0;
}

/* Takes from a blob where the part listens for this member, and its key. */
static bool read_blob(struct gloo_member *m, const struct coll_address *a, uint32_t s, uint64_t key[2])
{
	struct gloo_blob b;
	uint32_t own = m->base.part;
	if (a->n_blob != gloo_blob_size(m->base.n_parts))
		return false;
	memcpy(&b, a->blob, a->n_blob);
	memcpy(key, b.key, sizeof(b.key));
	if (b.magic != GLOO_MAGIC || coll_id_compare(&b.id, &m->id) || b.part != s || b.n_parts != m->base.n_parts ||
	    b.small != m->base.small || b.life != a->life)
		return false;
	if (s == own)
		return !memcmp(&b, &m->blob, a->n_blob);
	m->peer[s].address = b.address[own];
	return is_address(&b.address[own], m->blob.address[s].ss_family);
}

static enum status read_addresses(struct gloo_member *m, const struct coll_address *all)
{
	uint64_t key[COLL_MAX_PARTS][2];
	for (uint32_t s = 0; s < m->base.n_parts; s++) {
		if (read_blob(m, &all[s], s, key[s]))
			continue;
		uint64_t suspect = s == m->base.part ? 0 : gloo_bit(s);
		return gloo_break(m, GLOO_FAILED, ST_MALFORMED, suspect, "an address is not what a member has given");
	}
	gloo_make_secret(m, (const uint64_t(*)[2])key);
	for (uint32_t s = 0; s < m->base.n_parts; s++)
		m->peer[s].life = all[s].life;
	return ST_OK;
}

/* Buffers for the words between two members; false: no memory. */
static bool make_buffers(struct gloo_member *m)
{
	bool made = true;
	for (uint32_t s = 0; s < m->base.n_parts; s++) {
		struct gloo_peer *p = &m->peer[s];
		if (s == m->base.part)
			continue;
		p->words = shim_buffer_new(m->context, &p->memory, sizeof(p->memory));
		p->last = shim_buffer_new(m->context, &p->last_in, sizeof(p->last_in));
		p->waiting = shim_buffer_new(m->context, &p->waiting_in, sizeof(p->waiting_in));
		made = made && p->words && p->last && p->waiting;
	}
	m->last_words = shim_buffer_new(m->context, &m->last_out, sizeof(m->last_out));
	m->waiting_words = shim_buffer_new(m->context, &m->waiting_out, sizeof(m->waiting_out));
	m->working_words = shim_buffer_new(m->context, &m->working_out, sizeof(m->working_out));
	return made && m->last_words && m->waiting_words && m->working_words && gloo_small_make(m);
}

/* ---- one connection; on its thread ---- */

static enum status cannot_reach(struct gloo_peer *p, const char *why)
{
	char text[SHIM_TEXT];
	snprintf(text, sizeof(text), "part %u cannot be reached: %.100s", p->part, why);
	return gloo_break(p->member, GLOO_FAILED, ST_UNAVAILABLE, gloo_bit(p->part), text);
}

static enum status check_hello(struct gloo_peer *p)
{
	struct gloo_member *m = p->member;
	const struct gloo_hello *h = &p->memory.hello_in;
	const char *text = "a stranger, or a member of another communicator, has connected in the place of a part";
	if (h->proof != gloo_proof(m, h) || coll_id_compare(&h->id, &m->id) || h->part != p->part)
		return gloo_break(m, GLOO_FAILED, ST_MALFORMED, gloo_bit(p->part), text);
	if (h->life != p->life)
		return gloo_break(m, GLOO_FAILED, ST_ALREADY_EXISTS, gloo_bit(p->part),
				  "another life of a part belongs to the communicator");
	return ST_OK;
}

/* The two tell each other which lives they are. */
static enum status greet(struct gloo_peer *p)
{
	struct gloo_member *m = p->member;
	struct gloo_hello *out = &p->memory.hello_out;
	size_t to = offsetof(typeof(p->memory), hello_in), from = offsetof(typeof(p->memory), hello_out);
	*out = (struct gloo_hello){ .id = m->id, .part = m->base.part, .life = m->life };
	out->proof = gloo_proof(m, out);
	if (shim_recv(p->last, p->part, GLOO_SLOT_LAST_WORD, 0, sizeof(p->last_in)) ||
	    shim_recv(p->waiting, p->part, GLOO_SLOT_WAITING, 0, sizeof(p->waiting_in)) ||
	    gloo_small_expect(m, p->part, 0) || shim_recv(p->words, p->part, GLOO_SLOT_HELLO, to, sizeof(*out)) ||
	    shim_send(p->words, p->part, GLOO_SLOT_HELLO, from, sizeof(*out)) || shim_wait_recv(p->words) ||
	    shim_wait_send(p->words))
		return cannot_reach(p, "it has hung up");
	return check_hello(p);
}

static void *connect_one(void *arg)
{
	struct gloo_peer *p = arg;
	struct gloo_member *m = p->member;
	char why[SHIM_TEXT] = "";
	if (shim_connect(m->context, p->part, &p->address, why)) {
		cannot_reach(p, why);
		return NULL;
	}
	if (gloo_status(m) != ST_OK || greet(p) != ST_OK)
		return NULL;
	pthread_mutex_lock(&m->mutex);
	p->joined = true;
	pthread_cond_broadcast(&m->changed);
	pthread_mutex_unlock(&m->mutex);
	/* While the join waits for others: whether this one is still there. */
	enum shim_result r = shim_wait_recv(p->last);
	if (r != SHIM_WOKEN)
		gloo_lost(m, p->part, r == SHIM_DONE);
	return NULL;
}

/* ---- all connections ---- */

static uint64_t not_joined(const struct gloo_member *m)
{
	uint64_t parts = 0;
	for (uint32_t s = 0; s < m->base.n_parts; s++)
		parts |= s == m->base.part || m->peer[s].joined ? 0 : gloo_bit(s);
	return parts;
}

static enum status late(struct gloo_member *m, int64_t waited_ns, uint64_t missing)
{
	char text[SHIM_TEXT];
	int n = snprintf(text, sizeof(text), "waited %" PRId64 " ms for part", waited_ns / 1000000);
	for (uint32_t s = 0; s < m->base.n_parts && n < (int)sizeof(text); s++)
		if (missing >> s & 1)
			n += snprintf(text + n, sizeof(text) - (size_t)n, " %u", s);
	return gloo_break(m, GLOO_FAILED, ST_STALLED, missing, text);
}

/* Until all have joined, or it takes too long. */
static enum status wait_for_all(struct gloo_member *m)
{
	int64_t begun = clock_ns(CLOCK_MONOTONIC), since = begun;
	uint64_t missing, before = UINT64_MAX;
	enum status st;
	pthread_mutex_lock(&m->mutex);
	while ((st = m->failure.status) == ST_OK && (missing = not_joined(m))) {
		int64_t now = clock_ns(CLOCK_MONOTONIC);
		if (missing != before)
			since = now;
		before = missing;
		bool limited = begun + m->join_ns < since + m->stall_ns;
		int64_t until = limited ? begun + m->join_ns : since + m->stall_ns;
		struct timespec t = { until / CLOCK_NS_PER_S, until % CLOCK_NS_PER_S };
		if (now >= until) {
			pthread_mutex_unlock(&m->mutex);
			return late(m, now - (limited ? begun : since), missing);
		}
		pthread_cond_timedwait(&m->changed, &m->mutex, &t);
	}
	pthread_mutex_unlock(&m->mutex);
	return st;
}

void gloo_stop_listening(struct gloo_member *m, bool all)
{
	for (uint32_t s = 0; s < m->base.n_parts; s++) {
		const struct sockaddr_storage *here = &m->blob.address[s];
		/* Another may have the port of one that has connected itself. */
		if (s == m->base.part || m->peer[s].joined || (!all && shim_connects(here, &m->peer[s].address)))
			continue;
		int fd = socket(here->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		if (fd < 0)
			continue;
		socklen_t n = here->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
		int error = connect(fd, (const struct sockaddr *)here, n);
		(void)error; /* it is closed already: as good */
		close(fd);
	}
}

static enum status connect_all(struct gloo_member *m)
{
	bool started[COLL_MAX_PARTS] = { false };
	enum status st = ST_OK;
	for (uint32_t s = 0; s < m->base.n_parts && st == ST_OK; s++) {
		started[s] = s != m->base.part && gloo_thread(&m->peer[s].connecting, connect_one, &m->peer[s]);
		if (s != m->base.part && !started[s])
			st = gloo_break(m, GLOO_FAILED, ST_NO_MEMORY, 0, "no thread to connect with");
	}
	if (st == ST_OK)
		st = wait_for_all(m);
	if (st != ST_OK)
		gloo_tell(m);
	for (uint32_t s = 0; s < m->base.n_parts; s++) {
		if (!started[s])
			continue;
		shim_wake(m->peer[s].last);
		if (st != ST_OK)
			shim_wake(m->peer[s].words);
	}
	if (st != ST_OK) {
		gloo_stop_listening(m, false);
		shim_context_break(m->context);
	}
	for (uint32_t s = 0; s < m->base.n_parts; s++)
		if (started[s])
			pthread_join(m->peer[s].connecting, NULL);
	return gloo_status(m);
}

/* ---- descriptors of the connections ---- */

static bool same_address(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
	const struct sockaddr_in *a4 = (const struct sockaddr_in *)a, *b4 = (const struct sockaddr_in *)b;
	const struct sockaddr_in6 *a6 = (const struct sockaddr_in6 *)a, *b6 = (const struct sockaddr_in6 *)b;
	if (a->ss_family != b->ss_family)
		return false;
	if (a->ss_family == AF_INET)
		return a4->sin_port == b4->sin_port && a4->sin_addr.s_addr == b4->sin_addr.s_addr;
	return a6->sin6_port == b6->sin6_port && !memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof(a6->sin6_addr));
}

/* The part that this descriptor is connected with; n_parts: none. One end of each connection is where one of the two
 * has listened for the other. */
static uint32_t part_of(const struct gloo_member *m, int fd)
{
	struct sockaddr_storage own = { 0 }, other = { 0 };
	socklen_t n_own = sizeof(own), n_other = sizeof(other);
	if (getsockname(fd, (struct sockaddr *)&own, &n_own) || getpeername(fd, (struct sockaddr *)&other, &n_other))
		return m->base.n_parts;
	for (uint32_t s = 0; s < m->base.n_parts; s++) {
		const struct sockaddr_storage *here = &m->blob.address[s], *there = &m->peer[s].address;
		if (s != m->base.part &&
		    (shim_connects(here, there) ? same_address(&other, there) : same_address(&own, here)))
			return s;
	}
	return m->base.n_parts;
}

static void tune(const struct gloo_member *m, int fd)
{
	const int on = 1, keepalive[] = { KEEPALIVE_S }, timeout = USER_TIMEOUT_MS;
	const char *congestion = m->net->congestion;
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &keepalive[0], sizeof(int));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &keepalive[1], sizeof(int));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &keepalive[2], sizeof(int));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof(timeout));
	if (*congestion)
		setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, (socklen_t)strlen(congestion));
}

/* Keeps a second descriptor of each connection: what happens to a connection is seen there, and shutting it down needs
 * no lock of Gloo's. */
static void find_socket(struct gloo_member *m, int fd)
{
	uint32_t s = part_of(m, fd);
	if (s == m->base.n_parts || m->peer[s].socket >= 0)
		return;
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (copy >= 0 && part_of(m, copy) == s) { /* Gloo may have closed it meanwhile, and another be in its place */
		tune(m, fd);
		m->peer[s].socket = copy;
	} else if (copy >= 0) {
		close(copy);
	}
}

static enum status find_sockets(struct gloo_member *m)
{
	DIR *dir = opendir("/proc/self/fd");
	if (!dir)
		return gloo_break(m, GLOO_FAILED, ST_NO_MEMORY, 0, "/proc/self/fd cannot be read");
	for (struct dirent *e; (e = readdir(dir));)
		if (*e->d_name != '.')
			find_socket(m, atoi(e->d_name));
	closedir(dir);
	for (uint32_t s = 0; s < m->base.n_parts; s++)
		if (s != m->base.part && m->peer[s].socket < 0)
			return cannot_reach(&m->peer[s], "it has hung up");
	return ST_OK;
}

/* ---- join ---- */

static enum status begin_join(struct gloo_member *m)
{
	pthread_mutex_lock(&m->mutex);
	enum status st = m->failure.status;
	bool again = st == ST_OK && m->phase != COLL_OPENED;
	if (st == ST_OK && !again)
		m->phase = COLL_JOINING;
	pthread_mutex_unlock(&m->mutex);
	return again ? gloo_break(m, GLOO_FAILED, ST_INVALID_ARGUMENT, 0, "coll_join is called once") : st;
}

enum status gloo_join(struct coll *base, const struct coll_address *all)
{
	struct gloo_member *m = (struct gloo_member *)base;
	enum status st = begin_join(m);
	if (st == ST_OK)
		st = read_addresses(m, all);
	if (st == ST_OK && !make_buffers(m))
		st = gloo_break(m, GLOO_FAILED, ST_NO_MEMORY, 0, "no memory for connections");
	if (st == ST_OK)
		st = connect_all(m);
	if (st == ST_OK)
		st = find_sockets(m);
	if (st == ST_OK && !gloo_watch_start(m))
		st = gloo_break(m, GLOO_FAILED, ST_NO_MEMORY, 0, "no thread to watch with");
	pthread_mutex_lock(&m->mutex);
	if (m->failure.status == ST_OK)
		m->phase = COLL_READY;
	st = m->failure.status;
	pthread_mutex_unlock(&m->mutex);
	if (st != ST_OK && !m->watched && m->last_words) {
		gloo_tell(m);
		shim_context_break(m->context);
	}
	return st;
}
