/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts. Destroyed ones are kept, since a thread may still have them as its current one. */
#include "context.h"

#include "device.h"
#include "holders.h"
#include "stream.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_CONTEXTS 64
#define MAX_PUSHED 16

static struct context contexts[MAX_CONTEXTS]; /* the primary ones first, in the order of cu_device */
static unsigned n_made;

static __thread struct context *pushed[MAX_PUSHED]; /* the last one is current */
static __thread unsigned n_pushed;

struct context *context_current(void)
{
	struct context *c = n_pushed ? pushed[n_pushed - 1] : NULL;
	return c && c->n_retained ? c : NULL;
}

cu_result context_set_current(struct context *c)
{
	if (c && !n_pushed)
		n_pushed = 1;
	if (n_pushed)
		pushed[n_pushed - 1] = c;
	return CUDA_SUCCESS;
}

cu_result context_push(struct context *c)
{
	if (n_pushed == MAX_PUSHED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pushed[n_pushed++] = c;
	return CUDA_SUCCESS;
}

struct context *context_pop(void)
{
	struct context *c = context_current();
	if (n_pushed)
		n_pushed--;
	return c;
}

static cu_result begin(struct context *c, cu_device device)
{
	char name[HOLDERS_NAME];
	int mode = device_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
	pid_t other;
	c->device = device;
	c->on_machine = device_on_machine(device);
	if (mode == CU_COMPUTEMODE_PROHIBITED || (mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS &&
						  holders_contexts(c->on_machine, &other, 1) && other != getpid()))
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	holders_context_name(c->on_machine, name);
	c->mark = memfd_create(name, MFD_CLOEXEC);
	if (c->mark < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	c->n_retained = 1;
	return CUDA_SUCCESS;
}

static void end(struct context *c)
{
	stream_end_all(c);
	c->n_retained = 0;
	c->default_stream = NULL;
	close(c->mark);
}

cu_result context_retain_primary(cu_device device, struct context **out)
{
	*out = &contexts[device];
	if (!(*out)->n_retained)
		return begin(*out, device);
	(*out)->n_retained++;
	return CUDA_SUCCESS;
}

cu_result context_release_primary(cu_device device, bool all)
{
	struct context *c = &contexts[device];
	if (!c->n_retained)
		return all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
	if (all || c->n_retained == 1)
		end(c);
	else
		c->n_retained--;
	return CUDA_SUCCESS;
}

bool context_primary_is_active(cu_device device)
{
	return contexts[device].n_retained != 0;
}

cu_result context_make(cu_device device, struct context **out)
{
	if (MAX_DEVICES + n_made == MAX_CONTEXTS)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = &contexts[MAX_DEVICES + n_made];
	cu_result result = begin(*out, device);
	n_made += !result;
	return result;
}

cu_result context_destroy(struct context *c)
{
	if (c < contexts + MAX_DEVICES)
		return CUDA_ERROR_INVALID_CONTEXT; /* primary contexts are released */
	end(c);
	return CUDA_SUCCESS;
}

struct context *context_find(cu_context handle)
{
	for (struct context *c = contexts; c < contexts + MAX_CONTEXTS; c++)
		if (context_handle(c) == handle && c->n_retained)
			return c;
	return NULL;
}

cu_context context_handle(struct context *c)
{
	return (cu_context)c;
}
