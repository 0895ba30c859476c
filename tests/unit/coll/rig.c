/* SPDX-License-Identifier: Apache-2.0 */
/* Members on threads of their own, and operations that check what they have received: for the tests of coll.h. */
#include "rig.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SECOND_NS INT64_C(1000000000)

static int64_t read_clock(clockid_t id)
{
	struct timespec t;
	clock_gettime(id, &t);
	return t.tv_sec * SECOND_NS + t.tv_nsec;
}

int64_t now_ns(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

/* splitmix64 */
static uint64_t mix(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

uint64_t draw(uint64_t *seed, uint64_t below)
{
	*seed = mix(*seed);
	return *seed % below;
}

void dawdle(uint64_t *seed)
{
	if (!*seed || draw(seed, 4))
		return;
	struct timespec t = { 0, (long)draw(seed, 300000) };
	nanosleep(&t, NULL);
}

/* ---- members ---- */

static struct coll_net *new_net(void)
{
#ifdef OVER_GLOO
	struct coll_gloo_config config = { .address = "127.0.0.1" };
	return coll_gloo_new(&config, NULL);
#else
	return coll_local_new();
#endif
}

void rig_open(struct rig *r, uint32_t n)
{
	if (!r->net) {
		r->net = new_net();
		ck_assert_ptr_nonnull(r->net);
		r->board = board_new();
	}
	r->id.k++;
	r->n = n;
	ck_assert_int_eq(board_open(r->board, &r->id, n), ST_OK);
	for (uint32_t s = 0; s < n; s++) {
		r->life[s] = r->life[s] ? r->life[s] : mix(s + 1);
		struct coll_config config = { .id = r->id,
					      .part = s,
					      .n_parts = n,
					      .life = r->life[s],
					      .small = RIG_SMALL,
					      .stall_ns = r->stall_ns ? r->stall_ns : 60 * SECOND_NS,
					      .join_ns = r->join_ns ? r->join_ns : 60 * SECOND_NS };
		if (s == 0 && r->first_stall_ns)
			config.stall_ns = r->first_stall_ns;
		if (s == 0 && r->first_join_ns)
			config.join_ns = r->first_join_ns;
		ck_assert_int_eq(coll_open(r->net, &config, &r->member[s], NULL), ST_OK);
		size_t n_blob;
		const void *blob = coll_blob(r->member[s], &n_blob);
		ck_assert_int_eq(board_put(r->board, &r->id, s, r->life[s], blob, n_blob), ST_OK);
	}
	uint32_t n_all = 0;
	r->all = board_addresses(r->board, &r->id, &n_all);
	ck_assert_ptr_nonnull(r->all);
	ck_assert_uint_eq(n_all, n);
}

struct start {
	struct actor *a;
	actor_fn *fn;
};

static void *thread_main(void *arg)
{
	struct start *s = arg;
	int64_t begin = now_ns();
	s->fn(s->a);
	s->a->took_ns = now_ns() - begin;
	s->a->cpu_ns = read_clock(CLOCK_THREAD_CPUTIME_ID);
	free(s);
	return NULL;
}

void rig_start(struct rig *r, struct actor *a, pthread_t *thread, actor_fn *fn, uint64_t seed, void *arg)
{
	for (uint32_t s = 0; s < r->n; s++) {
		a[s] = (struct actor){
			.rig = r, .c = r->member[s], .part = s, .seed = seed ? mix(seed * 64 + s) : 0, .arg = arg
		};
		struct start *start = malloc(sizeof(*start));
		*start = (struct start){ &a[s], fn };
		ck_assert_int_eq(pthread_create(&thread[s], NULL, thread_main, start), 0);
	}
}

void rig_wait(struct rig *r, pthread_t *thread)
{
	for (uint32_t s = 0; s < r->n; s++)
		ck_assert_int_eq(pthread_join(thread[s], NULL), 0);
}

void rig_run(struct rig *r, struct actor *a, actor_fn *fn, uint64_t seed, void *arg)
{
	pthread_t thread[COLL_MAX_PARTS];
	rig_start(r, a, thread, fn, seed, arg);
	rig_wait(r, thread);
}

void act_join(struct actor *a)
{
	a->status = coll_join(a->c, a->rig->all);
}

void act_barrier(struct actor *a)
{
	a->status = coll_barrier(a->c);
}

void rig_join(struct rig *r)
{
	struct actor a[COLL_MAX_PARTS];
	rig_run(r, a, act_join, 0, NULL);
	for (uint32_t s = 0; s < r->n; s++)
		ck_assert_int_eq(a[s].status, ST_OK);
}

void rig_leave(struct rig *r)
{
	for (uint32_t s = 0; s < r->n; s++) {
		coll_leave(r->member[s]);
		r->member[s] = NULL;
	}
}

void rig_close(struct rig *r)
{
	rig_leave(r);
	coll_net_free(r->net);
	board_free(r->board);
}

/* ---- data ---- */

/* Magnitudes over seven decades: what is small is lost, or not, depending on what was added before. */
float value_of(uint32_t part, uint64_t i, uint64_t salt)
{
	uint64_t h = mix(salt + mix(i * COLL_MAX_PARTS + part));
	float f = (float)(h >> 40) / 16777216.0f - 0.5f;
	for (unsigned times = h % 8; times; times--)
		f *= 10.0f;
	return f;
}

float sum_in_order(uint32_t n, uint64_t i, uint64_t salt)
{
	float sum = value_of(0, i, salt);
	for (uint32_t s = 1; s < n; s++)
		sum += value_of(s, i, salt);
	return sum;
}

void shape_draw(struct shape *shape, uint32_t n, uint32_t element, uint64_t seed)
{
	static const uint64_t pieces[] = { 8, 24, 64, 1000, 4096, 1 << 20 };
	memset(shape, 0, sizeof(*shape));
	shape->salt = draw(&seed, 1000);
	shape->piece = pieces[draw(&seed, sizeof(pieces) / sizeof(*pieces))];
	for (uint32_t s = 0; s < n; s++) {
		uint64_t most = shape->piece < 64 ? 40 * shape->piece : 12 * 1000;
		uint64_t bytes = draw(&seed, 4) ? draw(&seed, most / element) * element : 0;
		shape->bounds[s + 1] = shape->bounds[s] + bytes;
	}
}

static void wrong(struct actor *a, const char *what)
{
	a->wrong = a->wrong ? a->wrong : what;
}

/* ---- exchange ---- */

struct summing {
	struct actor *a;
	const struct shape *shape;
	float *out; /* of the arena */
	uint64_t next;
};

static enum status sum(void *arg, const struct coll_piece *p, const void *const *source, uint32_t n)
{
	struct summing *t = arg;
	const uint64_t *bounds = t->shape->bounds;
	uint64_t left = bounds[t->a->part + 1] - t->next;
	if (p->from != t->next || p->n != (left < t->shape->piece ? left : t->shape->piece) || p->stream)
		wrong(t->a, "not the next piece");
	if (n != t->a->rig->n)
		wrong(t->a, "not as many sources as parts");
	t->next += p->n;
	dawdle(&t->a->seed);
	float *out = t->out + p->from / sizeof(float);
	memcpy(out, source[0], p->n);
	for (uint32_t s = 1; s < n; s++)
		for (uint64_t i = 0; i < p->n / sizeof(float); i++)
			out[i] += ((const float *)source[s])[i];
	return ST_OK;
}

enum status do_exchange(struct actor *a, const struct shape *shape)
{
	uint32_t n = a->rig->n;
	uint64_t bytes = shape->bounds[n], from = shape->bounds[a->part], to = shape->bounds[a->part + 1];
	float *in = malloc(bytes + 1), *out = malloc(bytes + 1);
	struct summing t = { a, shape, out, from };
	for (uint64_t i = 0; i < bytes / sizeof(float); i++)
		in[i] = value_of(a->part, i, shape->salt);
	struct coll_exchange x = { in, shape->bounds, shape->piece, sizeof(float), sum, &t, NULL };
	dawdle(&a->seed);
	enum status st = coll_exchange(a->c, &x);
	if (st == ST_OK && t.next != to)
		wrong(a, "not all pieces were summed");
	for (uint64_t i = from / sizeof(float); st == ST_OK && i < to / sizeof(float); i++) {
		float want = sum_in_order(n, i, shape->salt);
		if (memcmp(&want, &out[i], sizeof(want)))
			wrong(a, "not the bits of the sum in part order");
	}
	for (uint64_t i = 0; i < bytes / sizeof(float); i++)
		if (in[i] != value_of(a->part, i, shape->salt))
			wrong(a, "`in` was changed");
	free(in);
	free(out);
	return st;
}

/* As an exchange of a part that alone has a share, of one piece. */
enum status do_sum_small(struct actor *a, uint64_t n, uint64_t salt)
{
	struct shape shape = { .piece = n, .salt = salt };
	shape.bounds[a->part + 1] = n;
	float in[RIG_SMALL / sizeof(float)], out[RIG_SMALL / sizeof(float)];
	struct summing t = { a, &shape, out, 0 };
	for (uint64_t i = 0; i < n / sizeof(float); i++)
		in[i] = value_of(a->part, i, salt);
	struct coll_sum_small x = { in, n, sizeof(float), sum, &t };
	dawdle(&a->seed);
	enum status st = coll_sum_small(a->c, &x);
	if (st == ST_OK && t.next != n)
		wrong(a, "it was not summed");
	for (uint64_t i = 0; st == ST_OK && i < n / sizeof(float); i++) {
		float want = sum_in_order(a->rig->n, i, salt);
		if (memcmp(&want, &out[i], sizeof(want)))
			wrong(a, "not the bits of the small sum in part order");
	}
	return st;
}

/* ---- gather, broadcast ---- */

static unsigned char byte_of(uint64_t i, uint64_t salt)
{
	return (unsigned char)mix(i + salt * 7919);
}

struct producing {
	struct actor *a;
	const struct shape *shape;
	unsigned char *buffer;
	uint64_t next;
};

static enum status produce(void *arg, const struct coll_piece *p)
{
	struct producing *t = arg;
	uint64_t left = t->shape->bounds[t->a->part + 1] - t->next;
	if (p->from != t->next || p->n != (left < t->shape->piece ? left : t->shape->piece))
		wrong(t->a, "not the next piece to produce");
	t->next += p->n;
	dawdle(&t->a->seed);
	for (uint64_t i = p->from; i < p->from + p->n; i++)
		t->buffer[i] = byte_of(i, t->shape->salt);
	return ST_OK;
}

static void check_bytes(struct actor *a, const unsigned char *buffer, uint64_t n, uint64_t salt)
{
	for (uint64_t i = 0; i < n; i++)
		if (buffer[i] != byte_of(i, salt))
			wrong(a, "a byte that the others have not sent");
}

/* Every second member has produced before, by the salt. */
enum status do_gather(struct actor *a, const struct shape *shape)
{
	uint64_t bytes = shape->bounds[a->rig->n], from = shape->bounds[a->part], to = shape->bounds[a->part + 1];
	unsigned char *buffer = malloc(bytes + 1);
	bool before = (a->part + shape->salt) % 2;
	memset(buffer, 0, bytes + 1);
	for (uint64_t i = from; before && i < to; i++)
		buffer[i] = byte_of(i, shape->salt);
	struct producing t = { a, shape, buffer, from };
	struct coll_gather g = { .buffer = buffer, .bounds = shape->bounds, .piece = shape->piece, .arg = &t };
	g.produce = before ? NULL : produce;
	dawdle(&a->seed);
	enum status st = coll_gather(a->c, &g);
	if (st == ST_OK)
		check_bytes(a, buffer, bytes, shape->salt);
	free(buffer);
	return st;
}

enum status do_broadcast(struct actor *a, const struct shape *shape, uint32_t root)
{
	uint64_t bytes = shape->bounds[a->rig->n];
	unsigned char *buffer = malloc(bytes + 1);
	memset(buffer, 0, bytes + 1);
	for (uint64_t i = 0; a->part == root && i < bytes; i++)
		buffer[i] = byte_of(i, shape->salt);
	dawdle(&a->seed);
	enum status st = coll_broadcast(a->c, buffer, bytes, root);
	if (st == ST_OK)
		check_bytes(a, buffer, bytes, shape->salt);
	free(buffer);
	return st;
}
