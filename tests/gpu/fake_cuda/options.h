/* SPDX-License-Identifier: Apache-2.0 */
/* What the environment tells the fake driver, read once when it is loaded. README.md in tests/gpu describes each
 * variable; one that cannot be read ends the process, since a test would otherwise test something else. */
#ifndef GACC_FAKE_CUDA_OPTIONS_H
#define GACC_FAKE_CUDA_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#define MAX_DEVICES 8
#define MAX_ATTRIBUTE 147

struct options {
	const char *kernels; /* FAKE_CUDA_KERNELS; NULL: modules cannot be loaded */
	const char *machine; /* FAKE_CUDA_MACHINE: processes of one share devices */
	unsigned n_devices;  /* FAKE_CUDA_DEVICES */
	uint64_t memory;     /* FAKE_CUDA_MEMORY: bytes of each device */
	uint64_t pageable;   /* FAKE_CUDA_PAGEABLE: bytes of one copy to memory of the host that is not pinned */
	bool has_attribute[MAX_ATTRIBUTE + 1];
	int attribute[MAX_ATTRIBUTE + 1]; /* FAKE_CUDA_ATTRIBUTES */
	bool persistence;		  /* FAKE_CUDA_PERSISTENCE: persistence mode is on */
	unsigned nvml_init;		  /* FAKE_CUDA_NVML_INIT: what nvmlInit returns */
	unsigned lost;			  /* FAKE_CUDA_NVML_LOST: this device's number; MAX_DEVICES: none */
	unsigned mps;			  /* FAKE_CUDA_MPS: processes that use each device through MPS */
	unsigned delay_us;		  /* FAKE_CUDA_DELAY: before each operation of a stream */
	uint64_t seed;			  /* FAKE_CUDA_SEED: of the simulator's order */
	bool weak;			  /* FAKE_CUDA_WEAK: stores arrive late and in any order */
	bool late;			  /* FAKE_CUDA_LATE is set: the dead have ghosts, which wait .. */
	int kill_signal;		  /* FAKE_CUDA_KILL_SIGNAL; 0: none */
	unsigned late_us;		  /* .. so long */
};

const struct options *options(void);

/* The number at *at, which moves behind it. Decimal, or hexadecimal with 0x. `variable` is for the message with which
 * the process ends if there is none. */
uint64_t options_number(const char *variable, const char **at);
/* Skips the character if it is there. */
bool options_skip(const char **at, char);
/* Ends the process. */
_Noreturn void options_wrong(const char *variable);

#endif
