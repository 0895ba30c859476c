/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the turns of gaccd's event loop, for GetNode and the log. A turn is long because of what one request
 * costs, or because many come at once; either way no other call was served meanwhile. Loop thread. */
#include "edge/turns.h"

#include "base/log.h"

#include <inttypes.h>

#define BUCKET_NS UINT64_C(1000000000)
#define LONG_TURN_NS UINT64_C(50000000) /* worth a line in the log, at debug */

static void note(struct turns *t, uint64_t turn_ns, uint64_t now_ns)
{
	if (now_ns - t->bucket_began_ns >= BUCKET_NS) {
		t->bucket_ns[1] = now_ns - t->bucket_began_ns >= 2 * BUCKET_NS ? 0 : t->bucket_ns[0];
		t->bucket_ns[0] = 0;
		t->bucket_began_ns = now_ns;
	}
	if (turn_ns > t->bucket_ns[0])
		t->bucket_ns[0] = turn_ns;
	if (turn_ns > t->longest_ns)
		t->longest_ns = turn_ns;
	if (turn_ns > LONG_TURN_NS)
		log_debug("a turn of the event loop took %" PRIu64 " ms", turn_ns / 1000000);
}

/* Comes before each wait. Callbacks of sockets run inside of libuv's poll, so the waiting is taken off. */
static void on_prepare(uv_prepare_t *h)
{
	struct turns *t = h->data;
	uint64_t now_ns = uv_hrtime(), idle_ns = uv_metrics_idle_time(h->loop);
	note(t, now_ns - t->last_ns - (idle_ns - t->last_idle_ns), now_ns);
	t->last_ns = now_ns;
	t->last_idle_ns = idle_ns;
}

void turns_start(struct turns *t, uv_loop_t *loop)
{
	uv_loop_configure(loop, UV_METRICS_IDLE_TIME);
	uv_prepare_init(loop, &t->prepare);
	t->prepare.data = t;
	t->last_ns = t->bucket_began_ns = uv_hrtime();
	t->last_idle_ns = uv_metrics_idle_time(loop);
	uv_prepare_start(&t->prepare, on_prepare);
	uv_unref((uv_handle_t *)&t->prepare);
}

uint64_t turns_recent_ns(const struct turns *t)
{
	uint64_t age_ns = uv_hrtime() - t->bucket_began_ns;
	uint64_t a = age_ns >= 2 * BUCKET_NS ? 0 : t->bucket_ns[0], b = age_ns >= BUCKET_NS ? 0 : t->bucket_ns[1];
	return a > b ? a : b;
}
