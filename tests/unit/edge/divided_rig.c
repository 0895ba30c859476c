/* SPDX-License-Identifier: Apache-2.0 */
/* A job of two parts at one node, for unit tests; see the header. One thread. */
#include "divided_rig.h"

#include "gacc/v1/common.pb-c.h"

#include <unistd.h>

const uint32_t first_rank[PARTS + 1] = { 0, 2, WORLD };

void with_two_parts(Gacc__V1__JobSpec *spec)
{
	spec->ranks = WORLD;
	spec->parts = PARTS;
}

void divided_open(void)
{
	pair_open();
	job = rig_job(DIVIDED, getuid(), "ana", with_two_parts);
	ck_assert_uint_eq(job->n_parts, PARTS);
}

struct part *there_of(uint32_t part)
{
	return part_find(&other.node, DIVIDED, part);
}
