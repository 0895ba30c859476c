/* SPDX-License-Identifier: Apache-2.0 */
/* How a member over Gloo waits, breaks, and learns that another one has gone: the watch, a thread of each member, which
 * needs no word of Gloo's for that: it polls second descriptors of the connections. Also for the communication thread.
 */
#include "coll/gloo_impl.h"

#include "base/clock.h"

#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#define WORD_MS 1000 /* at most, for the last word of a member whose connection has ended */
#define KNOWN_NS (3 * WORD_MS * INT64_C(1000000)) /* at most, until the watch knows why one has ended */
#define SELF_SEEN_US 20000 /* a death is seen by all: time for them to see it before this member goes, too */
#define TICK_MAX_MS 100

static int64_t now_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

bool gloo_thread(pthread_t *thread, void *(*main)(void *), void *arg)
{
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	bool made = !pthread_create(thread, NULL, main, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return made;
}

/* ---- failures ---- */

static void wake_watch(struct gloo_member *m)
{
	uint64_t one = 1;
	ssize_t n = write(m->wakes_watch, &one, sizeof(one));
	(void)n; /* EAGAIN: it is awake */
}

enum status gloo_status(struct gloo_member *m)
{
	pthread_mutex_lock(&m->mutex);
	enum status st = m->failure.status;
	pthread_mutex_unlock(&m->mutex);
	return st;
}

enum status gloo_break(struct gloo_member *m, enum gloo_end end, enum status st, uint64_t suspects, const char *text)
{
	pthread_mutex_lock(&m->mutex);
	if (m->failure.status == ST_OK) {
		coll_failure_set(&m->failure, st, suspects, text);
		m->phase = COLL_BROKEN;
		m->last_out = (struct gloo_last_word){
			.kind = end, .operations = m->completed, .status = st, .suspects = suspects
		};
		if (m->waits_for)
			shim_wake(m->waits_for);
		pthread_cond_broadcast(&m->changed);
		wake_watch(m);
	}
	st = m->failure.status;
	pthread_mutex_unlock(&m->mutex);
	return st;
}

/* The failure of this member when part s has told its own. Who has lost a part, or has waited for it, is not to blame
 * itself. */
static enum status relay(struct gloo_member *m, uint32_t s)
{
	const struct gloo_last_word *w = &m->peer[s].last_in;
	uint64_t parts = m->base.n_parts == 64 ? UINT64_MAX : gloo_bit(m->base.n_parts) - 1;
	uint64_t suspects = w->suspects & parts & ~gloo_bit(m->base.part);
	char text[SHIM_TEXT];
	if (suspects && (w->status == ST_STALLED || w->status == ST_UNAVAILABLE)) {
		snprintf(text, sizeof(text), "part %u could not go on: it has %s another part", s,
			 w->status == ST_STALLED ? "waited in vain for" : "lost");
		return gloo_break(m, GLOO_FAILED, (enum status)w->status, suspects, text);
	}
	snprintf(text, sizeof(text), "part %u %s", s, w->kind == GLOO_ABORTED ? "has aborted" : "could not go on");
	return gloo_break(m, GLOO_FAILED, ST_UNAVAILABLE, gloo_bit(s), text);
}

enum status gloo_blame(struct gloo_member *m, uint32_t s)
{
	const struct gloo_peer *p = &m->peer[s];
	char text[SHIM_TEXT];
	if (p->told && p->last_in.kind != GLOO_LEFT)
		return relay(m, s);
	snprintf(text, sizeof(text), "part %u %s", s, p->told ? "has left" : "has died, or its network is cut");
	return gloo_break(m, GLOO_FAILED, ST_UNAVAILABLE, gloo_bit(s), text);
}

void gloo_lost(struct gloo_member *m, uint32_t s, bool told)
{
	struct gloo_peer *p = &m->peer[s];
	pthread_mutex_lock(&m->mutex);
	p->gone = true;
	p->told = told;
	/* An operation that it has completed goes on without it: all that it had to send is here, or on its way. */
	bool matters = !told || m->phase != COLL_READY || m->begun == m->completed || m->begun > p->last_in.operations;
	pthread_cond_broadcast(&m->changed);
	pthread_mutex_unlock(&m->mutex);
	if (matters)
		gloo_blame(m, s);
}

void gloo_tell(struct gloo_member *m)
{
	for (uint32_t s = 0; s < m->base.n_parts; s++) {
		pthread_mutex_lock(&m->mutex);
		bool here = m->peer[s].joined && !m->peer[s].gone;
		pthread_mutex_unlock(&m->mutex);
		if (here)
			shim_send(m->last_words, s, GLOO_SLOT_LAST_WORD, 0, sizeof(m->last_out));
	}
}

/* ---- waits of the communication thread ---- */

enum status gloo_cut(struct gloo_member *m, uint32_t s)
{
	int64_t until = now_ns() + KNOWN_NS;
	struct timespec t = { until / CLOCK_NS_PER_S, until % CLOCK_NS_PER_S };
	pthread_mutex_lock(&m->mutex);
	while (m->failure.status == ST_OK && !m->peer[s].gone)
		if (pthread_cond_timedwait(&m->changed, &m->mutex, &t))
			break;
	pthread_mutex_unlock(&m->mutex);
	return gloo_blame(m, s);
}

/* Who holds these parts up: those that have told that they wait, too, pass the blame on. Under the mutex. */
static uint64_t find_silent(const struct gloo_member *m, uint64_t parts)
{
	uint64_t silent = parts, own = gloo_bit(m->base.part), passed = own;
	int64_t recent = now_ns() - m->stall_ns / 4 * 3;
	for (uint32_t round = 0; round < m->base.n_parts; round++)
		for (uint32_t s = 0; s < m->base.n_parts; s++)
			if (silent >> s & 1 && m->peer[s].waits_since_ns > recent) {
				passed |= gloo_bit(s);
				silent = (silent | m->peer[s].waits_for) & ~passed;
			}
	return silent ? silent : parts;
}

/* Which of these parts are not at work: they have not said so during stall_ns. *until: when the first of the others
 * will have said nothing for so long. Under the mutex. */
static uint64_t find_idle(const struct gloo_member *m, uint64_t parts, int64_t now, int64_t *until)
{
	uint64_t idle = 0;
	*until = INT64_MAX;
	for (uint32_t s = 0; s < m->base.n_parts; s++) {
		int64_t end = m->peer[s].worked_ns ? m->peer[s].worked_ns + m->stall_ns : 0;
		if (!(parts >> s & 1))
			continue;
		if (end <= now)
			idle |= gloo_bit(s);
		else if (end < *until)
			*until = end;
	}
	return idle;
}

static enum status give_up(struct gloo_member *m)
{
	char text[SHIM_TEXT];
	pthread_mutex_lock(&m->mutex);
	uint64_t suspects = m->stalled_by;
	pthread_mutex_unlock(&m->mutex);
	int n = snprintf(text, sizeof(text), "waited %" PRId64 " ms for part", m->stall_ns / 1000000);
	for (uint32_t s = 0; s < m->base.n_parts && n < (int)sizeof(text); s++)
		if (suspects >> s & 1)
			n += snprintf(text + n, sizeof(text) - (size_t)n, " %u", s);
	return gloo_break(m, GLOO_FAILED, ST_STALLED, suspects, text);
}

enum status gloo_wait(struct gloo_member *m, uint32_t s, struct shim_buffer *b, gloo_wait_fn *wait)
{
	for (;;) {
		pthread_mutex_lock(&m->mutex);
		enum status st = m->failure.status;
		m->waits_for = st == ST_OK ? b : NULL;
		m->waits_for_parts = gloo_bit(s);
		m->wait_since_ns = now_ns();
		m->wait_until_ns = m->wait_since_ns + m->stall_ns;
		m->stalled_by = 0;
		pthread_mutex_unlock(&m->mutex);
		if (st != ST_OK)
			return st;
		enum shim_result r = wait(b);
		pthread_mutex_lock(&m->mutex);
		st = m->failure.status;
		m->waits_for = NULL;
		bool stalled = m->stalled_by;
		pthread_mutex_unlock(&m->mutex);
		if (st != ST_OK || r == SHIM_DONE)
			return st;
		if (r == SHIM_BROKEN)
			return gloo_cut(m, s);
		if (stalled)
			return give_up(m);
	}
}

/* ---- the watch ---- */

/* Ends the connections: the others hear it, and Gloo's thread lets go. */
static void end_connections(struct gloo_member *m)
{
	pthread_mutex_lock(&m->mutex);
	bool lost = m->last_out.status == ST_UNAVAILABLE;
	pthread_mutex_unlock(&m->mutex);
	gloo_tell(m);
	if (lost)
		usleep(SELF_SEEN_US);
	for (uint32_t s = 0; s < m->base.n_parts; s++)
		if (m->peer[s].socket >= 0)
			shutdown(m->peer[s].socket, SHUT_RDWR);
	shim_context_break(m->context);
}

/* What the others are to hear, at most each quarter of the time after which they give up. Under the mutex. */
static bool is_to_tell_wait(const struct gloo_member *m, int64_t now)
{
	return m->waits_for && now - m->wait_since_ns > m->stall_ns / 2 && now - m->waiting_told_ns > m->stall_ns / 4;
}

static bool is_to_tell_work(const struct gloo_member *m, int64_t now)
{
	return m->phase == COLL_READY && m->worked != m->worked_told && now - m->working_told_ns > m->stall_ns / 4;
}

static void tell_all(struct gloo_member *m, struct shim_buffer *words)
{
	for (uint32_t s = 0; s < m->base.n_parts; s++)
		if (s != m->base.part && !m->peer[s].gone)
			shim_send(words, s, GLOO_SLOT_WAITING, 0, sizeof(struct gloo_waiting));
}

/* Ends a wait that is too long: those that hold it up are silent, and not at work. Under the mutex. */
static void judge_wait(struct gloo_member *m, int64_t now)
{
	if (now < m->wait_until_ns)
		return;
	m->stalled_by = find_idle(m, find_silent(m, m->waits_for_parts), now, &m->wait_until_ns);
	if (!m->stalled_by)
		return;
	m->wait_until_ns = INT64_MAX;
	shim_wake(m->waits_for);
}

/* Whether the watch goes on: neither broken nor left. */
static bool look(struct gloo_member *m, bool *broken)
{
	bool waits = false, works = false;
	int64_t now = now_ns();
	pthread_mutex_lock(&m->mutex);
	*broken = m->failure.status != ST_OK;
	bool goes_on = !*broken && !m->stopping;
	if (goes_on && is_to_tell_wait(m, now)) {
		waits = true;
		m->waiting_told_ns = now;
		m->waiting_out = (struct gloo_waiting){ m->waits_for_parts, ++m->n_told };
	}
	if (goes_on && is_to_tell_work(m, now)) {
		works = true;
		m->working_told_ns = now;
		m->worked_told = m->worked;
		m->working_out = (struct gloo_waiting){ 0, ++m->n_told };
	}
	if (goes_on && m->waits_for)
		judge_wait(m, now);
	pthread_mutex_unlock(&m->mutex);
	if (waits)
		tell_all(m, m->waiting_words);
	if (works)
		tell_all(m, m->working_words);
	return goes_on;
}

/* Hears who waits, and who is at work. What is received is looked at first: a wait for what has not come would end all
 * connections. */
static void listen_to(struct gloo_member *m, struct gloo_peer *p)
{
	if (p->gone || __atomic_load_n(&p->waiting_in.times, __ATOMIC_ACQUIRE) == p->heard ||
	    !shim_received(p->waiting, WORD_MS)) /* half a word: its sender may have died in it */
		return;
	pthread_mutex_lock(&m->mutex);
	if (p->waiting_in.parts) {
		p->waits_since_ns = now_ns();
		p->waits_for = p->waiting_in.parts;
	} else {
		p->worked_ns = now_ns();
	}
	pthread_mutex_unlock(&m->mutex);
	p->heard = p->waiting_in.times;
	shim_recv(p->waiting, p->part, GLOO_SLOT_WAITING, 0, sizeof(p->waiting_in));
}

/* Whether the last word of a member whose connection has ended is here. */
static bool has_told(struct shim_buffer *last)
{
	bool told = shim_received(last, WORD_MS);
	return told ? told : shim_received(last, WORD_MS); /* the first may be woken by what the join has left */
}

static void *watch(void *arg)
{
	struct gloo_member *m = arg;
	struct pollfd fds[COLL_MAX_PARTS + 1];
	uint32_t n = m->base.n_parts;
	int tick = m->stall_ns / 8 < TICK_MAX_MS * INT64_C(1000000) ? (int)(m->stall_ns / 8000000) + 1 : TICK_MAX_MS;
	bool broken;
	for (uint32_t s = 0; s < n; s++)
		fds[s] = (struct pollfd){ .fd = m->peer[s].socket, .events = POLLRDHUP };
	fds[n] = (struct pollfd){ .fd = m->wakes_watch, .events = POLLIN };
	while (look(m, &broken)) {
		for (uint32_t s = 0; s < n; s++)
			if (s != m->base.part)
				listen_to(m, &m->peer[s]);
		if (poll(fds, n + 1, tick) <= 0)
			continue;
		if (fds[n].revents)
			continue; /* stays readable: it is the last round */
		for (uint32_t s = 0; s < n; s++)
			if (fds[s].revents) {
				fds[s].fd = -1;
				gloo_lost(m, s, has_told(m->peer[s].last));
			}
	}
	if (broken)
		end_connections(m);
	return NULL;
}

bool gloo_watch_start(struct gloo_member *m)
{
	m->watched = gloo_thread(&m->watch, watch, m);
	return m->watched;
}

void gloo_watch_stop(struct gloo_member *m)
{
	pthread_mutex_lock(&m->mutex);
	m->stopping = true;
	pthread_mutex_unlock(&m->mutex);
	wake_watch(m);
	if (m->watched)
		pthread_join(m->watch, NULL);
	m->watched = false;
}
