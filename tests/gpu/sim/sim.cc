/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the blocks of a launch as fibers, in the order that the seed draws, and lets stores arrive late: sim.h says what
 * is promised. Compiled into each shared object of kernels. A launch uses the state of its thread alone. */
#include "fiber.h"
#include "on_host.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

thread_local sim_index threadIdx, blockIdx, blockDim, gridDim;

#define EXPORT __attribute__((visibility("default")))
extern "C" {
EXPORT uint64_t sim_seed;
EXPORT int sim_weak;
EXPORT int64_t sim_kill_after = -1;
EXPORT void (*sim_on_kill)(void);
EXPORT uint64_t sim_effects;
}

namespace
{
const size_t STACK = 64 * 1024;
const unsigned WARP = 32, MAX_WARPS = SIM_MAX_THREADS / WARP, MAX_HELD = 12, MAX_DECLARED = 8;

enum state { READY, AT_BARRIER, AT_WARP, DONE };

struct held {
	void *to;
	size_t bytes;
	unsigned char value[16];
};

struct lane {
	fiber f;
	state st;
	unsigned exchanges; /* so far */
	unsigned n_held, patience;
	held store[MAX_HELD]; /* that have not arrived; a thread holds `patience` at most */
};

struct block {
	unsigned number, live; /* live: threads that have not ended */
	lane *lanes;
	unsigned n_declared, shared_used;
	struct {
		const void *declaration;
		unsigned at;
	} declared[MAX_DECLARED];
	uint64_t cell[MAX_WARPS][2][WARP];
	alignas(64) unsigned char shared[SIM_SHARED_BYTES];
};

/* The launch that this thread of the process runs. */
struct launch {
	void (*fn)(const void *);
	const void *argument;
	unsigned threads;
	uint64_t random;
	fiber scheduler;
	block *resident[SIM_MAX_RESIDENT];
	unsigned n_resident;
	block *now;
	unsigned lane_now;
	bool paused; /* a lane gave way to other blocks */
	unsigned char *stacks;
	std::vector<lane> lanes;
	std::vector<block> blocks;
};
thread_local launch *l;

uint64_t draw()
{
	l->random ^= l->random << 13;
	l->random ^= l->random >> 7;
	l->random ^= l->random << 17;
	return l->random >> 11;
}

void shuffle(unsigned *order, unsigned n)
{
	for (unsigned i = n; sim_seed && i > 1; i--)
		std::swap(order[i - 1], order[draw() % i]);
}

lane &current()
{
	return l->now->lanes[l->lane_now];
}

/* Before anything happens to global memory. */
void one_effect()
{
	if (__atomic_load_n(&sim_kill_after, __ATOMIC_RELAXED) >= 0 &&
	    __atomic_fetch_sub(&sim_kill_after, 1, __ATOMIC_RELAXED) == 0) {
		if (sim_on_kill)
			sim_on_kill();
		else
			kill(getpid(), SIGKILL);
		sim_kill_after = -1;
	}
	__atomic_fetch_add(&sim_effects, 1, __ATOMIC_RELAXED);
}

void arrive(lane &t, unsigned i)
{
	const held h = t.store[i];
	one_effect();
	memcpy(h.to, h.value, h.bytes);
	t.n_held--;
	memmove(t.store + i, t.store + i + 1, (t.n_held - i) * sizeof(h));
}

void flush(lane &t)
{
	while (t.n_held)
		arrive(t, static_cast<unsigned>(draw() % t.n_held));
}

/* Stores of this thread to these bytes arrive, in the order in which they were made. */
void settle(lane &t, const void *at, size_t bytes)
{
	const char *from = static_cast<const char *>(at);
	for (unsigned i = 0; i < t.n_held;) {
		const char *to = static_cast<char *>(t.store[i].to);
		if (to < from + bytes && from < to + t.store[i].bytes)
			arrive(t, i);
		else
			i++;
	}
}

/* Returns when the scheduler lets this lane go on. */
void wait_as(state st)
{
	block *mine = l->now;
	const unsigned me = l->lane_now;
	mine->lanes[me].st = st;
	fiber_switch(&mine->lanes[me].f, &l->scheduler, st == DONE);
}

void run_thread()
{
	l->fn(l->argument);
	l->now->live--;
	wait_as(DONE);
}

void enter(block *b, unsigned thread)
{
	l->now = b;
	l->lane_now = thread;
	threadIdx.x = thread;
	blockIdx.x = b->number;
	fiber_switch(&l->scheduler, &b->lanes[thread].f, false);
}

/* Those of the lanes [from, to) that wait as `st` go on, if all do that have not ended. */
bool release(block *b, state st, unsigned from, unsigned to)
{
	bool any = false;
	for (unsigned i = from; i < to; i++) {
		if (b->lanes[i].st != st && b->lanes[i].st != DONE)
			return false;
		any |= b->lanes[i].st == st;
	}
	for (unsigned i = from; i < to && any; i++)
		if (b->lanes[i].st == st)
			b->lanes[i].st = READY;
	return any;
}

/* Runs a warp as far as it comes, to a barrier of the block or its end, unless it gives way before. */
bool run_warp(block *b, unsigned warp)
{
	const unsigned from = warp * WARP, to = from + WARP < l->threads ? from + WARP : l->threads;
	unsigned order[WARP];
	bool any = false;
	for (unsigned i = from; i < to; i++)
		order[i - from] = i;
	l->paused = false;
	for (bool ran = true; ran && !l->paused;) {
		ran = false;
		shuffle(order, to - from);
		for (unsigned i = 0; i < to - from; i++)
			if (b->lanes[order[i]].st == READY) {
				enter(b, order[i]);
				ran = any = true;
			}
		ran |= release(b, AT_WARP, from, to);
	}
	return any;
}

void begin_block(block *b, unsigned number)
{
	const size_t first = static_cast<size_t>(b - l->blocks.data()) * l->threads;
	b->number = number;
	b->live = l->threads;
	b->lanes = &l->lanes[first];
	b->n_declared = b->shared_used = 0;
	for (unsigned i = 0; i < l->threads; i++) {
		lane &t = b->lanes[i];
		t.st = READY;
		t.exchanges = t.n_held = 0;
		t.patience = sim_weak ? 1 + static_cast<unsigned>(draw() % MAX_HELD) : 0;
		fiber_make(&t.f, l->stacks + (first + i) * STACK, STACK, run_thread);
	}
}

/* A turn of a block: its warps in some order, until one gives way to the other blocks. */
void run_block(block *b)
{
	const unsigned warps = (l->threads + WARP - 1) / WARP;
	unsigned order[MAX_WARPS];
	bool ran = false;
	for (unsigned w = 0; w < warps; w++)
		order[w] = w;
	shuffle(order, warps);
	for (unsigned w = 0; w < warps; w++) {
		ran |= run_warp(b, order[w]);
		if (l->paused)
			return;
	}
	ran |= release(b, AT_BARRIER, 0, l->threads);
	if (b->live && !ran) {
		fprintf(stderr, "sim: threads of block %u wait for each other at different barriers\n", b->number);
		abort();
	}
}

void end_block(block *b)
{
	l->now = b;
	for (unsigned i = 0; i < l->threads; i++)
		flush(b->lanes[i]);
}

void run_grid(unsigned grid)
{
	std::vector<unsigned> order(grid);
	unsigned next = 0;
	for (unsigned i = 0; i < grid; i++)
		order[i] = i;
	shuffle(order.data(), grid);
	while (l->n_resident < l->blocks.size() && next < grid) {
		block *b = &l->blocks[l->n_resident];
		begin_block(b, order[next++]);
		l->resident[l->n_resident++] = b;
	}
	while (l->n_resident) {
		const unsigned i = sim_seed ? static_cast<unsigned>(draw() % l->n_resident) : 0;
		block *b = l->resident[i];
		run_block(b);
		if (b->live)
			continue;
		end_block(b);
		if (next < grid)
			begin_block(b, order[next++]);
		else
			l->resident[i] = l->resident[--l->n_resident];
	}
}

/* Threads of GPUs count subnormals as zero, with -ftz=true, and engines' threads do. */
unsigned flush_subnormals()
{
#ifdef __x86_64__
	const unsigned before = _mm_getcsr();
	_mm_setcsr(before | 0x8040);
	return before;
#else
	return 0;
#endif
}

void restore_mode(unsigned before)
{
#ifdef __x86_64__
	_mm_setcsr(before);
#else
	(void)before;
#endif
}
} // namespace

void sim_run(void (*fn)(const void *), const void *argument, unsigned grid, unsigned threads)
{
	if (!threads || threads > SIM_MAX_THREADS) {
		fprintf(stderr, "sim: a block of %u threads\n", threads);
		abort();
	}
	launch mine = {};
	l = &mine;
	l->fn = fn;
	l->argument = argument;
	l->threads = threads;
	l->random = (sim_seed + 1) * 0x9e3779b97f4a7c15u | 1;
	const size_t resident = sim_seed ? 2 + draw() % (SIM_MAX_RESIDENT - 1) : 1;
	const size_t bytes = resident * threads * STACK;
	void *stacks = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (stacks == MAP_FAILED) {
		perror("sim: mmap");
		abort();
	}
	l->stacks = static_cast<unsigned char *>(stacks);
	l->lanes.resize(resident * threads);
	l->blocks.resize(resident);
	blockDim.x = threads;
	gridDim.x = grid;
	const unsigned mode = flush_subnormals();
	run_grid(grid);
	restore_mode(mode);
	munmap(stacks, bytes);
	l = nullptr;
}

void sim_barrier()
{
	wait_as(AT_BARRIER);
}

void sim_warp_barrier()
{
	wait_as(AT_WARP);
}

uint64_t *sim_cells()
{
	return l->now->cell[l->lane_now / WARP][current().exchanges++ & 1];
}

void *sim_shared(const void *declaration, size_t bytes)
{
	block *b = l->now;
	for (unsigned i = 0; i < b->n_declared; i++)
		if (b->declared[i].declaration == declaration)
			return b->shared + b->declared[i].at;
	const unsigned at = (b->shared_used + 63) / 64 * 64;
	if (b->n_declared == MAX_DECLARED || at + bytes > SIM_SHARED_BYTES) {
		fprintf(stderr, "sim: a block with more than %d bytes or %u variables of shared memory\n",
			SIM_SHARED_BYTES, MAX_DECLARED);
		abort();
	}
	b->declared[b->n_declared].declaration = declaration;
	b->declared[b->n_declared++].at = at;
	b->shared_used = at + static_cast<unsigned>(bytes);
	memset(b->shared + at, 0xfb, bytes); /* nobody may rely on zeros */
	return b->shared + at;
}

void sim_store(void *to, const void *value, size_t bytes)
{
	lane &t = current();
	if (!t.patience) {
		one_effect();
		memcpy(to, value, bytes);
		return;
	}
	settle(t, to, bytes); /* two stores to one place keep their order */
	held &h = t.store[t.n_held++];
	h.to = to;
	h.bytes = bytes;
	memcpy(h.value, value, bytes);
	if (t.n_held == t.patience)
		arrive(t, static_cast<unsigned>(draw() % t.n_held));
}

void sim_before_load(const void *from, size_t bytes)
{
	settle(current(), from, bytes);
}

void sim_before_atomic(const void *at, size_t bytes, int changes)
{
	if (sim_seed && draw() % 2) {
		l->paused = true;
		wait_as(READY);
	}
	settle(current(), at, bytes);
	if (changes)
		one_effect();
}

void sim_fence()
{
	flush(current());
}
