/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the environment of the fake driver when the library is loaded, before any thread can ask. */
#include "options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct options set;

const struct options *options(void)
{
	return &set;
}

void options_wrong(const char *variable)
{
	const char *text = getenv(variable);
	fprintf(stderr, "fake libcuda: cannot read %s=%s: tests/gpu/README.md says what it may be\n", variable,
		text ? text : "");
	_exit(2);
}

uint64_t options_number(const char *variable, const char **at)
{
	char *end;
	errno = 0;
	uint64_t value = strtoull(*at, &end, 0);
	if (end == *at || **at == '-' || errno)
		options_wrong(variable);
	*at = end;
	return value;
}

bool options_skip(const char **at, char c)
{
	if (**at != c)
		return false;
	++*at;
	return true;
}

static uint64_t number_of(const char *variable, uint64_t otherwise, uint64_t max)
{
	const char *at = getenv(variable);
	if (!at)
		return otherwise;
	uint64_t value = options_number(variable, &at);
	if (*at || value > max)
		options_wrong(variable);
	return value;
}

/* "122=0,91=0" */
static void read_attributes(void)
{
	static const char variable[] = "FAKE_CUDA_ATTRIBUTES";
	const char *at = getenv(variable);
	while (at && *at) {
		uint64_t number = options_number(variable, &at);
		if (number > MAX_ATTRIBUTE || !options_skip(&at, '='))
			options_wrong(variable);
		set.has_attribute[number] = true;
		set.attribute[number] = (int)options_number(variable, &at);
		if (*at && !options_skip(&at, ','))
			options_wrong(variable);
	}
}

__attribute__((constructor)) static void read_all(void)
{
	set.kernels = getenv("FAKE_CUDA_KERNELS");
	set.machine = getenv("FAKE_CUDA_MACHINE");
	if (!set.machine)
		set.machine = "";
	set.n_devices = (unsigned)number_of("FAKE_CUDA_DEVICES", 2, MAX_DEVICES);
	set.memory = number_of("FAKE_CUDA_MEMORY", (uint64_t)4 << 30, UINT64_MAX);
	set.pageable = number_of("FAKE_CUDA_PAGEABLE", UINT64_MAX, UINT64_MAX);
	set.persistence = number_of("FAKE_CUDA_PERSISTENCE", 0, 1);
	set.nvml_init = (unsigned)number_of("FAKE_CUDA_NVML_INIT", 0, 999);
	set.lost = (unsigned)number_of("FAKE_CUDA_NVML_LOST", MAX_DEVICES, MAX_DEVICES - 1);
	set.mps = (unsigned)number_of("FAKE_CUDA_MPS", 0, 64);
	set.delay_us = (unsigned)number_of("FAKE_CUDA_DELAY", 0, 60000000);
	set.seed = number_of("FAKE_CUDA_SEED", 0, UINT64_MAX);
	set.weak = number_of("FAKE_CUDA_WEAK", 0, 1);
	set.kill_signal = (int)number_of("FAKE_CUDA_KILL_SIGNAL", 0, 64);
	set.late = getenv("FAKE_CUDA_LATE") != NULL;
	set.late_us = (unsigned)number_of("FAKE_CUDA_LATE", 0, 60000000);
	read_attributes();
}
