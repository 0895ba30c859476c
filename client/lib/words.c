/* SPDX-License-Identifier: Apache-2.0 */
/* Memory and bell of a job's ready words, which stay the same over sessions while what is beneath them is replaced. For
 * gacc_ready_word, posted.c and push_send.c; the job's thread, reading also the sender's. */
#include "lib/words.h"

#include "lib/clock.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE_BYTES ((size_t)4096) /* of the words, in a mailbox */
#define POLL_MIN_MS 1

/* Another mapping of a shared page: anywhere, or in place of what is mapped at `place`, in one step for all threads. */
static struct gacc_box_ready *map_again(struct gacc_box_ready *page, struct gacc_box_ready *place)
{
	void *base = place ? mremap(page, 0, PAGE_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, place)
			   : mremap(page, 0, PAGE_BYTES, MREMAP_MAYMOVE);

	return base == MAP_FAILED ? NULL : base;
}

static uint64_t load(const struct gacc_box_ready *word)
{
	return __atomic_load_n(&word->value, __ATOMIC_ACQUIRE);
}

static bool is_behind(uint64_t word, uint64_t value)
{
	return (int64_t)(word - value) < 0;
}

/* Another thread may store a later value meanwhile; that one stays. */
static void raise_to(struct gacc_box_ready *word, uint64_t value)
{
	uint64_t now = load(word);

	while (is_behind(now, value) &&
	       !__atomic_compare_exchange_n(&word->value, &now, value, false, __ATOMIC_RELEASE, __ATOMIC_ACQUIRE))
		;
}

/* Another mapping of the page that is there now, for words_reached; NULL: no memory, or no room. */
static const struct gacc_box_ready *keep(struct words *w)
{
	struct gacc_box_ready *page = w->n_earlier < WORDS_EARLIER_MAX ? map_again(w->at, NULL) : NULL;

	if (!page)
		return NULL;
	w->earlier[w->n_earlier] = page;
	__atomic_store_n(&w->n_earlier, w->n_earlier + 1, __ATOMIC_RELEASE);
	return page;
}

/* The page is kept before it is exchanged: no look misses what is there. Values are carried over after that: one that
 * is stored meanwhile lies in one of the two pages. The bell comes last: a request that is published later has the
 * words that were stored before it was rung. */
void words_follow(struct words *w, const struct cells *cells)
{
	const struct gacc_box_ready *before;

	if (!w->at || !cells->mem)
		return;
	w->sgen = 0;
	before = keep(w);
	if (!before)
		return;
	if (!map_again(cells->mem->ready, w->at)) { /* which may have left a hole */
		map_again(w->earlier[w->n_earlier - 1], w->at);
		return;
	}
	w->page++;
	for (uint32_t i = 0; i < GACC_BOX_WORDS; i++)
		raise_to(&w->at[i], load(&before[i]));
	if (dup3(cells->submit, w->bell, O_CLOEXEC) == w->bell)
		w->sgen = cells->sgen;
}

enum status words_open(struct words *w, const struct cells *cells)
{
	void *base;
	int bell;

	if (w->at)
		return ST_OK;
	bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (bell < 0)
		return ST_RESOURCE_EXHAUSTED;
	base = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (base == MAP_FAILED) {
		close(bell);
		return ST_NO_MEMORY;
	}
	*w = (struct words){ .page = 1, .bell = bell };
	__atomic_store_n(&w->at, base, __ATOMIC_RELEASE); /* gacc_ring, on another thread, finds the bell behind it */
	words_follow(w, cells);
	return ST_OK;
}

void words_close(struct words *w)
{
	if (!w->at)
		return;
	munmap(w->at, PAGE_BYTES);
	for (uint32_t i = 0; i < w->n_earlier; i++)
		munmap(w->earlier[i], PAGE_BYTES);
	close(w->bell);
	*w = (struct words){ 0 };
}

void words_raise(struct words *w, uint32_t at, uint64_t value)
{
	raise_to(&w->at[at - 1], value);
}

/* What an earlier page has counts by itself: the page that it is carried over to may be exchanged again meanwhile. */
bool words_reached(const struct words *w, uint32_t at, uint64_t value)
{
	struct gacc_box_ready *word = &w->at[at - 1];
	bool has_come = !is_behind(load(word), value);
	uint32_t n = has_come ? 0 : __atomic_load_n(&w->n_earlier, __ATOMIC_ACQUIRE);

	for (uint32_t i = 0; i < n; i++) { /* a device's store, for which an earlier page is still registered */
		uint64_t earlier = load(&w->earlier[i][at - 1]);

		raise_to(word, earlier);
		has_come = has_come || !is_behind(earlier, value);
	}
	return has_come || !is_behind(load(word), value);
}

bool words_await(const struct words *w, uint32_t at, uint64_t value, int64_t ms)
{
	int64_t start = now_ms();

	while (!words_reached(w, at, value)) {
		if (now_ms() - start >= ms)
			return false;
		sleep_ms(POLL_MIN_MS);
	}
	return true;
}
