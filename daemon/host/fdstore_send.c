/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to the service manager. They wait in a queue while its socket is full, and only a few descriptors are in
 * flight: a manager that does not read delays new jobs, but neither the loop nor the engines of other jobs. Loop
 * thread. */
#include "host/fdstore_impl.h"

#include "base/log.h"
#include "base/packet.h"
#include "proto/failpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STUCK_NS (INT64_C(5) * 1000000000)

/* Descriptors that go to the store together. At the head of the queue some of them are on their way, with a barrier
 * behind them. */
struct fdstore_request {
	struct fdstore_request *next;
	struct fdstore *store;
	struct fdstore_request **handle; /* the owner's; NULL: cancelled */
	struct fdstore_fd *item;
	size_t n, sent, settled; /* the manager has read `settled` */
	fdstore_done *done;
	void *arg;
	uv_poll_t barrier;
	int barrier_fd; /* -1: none is on its way */
	bool dropped;	/* by fdstore_close */
};

/* ---- one message ---- */

enum sent { SENT, LATER, FAILED };

static void on_writable(uv_poll_t *h, int status, int events);

static void watch(struct fdstore *f)
{
	if (f->started && !f->watching)
		uv_poll_start(&f->writable, UV_WRITABLE, on_writable);
	f->watching = f->started;
}

/* LATER without a watch: too many descriptors of our user are in flight, or the kernel has no memory. fdstore_tick
 * tries again. */
static enum sent after_error(struct fdstore *f, const char *text, int error)
{
	if (error == EAGAIN) {
		watch(f);
		return LATER;
	}
	if (error == ETOOMANYREFS || error == ENOBUFS || error == ENOMEM)
		return LATER;
	log_error("service manager: %.*s: %s", (int)strcspn(text, "\n"), text, strerror(error));
	return FAILED;
}

/* fd -1: without a descriptor. */
static enum sent send_now(struct fdstore *f, const char *text, int fd)
{
	int r = packet_send(f->fd, text, (uint32_t)strlen(text), NULL, 0, &fd, fd >= 0);
	if (r)
		return after_error(f, text, -r);
	f->stuck_since_ns = 0;
	return SENT;
}

/* ---- messages without a descriptor: at once or, in their order, when there is room ---- */

static enum status queue_text(struct fdstore *f, const char *text)
{
	struct fdstore_text *t = malloc(sizeof(*t) + strlen(text) + 1);
	if (!t)
		return ST_NO_MEMORY;
	t->next = NULL;
	strcpy(t->text, text);
	*f->text_tail = t;
	f->text_tail = &t->next;
	return ST_OK;
}

static enum status tell(struct fdstore *f, const char *text)
{
	if (f->fd < 0)
		return ST_OK;
	enum sent s = f->text ? LATER : send_now(f, text, -1);
	return s == SENT ? ST_OK : s == FAILED ? ST_UNAVAILABLE : queue_text(f, text);
}

/* false: there is no room for more. */
static bool send_texts(struct fdstore *f)
{
	while (f->text) {
		struct fdstore_text *t = f->text;
		if (send_now(f, t->text, -1) == LATER)
			return false;
		f->text = t->next;
		if (!f->text)
			f->text_tail = &f->text;
		free(t);
	}
	if (f->watchdog_due && send_now(f, "WATCHDOG=1\n", -1) == LATER)
		return false;
	f->watchdog_due = false;
	return true;
}

void fdstore_starting(struct fdstore *f, int64_t now_ns)
{
	if (f->fd < 0 || now_ns < f->next_starting_ns)
		return;
	f->next_starting_ns = now_ns + INT64_C(1000000000);
	send_now(f, "EXTEND_TIMEOUT_USEC=60000000\n", -1);
}

enum status fdstore_ready(struct fdstore *f)
{
	return tell(f, "READY=1\n");
}

enum status fdstore_stopping(struct fdstore *f)
{
	return tell(f, "STOPPING=1\n");
}

/* Several that wait would say no more than one. */
enum status fdstore_watchdog(struct fdstore *f)
{
	if (f->fd < 0)
		return ST_OK;
	enum sent s = f->text ? LATER : send_now(f, "WATCHDOG=1\n", -1);
	f->watchdog_due = s == LATER;
	return s == FAILED ? ST_UNAVAILABLE : ST_OK;
}

enum status fdstore_remove(struct fdstore *f, const char *name)
{
	char text[128];
	if (!fdstore_valid_name(name, strlen(name)))
		return ST_INVALID_ARGUMENT;
	snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=%s\n", name);
	return tell(f, text);
}

/* ---- descriptors ---- */

static void request_free(struct fdstore_request *r)
{
	if (r->barrier_fd >= 0)
		close(r->barrier_fd);
	free(r->item);
	free(r);
}

static void take_off(struct fdstore *f, struct fdstore_request *r)
{
	struct fdstore_request **at = &f->request;
	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	if (f->request_tail == &r->next)
		f->request_tail = at;
	if (r->handle)
		*r->handle = NULL;
}

/* No barrier of it is on its way. */
static void end_request(struct fdstore_request *r, enum status st)
{
	struct fdstore *f = r->store;
	bool cancelled = !r->handle;
	take_off(f, r);
	for (size_t i = 0; i < r->sent && cancelled; i++)
		fdstore_remove(f, r->item[i].name);
	if (!cancelled)
		r->done(r->arg, st);
	request_free(r);
}

static void pump(struct fdstore *f);

/* The manager has closed the barrier's other end: it has read all that came before. */
static void on_barrier_closed(uv_handle_t *h)
{
	struct fdstore_request *r = h->data;
	struct fdstore *f = r->store; /* gone when dropped */
	if (r->dropped) {
		request_free(r);
		return;
	}
	close(r->barrier_fd);
	r->barrier_fd = -1;
	r->settled = r->sent;
	f->stuck_since_ns = 0;
	if (r->sent == r->n)
		end_request(r, ST_OK);
	pump(f);
}

static void on_barrier(uv_poll_t *h, int status, int events)
{
	if (!uv_is_closing((uv_handle_t *)h))
		uv_close((uv_handle_t *)h, on_barrier_closed);
}

/* The pipe's one end goes to the manager, which closes it: then nobody holds it. */
static enum sent send_barrier(struct fdstore_request *r)
{
	int p[2];
	if (FAILPOINT_ERROR(gaccd_barrier_before))
		return FAILED;
	if (pipe2(p, O_CLOEXEC | O_NONBLOCK)) {
		log_error("service manager: no barrier: %s", strerror(errno));
		return FAILED;
	}
	enum sent s = send_now(r->store, "BARRIER=1", p[1]);
	close(p[1]);
	if (s != SENT || uv_poll_init(r->store->writable.loop, &r->barrier, p[0])) {
		close(p[0]);
		return s == SENT ? FAILED : s;
	}
	r->barrier_fd = p[0];
	uv_poll_start(&r->barrier, UV_READABLE, on_barrier);
	return SENT;
}

static enum sent send_item(struct fdstore_request *r)
{
	char text[128];
	const struct fdstore_fd *item = &r->item[r->sent];
	if (FAILPOINT_ERROR(gaccd_fdstore_before))
		return FAILED;
	/* FDPOLL=0: systemd would drop a descriptor that polls as hung up. */
	snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=%s\nFDPOLL=0\n", item->name);
	enum sent s = send_now(r->store, text, item->fd);
	FAILPOINT(gaccd_fdstore_after);
	r->sent += s == SENT;
	return s;
}

/* The next descriptors of the first request, and their barrier. */
static enum sent advance(struct fdstore_request *r)
{
	enum sent s = SENT;
	if (r->barrier_fd >= 0)
		return LATER;
	while (s == SENT && r->sent < r->n && r->sent - r->settled < FDSTORE_IN_FLIGHT)
		s = send_item(r);
	return s == SENT ? send_barrier(r) : s;
}

static void pump(struct fdstore *f)
{
	if (!send_texts(f))
		return;
	while (f->request && advance(f->request) == FAILED)
		end_request(f->request, ST_UNAVAILABLE);
}

static void on_writable(uv_poll_t *h, int status, int events)
{
	struct fdstore *f = h->data;
	uv_poll_stop(h);
	f->watching = false;
	pump(f);
}

void fdstore_keep(struct fdstore *f, struct fdstore_fd *item, size_t n, fdstore_done *done, void *arg,
		  struct fdstore_request **handle)
{
	bool ok = f->started;
	for (size_t i = 0; i < n && ok; i++)
		ok = fdstore_valid_name(item[i].name, strlen(item[i].name));
	struct fdstore_request *r = ok ? calloc(1, sizeof(*r)) : NULL;
	*handle = r;
	if (!r) {
		free(item);
		done(arg, !f->started ? ST_UNAVAILABLE : ok ? ST_NO_MEMORY : ST_INVALID_ARGUMENT);
		return;
	}
	*r = (struct fdstore_request){
		.store = f, .handle = handle, .item = item, .n = n, .done = done, .arg = arg, .barrier_fd = -1
	};
	r->barrier.data = r;
	*f->request_tail = r;
	f->request_tail = &r->next;
	pump(f);
}

/* What is on its way stays so until the manager has read it: only then may as much of another request follow. */
void fdstore_cancel(struct fdstore_request *r)
{
	if (!r)
		return;
	struct fdstore *f = r->store;
	*r->handle = NULL;
	r->handle = NULL;
	r->n = r->sent;
	if (r->sent == r->settled)
		end_request(r, ST_OK);
	pump(f);
}

/* ---- life ---- */

enum status fdstore_start(struct fdstore *f, void *loop)
{
	if (f->fd < 0)
		return ST_OK;
	if (uv_poll_init(loop, &f->writable, f->fd))
		return ST_IO_ERROR;
	f->writable.data = f;
	f->started = true;
	if (f->text)
		watch(f);
	return ST_OK;
}

void fdstore_tick(struct fdstore *f, int64_t now_ns)
{
	if (!f->text && !f->request && !f->watchdog_due) {
		f->stuck_since_ns = 0;
	} else {
		if (!f->stuck_since_ns)
			f->stuck_since_ns = now_ns;
		if (f->started && !f->watching)
			pump(f);
	}
	bool stuck = f->stuck_since_ns && now_ns - f->stuck_since_ns > STUCK_NS;
	if (stuck && !f->told)
		log_warn("the service manager has not read its socket for 5 s: jobs that begin wait until it has their "
			 "memory, others go on");
	else if (f->told && !f->stuck_since_ns)
		log_notice("the service manager reads its socket again");
	f->told = stuck || (f->told && f->stuck_since_ns);
}

static void on_closed(uv_handle_t *h)
{
	struct fdstore *f = h->data;
	if (f->fd >= 0)
		close(f->fd);
	free(f);
}

void fdstore_close(struct fdstore *f)
{
	if (!f)
		return;
	while (f->request) {
		struct fdstore_request *r = f->request;
		take_off(f, r);
		r->dropped = true;
		if (r->barrier_fd < 0)
			request_free(r);
		else
			on_barrier(&r->barrier, 0, 0);
	}
	while (f->text) {
		struct fdstore_text *t = f->text;
		f->text = t->next;
		free(t);
	}
	f->writable.data = f;
	if (f->started)
		uv_close((uv_handle_t *)&f->writable, on_closed);
	else
		on_closed((uv_handle_t *)&f->writable);
}
