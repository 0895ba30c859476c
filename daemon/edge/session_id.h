/* SPDX-License-Identifier: Apache-2.0 */
/* A session's id on the wire: its job's, and its rank. Any thread. */
#ifndef GACC_EDGE_SESSION_ID_H
#define GACC_EDGE_SESSION_ID_H

#include "control/spec.h"

#include <stdint.h>

#define SESSION_RANK_BITS 20
_Static_assert(SPEC_MAX_RANKS <= 1 << SESSION_RANK_BITS, "a rank has room in a session's id");
static inline uint64_t session_id(uint64_t job, uint32_t rank)
{
	return job << SESSION_RANK_BITS | rank;
}
static inline uint64_t session_job_id(uint64_t id)
{
	return id >> SESSION_RANK_BITS;
}
static inline uint32_t session_rank(uint64_t id)
{
	return (uint32_t)(id & ((1u << SESSION_RANK_BITS) - 1));
}

#endif
