/* SPDX-License-Identifier: Apache-2.0 */
/* gacc_ready_word and gacc_ring: how a trainer says that the gradient of a push has become complete. The job's thread;
 * gacc_ring on any thread. */
#include "lib/internal.h"

#include <errno.h>
#include <unistd.h>

_Static_assert(GACC_READY_WORDS == GACC_BOX_WORDS, "as in mailbox.h");

gacc_status gacc_ready_word(gacc_job *job, uint32_t at, uint64_t **out, uint64_t *page)
{
	gacc_status st = job_enter(job);
	enum status opened;

	if (st)
		return st;
	if (!job->registered || at < 1 || at > GACC_READY_WORDS || !out)
		return job_fail(job, ST_INVALID_ARGUMENT, NULL,
				"no ready word: register tensors first, then name one of 1..%d", GACC_READY_WORDS);
	opened = words_open(&job->memory.words, &job->memory.cells);
	if (opened)
		return job_fail(job, opened, NULL, "no memory or no descriptor for ready words");
	*out = &job->memory.words.at[at - 1].value;
	if (page)
		*page = job->memory.words.told = job->memory.words.page;
	return GACC_OK;
}

void gacc_ring(const gacc_job *job)
{
	const uint64_t one = 1;
	int before = errno;

	if (__atomic_load_n(&job->memory.words.at, __ATOMIC_ACQUIRE))
		(void)!write(job->memory.words.bell, &one, sizeof(one));
	errno = before;
}
