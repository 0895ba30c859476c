/* The invariants of docs/protocol.md, looked at after every event. */
#include "sim.h"

#include <string.h>

static bool bit(const struct sim *s, const uint64_t *map, uint32_t rank, uint32_t micro)
{
	return control_bit(map, s->spec.max_micro_size, rank, micro);
}

/* I5, I8: the accumulator is the multiset of its bitmap, every payload whole and its own. */
static void check_accumulator(struct sim *s)
{
	uint32_t seen[SIM_MAX_RANKS][SIM_MAX_MICRO] = { { 0 } };
	for (uint32_t i = 0; i < s->n_acc; i++) {
		const struct tag *t = &s->acc[i];
		if (t->window != s->d.r.window || t->rank >= s->spec.ranks || t->micro >= s->spec.micro_size)
			sim_fail(s, "I6: contribution of window %llu rank %u micro %u in window %llu",
				 (unsigned long long)t->window, t->rank, t->micro, (unsigned long long)s->d.r.window);
		else
			seen[t->rank][t->micro]++;
		if (!t->complete)
			sim_fail(s, "I8: torn payload of rank %u micro %u", t->rank, t->micro);
	}
	for (uint32_t r = 0; r < s->spec.ranks; r++)
		for (uint32_t m = 0; m < s->spec.micro_size; m++)
			if (seen[r][m] != bit(s, s->d.counted, r, m))
				sim_fail(s, "I5: rank %u micro %u is %u times in the accumulator, its bit is %d", r, m,
					 seen[r][m], bit(s, s->d.counted, r, m));
}

static const struct store_window *stored(const struct sim *s, uint64_t window)
{
	for (uint32_t i = 0; i < s->n_windows; i++)
		if (s->window[i].commit.window == window)
			return &s->window[i];
	return NULL;
}

/* I4: what a trainer was told is, and stays, so. */
static void check_told(struct sim *s)
{
	for (uint32_t i = 0; i < s->n_told; i++) {
		const struct store_window *w = stored(s, s->told[i].window);
		bool open = s->told[i].window == s->d.r.window;
		const uint64_t *map = w ? w->counted : open ? s->d.counted : NULL;
		bool in = map && bit(s, map, s->told[i].rank, s->told[i].micro);
		bool should = s->told[i].result >= 1 && s->told[i].result <= 3;
		bool may_come = s->told[i].result == 100 && open && s->d.r.phase == WINDOW_OPEN;
		if (should != in && !may_come)
			sim_fail(s, "I4: rank %u micro %u of window %llu was told %u and is %s", s->told[i].rank,
				 s->told[i].micro, (unsigned long long)s->told[i].window, s->told[i].result,
				 in ? "in" : "not in");
	}
}

/* I7: nothing goes back. */
static void check_monotone(struct sim *s)
{
	if (s->d.r.window < s->max_window)
		sim_fail(s, "I7: window went from %llu to %llu", (unsigned long long)s->max_window,
			 (unsigned long long)s->d.r.window);
	s->max_window = s->d.r.window;
	for (uint32_t r = 0; r < s->spec.ranks; r++) {
		if (s->d.rank[r].sgen < s->max_sgen[r])
			sim_fail(s, "I7: session generation of rank %u went back", r);
		s->max_sgen[r] = s->d.rank[r].sgen;
	}
}

void sim_check(struct sim *s)
{
	if (!s->durable)
		return;
	check_accumulator(s);
	check_told(s);
	check_monotone(s);
}

/* I1, I2, I3: what the engine applies now is durable, is this window, and holds what its bitmap says. */
void sim_check_apply(struct sim *s, const struct commit *k)
{
	const struct store_window *w = stored(s, k->window);
	if (!w || w->commit.term != k->term || w->commit.attempt != k->attempt || w->commit.outcome != k->outcome) {
		sim_fail(s, "I3: window %llu is applied without its durable commit", (unsigned long long)k->window);
		return;
	}
	if (s->n_applied && s->applied[s->n_applied - 1].window + 1 != k->window)
		sim_fail(s, "I2: window %llu applied after %llu", (unsigned long long)k->window,
			 (unsigned long long)s->applied[s->n_applied - 1].window);
	if (memcmp(w->counted, s->d.counted, s->d.n_words * 8))
		sim_fail(s, "I1: the commit's bitmap of window %llu is not what the engine holds",
			 (unsigned long long)k->window);
	if (w->commit.micro_count != s->n_acc)
		sim_fail(s, "I1: commit of window %llu counts %llu micro-batches, the engine holds %u",
			 (unsigned long long)k->window, (unsigned long long)w->commit.micro_count, s->n_acc);
}
