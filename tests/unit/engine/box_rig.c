/* SPDX-License-Identifier: Apache-2.0 */
#include "box_rig.h"

#include "support/box.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void box_rig_make(struct box_rig *r, uint64_t n_tensors)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	r->bytes = gacc_box_bytes(n_tensors);
	size_t middle = (r->bytes + page - 1) / page * page;
	r->map_bytes = middle + 2 * page;
	r->map = mmap(NULL, r->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(r->map, MAP_FAILED);
	unsigned char *at = (unsigned char *)r->map + page;
	ck_assert_int_eq(mprotect(at, middle, PROT_READ | PROT_WRITE), 0);
	r->mem = (struct gacc_box *)(at + middle - r->bytes); /* a multiple of 64 */
	r->mem->header.magic = GACC_BOX_MAGIC;
	box_take_over(&r->cells, r->mem, n_tensors, RIG_SLOTS);
	r->cells.bell_due = false;
}

void box_rig_free(struct box_rig *r)
{
	munmap(r->map, r->map_bytes);
}

struct gacc_box_request box_rig_push(uint64_t seq)
{
	return (struct gacc_box_request){ .seq = seq, .kind = GACC_BOX_PUSH, .window = 3, .weight = 2, .loss = 0.5 };
}

void box_rig_put(struct box_rig *r, uint32_t cell, struct gacc_box_request q)
{
	q.check = box_crc(&q, GACC_BOX_REQUEST_CHECKED);
	r->mem->request[cell] = q;
}

void box_rig_present(struct box_rig *r, uint32_t cell, struct gacc_box_request *q, const unsigned char *bits)
{
	q->n_present = (uint32_t)gacc_box_present_bytes(r->cells.n_tensors);
	q->present_check = box_crc(bits, q->n_present);
	memcpy((unsigned char *)r->mem + gacc_box_present_at(r->cells.n_tensors, cell), bits, q->n_present);
}

enum box_look box_rig_look(struct box_rig *r, uint32_t cell, struct box_request *out)
{
	enum box_look found = box_look(&r->cells, cell, out);
	free(out->present);
	return found;
}

bool box_rig_answered(const struct box_rig *r, uint32_t cell, uint64_t seq, struct gacc_box_answer *out)
{
	*out = r->mem->answer[cell];
	return out->seq == seq && out->check == box_crc(out, GACC_BOX_ANSWER_CHECKED);
}

void box_rig_restart(struct box_rig *r)
{
	box_take_over(&r->cells, r->mem, r->cells.n_tensors, r->cells.slots);
}
