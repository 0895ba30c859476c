/* A control segment with any bytes in it: read by gaccd after a crash, and by an engine. What is accepted must be
 * written and read back the same. */
#include "engine/accum.h"
#include "engine/control_page.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, MICRO = 5, THREADS = 2, TENSORS = 3 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	size_t bytes = control_page_bytes(RANKS, MICRO, THREADS, TENSORS);
	unsigned char *base = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
	struct control_page page;
	struct control_state s, t;
	bool corrupt;
	memset(base, 0, bytes);
	control_page_view(&page, base, RANKS, MICRO, THREADS, TENSORS);
	if (control_state_init(&s, RANKS, MICRO) || control_state_init(&t, RANKS, MICRO))
		abort();
	s.r.ranks = RANKS;
	s.r.max_micro_size = MICRO;
	control_page_publish(&page, &s);
	for (size_t i = 0; i + 3 <= n; i += 3) /* flips bytes anywhere in the records: a CRC must notice */
		base[(data[i] | (size_t)data[i + 1] << 8) % (2 * page.record_bytes)] ^= data[i + 2];
	if (control_page_read(&page, &t, &corrupt)) {
		accum_complete(&t);
		control_page_publish(&page, &t);
		uint64_t seq = t.r.seq;
		if (!control_page_read(&page, &s, &corrupt) || s.r.seq != seq)
			abort();
	}
	control_state_fini(&s);
	control_state_fini(&t);
	free(base);
	return 0;
}
