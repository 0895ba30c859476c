/* SPDX-License-Identifier: Apache-2.0 */
/* Failures on demand. FAKE_CUDA_ARM names a file: then they happen in the one process that removes it, the first to
 * load the fake, so that a program whose children are started anew can be told to fail in one life only. */
#include "faults.h"

#include "options.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_CALLS 16

struct call {
	char name[48]; /* without the suffix */
	uint64_t at;
	bool always;
	cu_result code;
	_Atomic uint64_t so_far;
};

static struct call calls[MAX_CALLS];
static unsigned n_calls;
static _Atomic long launches, copies;
static long sticky_at, hang_at, hang_copy_at, kill_copy_at;
static cu_result sticky_code;
static size_t kill_copy_bytes;
static int64_t kill_after = -1;

/* Is `symbol` the function `name`, or that with the suffix of a version? */
static bool is_named(const char *symbol, const char *name)
{
	size_t n = strlen(name);
	return !strncmp(symbol, name, n) && (!symbol[n] || !strncmp(symbol + n, "_v", 2));
}

cu_result faults_of_call(const char *symbol)
{
	for (unsigned i = 0; i < n_calls; i++) {
		struct call *c = &calls[i];
		if (!is_named(symbol, c->name))
			continue;
		uint64_t number = atomic_fetch_add(&c->so_far, 1) + 1;
		if (number == c->at || (c->always && number > c->at))
			return c->code;
	}
	return CUDA_SUCCESS;
}

long faults_count_launch(void)
{
	return atomic_fetch_add(&launches, 1) + 1;
}

enum fault faults_of_launch(long number, cu_result *out_code)
{
	*out_code = sticky_code;
	return number == sticky_at ? FAULT_STICKY : number == hang_at ? FAULT_HANG : FAULT_NONE;
}

long faults_count_copy(void)
{
	return atomic_fetch_add(&copies, 1) + 1;
}

enum fault faults_of_copy(long number, size_t *out_bytes)
{
	*out_bytes = kill_copy_bytes;
	return number == kill_copy_at ? FAULT_KILL : number == hang_copy_at ? FAULT_HANG : FAULT_NONE;
}

int64_t faults_kill_after(void)
{
	return kill_after;
}

/* "cuMemCreate:3:2,cuStreamQuery:5+:700" */
static void read_calls(void)
{
	static const char variable[] = "FAKE_CUDA_FAIL";
	const char *at = getenv(variable);
	while (at && *at) {
		struct call *c = &calls[n_calls];
		size_t n = strcspn(at, ":");
		if (n_calls == MAX_CALLS || n >= sizeof(c->name))
			options_wrong(variable);
		memcpy(c->name, at, n);
		at += n;
		if (!options_skip(&at, ':'))
			options_wrong(variable);
		c->at = options_number(variable, &at);
		c->always = options_skip(&at, '+');
		if (!options_skip(&at, ':'))
			options_wrong(variable);
		c->code = (cu_result)options_number(variable, &at);
		if (*at && !options_skip(&at, ','))
			options_wrong(variable);
		n_calls++;
	}
}

/* "N", or "N:VALUE" if there is room for one. False: the variable is not set. */
static bool read_at(const char *variable, long *out_number, uint64_t *out_value)
{
	const char *at = getenv(variable);
	if (!at)
		return false;
	*out_number = (long)options_number(variable, &at);
	if (out_value && !options_skip(&at, ':'))
		options_wrong(variable);
	if (out_value)
		*out_value = options_number(variable, &at);
	if (*at)
		options_wrong(variable);
	return true;
}

__attribute__((constructor)) static void read_all(void)
{
	const char *arm = getenv("FAKE_CUDA_ARM");
	uint64_t value;
	long number;
	if (arm && unlink(arm))
		return;
	read_calls();
	if (read_at("FAKE_CUDA_STICKY", &sticky_at, &value))
		sticky_code = (cu_result)value;
	read_at("FAKE_CUDA_HANG", &hang_at, NULL);
	read_at("FAKE_CUDA_HANG_COPY", &hang_copy_at, NULL);
	if (read_at("FAKE_CUDA_KILL", &number, NULL))
		kill_after = number;
	if (read_at("FAKE_CUDA_KILL_COPY", &kill_copy_at, &value))
		kill_copy_bytes = value;
}
