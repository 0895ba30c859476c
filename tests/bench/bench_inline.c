/* SPDX-License-Identifier: Apache-2.0 */
/* A gradient that travels inline: goal C5.
 *
 *   bench_inline [-r rounds, 5..101] [-m MB of the gradient, default 64]
 *
 * A push of one rank in chunks of 1, 2 and 4 MB, by reference, acknowledged once it is added, against the same bytes
 * through a client stream of gRPC core that discards them, plus one copy of them by one thread, plus one add of them by
 * the engine's kernels and threads. A round measures all four, one after the other.
 */
#include "bare.h"
#include "bench.h"
#include "memory.h"
#include "trainer.h"
#include "gacc/v1/gradient.pb-c.h"
#include "lib/channel.h"
#include "lib/internal.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MB ((size_t)1 << 20)
#define MICRO_SIZE 4096 /* never reached: the window stays open */

struct setup {
	struct bench_daemon daemon;
	struct bare bare;
	struct trainer trainer;
	struct memory_limits *limits;
	struct bench_group group;
	size_t bytes;
	uint32_t micro; /* the next one */
	const unsigned char *data;
};

static void nothing(void *arg)
{
}

static void must(enum status st, const char *what)
{
	if (st)
		bench_die("%s: %s", what, status_info(st)->name);
}

/* libgacc's own chunks have one size; this sends the same messages with another. */
static void push(struct setup *s, size_t chunk)
{
	const struct gacc_job *job = s->trainer.job;
	struct push header = { .window = job->window.number,
			       .micro = s->micro++,
			       .weight = 8,
			       .loss = 1,
			       .loss_scale = job->window.loss_scale };
	Gacc__V1__PushInlineRequest msg = GACC__V1__PUSH_INLINE_REQUEST__INIT;
	Gacc__V1__PushRequest request;
	const ProtobufCMessage *answer = NULL;
	struct rpc_failure failure;
	struct rpc_stream *stream;
	push_to_wire(job, &header, &request);
	msg.header = &request;
	must(rpc_stream_open(job->client->channel, &gacc__v1__gradient_service__descriptor, "PushInline", 60000, 0,
			     &stream),
	     "PushInline");
	for (size_t at = 0; at < s->bytes; at += chunk) {
		size_t left = s->bytes - at;
		msg.offset = at;
		must(rpc_stream_send_bulk(stream, &msg.base, BYTES_BULK_FIELD, s->data + at,
					  left < chunk ? left : chunk, nothing, NULL),
		     "send");
		msg.header = NULL;
	}
	must(rpc_stream_close_send(stream), "close");
	must(rpc_stream_next(stream, -1, &answer, NULL), "answer");
	if (!answer && rpc_stream_finish(stream, &failure))
		bench_die("PushInline: %s", failure.message);
	rpc_stream_free(stream);
}

static double time_of(struct setup *s, double *cpu, void (*run)(struct setup *, size_t), size_t chunk)
{
	double start = bench_seconds(), used = bench_group_cpu(&s->group);
	run(s, chunk);
	*cpu += bench_group_cpu(&s->group) - used;
	return bench_seconds() - start;
}

static void stream(struct setup *s, size_t chunk)
{
	bare_stream(&s->bare, s->bytes, chunk);
}

static void copy_and_add(struct setup *s, size_t chunk)
{
	memory_limits_time(s->limits, MEMORY_COPY);
	memory_limits_time(s->limits, MEMORY_ADD);
}

static void measure(struct setup *s, size_t chunk, size_t rounds)
{
	static const char format[] = "inline push of %zu MB, chunks of %zu MB";
	struct bench_row *row = calloc(1, sizeof(*row));
	struct bench_row *alone = calloc(1, sizeof(*row));
	*row = (struct bench_row){ .id = "C5",
				   .limit_name = "bare stream, copy, add",
				   .unit = "ms",
				   .factor = 1e3,
				   .goal = 0.85,
				   .goal_is_floor = true,
				   .rounds = rounds };
	*alone = (struct bench_row){ .id = "C5",
				     .limit_name = "bare stream alone",
				     .unit = "ms",
				     .factor = 1e3,
				     .goal_is_floor = true,
				     .rounds = rounds };
	snprintf(row->what, sizeof(row->what), format, s->bytes / MB, chunk / MB);
	snprintf(alone->what, sizeof(alone->what), format, s->bytes / MB, chunk / MB);
	for (size_t i = 0; i <= rounds; i++) {
		size_t at = i ? i - 1 : 0; /* the first round warms up */
		struct bench_watch watch = bench_watch_start(&s->group);
		double ours_cpu = 0, limit_cpu = 0;
		row->ours[at] = alone->ours[at] = time_of(s, &ours_cpu, push, chunk);
		alone->limit[at] = time_of(s, &limit_cpu, stream, chunk);
		alone->limit_cpu[at] = limit_cpu;
		row->limit[at] = alone->limit[at] + time_of(s, &limit_cpu, copy_and_add, chunk);
		row->limit_cpu[at] = limit_cpu;
		row->ours_cpu[at] = alone->ours_cpu[at] = ours_cpu;
		row->foreign[at] = alone->foreign[at] = bench_watch_foreign(&watch, &s->group);
	}
	bench_row_print(row);
	bench_row_print(alone);
	free(row);
	free(alone);
}

int main(int argc, char **argv)
{
	struct setup s = { .bytes = 64 * MB };
	size_t rounds = 9;
	unsigned threads = (unsigned)sysconf(_SC_NPROCESSORS_ONLN);
	for (int o; (o = getopt(argc, argv, "r:m:")) != -1;) {
		if (o == 'r')
			rounds = strtoul(optarg, NULL, 10);
		else if (o == 'm')
			s.bytes = strtoul(optarg, NULL, 10) * MB;
		else
			return 2;
	}
	if (rounds < 5 || rounds > BENCH_MAX_ROUNDS || s.bytes == 0)
		bench_die("rounds 5..%d, at least 1 MB", BENCH_MAX_ROUNDS);
	mallopt(M_TRIM_THRESHOLD, 64 << 20);
	mallopt(M_MMAP_THRESHOLD, 1 << 30);
	bare_start(&s.bare);
	bench_daemon_start(&s.daemon, threads);
	s.limits = memory_limits_new(s.bytes / sizeof(float), threads);
	s.data = memory_limits_data(s.limits);
	trainer_open(&s.trainer, &(struct trainer_options){ .endpoint = s.daemon.endpoint,
							    .name = "inline",
							    .optimizer = "sgd",
							    .ranks = 1,
							    .micro_size = MICRO_SIZE,
							    .inlined = true,
							    .n_elements = s.bytes / sizeof(float),
							    .n_tensors = 1 });
	s.group = bench_daemon_group(&s.daemon);
	s.group.pid[s.group.n++] = s.bare.server;
	s.group.pid[s.group.n++] = s.bare.client;
	bench_table_head();
	for (size_t chunk = MB; chunk <= 4 * MB; chunk *= 2)
		measure(&s, chunk, rounds);
	trainer_close(&s.trainer);
	memory_limits_free(s.limits);
	bench_daemon_stop(&s.daemon);
	bare_stop(&s.bare);
	return 0;
}
