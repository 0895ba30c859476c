/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 0 of a job of one tensor, on the fake driver: one process that dies with a copy to its slot queued, and its
 * successors (tests/system/test_late_device.py).
 *
 *     device_trainer late     queues a copy of bytes 0x3e to its slot, and dies by SIGUSR1, which leaves a ghost
 *     device_trainer leaves   queues the same, and detaches
 *     device_trainer next     fills its slot with bytes 0x3d, says "filled", pushes it when it has read a line, waits
 *                             for the step and prints the first and the last parameter
 *
 * With "import" behind it, of a job with slots_on: device: the slot is memory of the fake device. FAKE_DEVICE: the
 * number of the device that it uses, 0 if it is not set.
 *
 * Exit status 1: failed, with the reason on stderr. */
#include <dlfcn.h>
#include <gacc/gacc_cuda.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ELEMENTS = 1 << 16, BYTES = 4 * ELEMENTS };

static void check(gacc_status st, const char *text)
{
	if (st == GACC_OK)
		return;
	fprintf(stderr, "device_trainer: %s\n", *text ? text : gacc_strerror(st));
	exit(1);
}

static void *symbol(const char *name)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW), *found = library ? dlsym(library, name) : NULL;
	if (found)
		return found;
	fprintf(stderr, "device_trainer: %s\n", dlerror());
	exit(1);
}

/* Calls a function of the driver, which has the type of `call`. */
#define DRIVER(name, type, ...)                                                                                        \
	do {                                                                                                           \
		int(*call) type;                                                                                       \
		*(void **)&call = symbol(name);                                                                        \
		int code = call(__VA_ARGS__);                                                                          \
		if (code) {                                                                                            \
			fprintf(stderr, "device_trainer: %s: CUDA error %d\n", name, code);                            \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

static gacc_cuda_stream stream;

static void open_device(void)
{
	const char *number = getenv("FAKE_DEVICE");
	void *context;
	DRIVER("cuInit", (unsigned), 0);
	DRIVER("cuDevicePrimaryCtxRetain", (void **, int), &context, number ? atoi(number) : 0);
	DRIVER("cuCtxSetCurrent", (void *), context);
	DRIVER("cuStreamCreate", (gacc_cuda_stream *, unsigned), &stream, 1);
}

static void set(gacc_cuda_memory at, unsigned char byte)
{
	DRIVER("cuMemsetD8Async", (gacc_cuda_memory, unsigned char, size_t, gacc_cuda_stream), at, byte, BYTES, stream);
}

static void queue_copy(gacc_job *job)
{
	gacc_cuda_memory grads;
	void *slot;
	open_device();
	DRIVER("cuMemAlloc_v2", (gacc_cuda_memory *, size_t), &grads, BYTES);
	check(gacc_cuda_register(job, NULL), gacc_last_error(job));
	check(gacc_grad_buffer(job, &slot, NULL), gacc_last_error(job));
	set(grads, 0x3e);
	check(gacc_cuda_copy_gradient(job, stream, 0, grads, BYTES), gacc_last_error(job));
}

static void fill(void *slot, int imports)
{
	if (!imports) {
		memset(slot, 0x3d, BYTES);
		return;
	}
	set((gacc_cuda_memory)(size_t)slot, 0x3d);
	DRIVER("cuStreamSynchronize", (gacc_cuda_stream), stream);
}

static void read_params(gacc_job *job, float *out, int imports)
{
	const void *base;
	check(gacc_params(job, &base, NULL), gacc_last_error(job));
	if (!imports) {
		memcpy(out, base, BYTES);
		return;
	}
	DRIVER("cuMemcpyDtoHAsync_v2", (void *, gacc_cuda_memory, size_t, gacc_cuda_stream), out,
	       (gacc_cuda_memory)(size_t)base, BYTES, stream);
	DRIVER("cuStreamSynchronize", (gacc_cuda_stream), stream);
}

static void train(gacc_job *job, int imports)
{
	gacc_push_opts opts = { .struct_size = sizeof(opts), .weight = 1 };
	static float params[ELEMENTS];
	char line[16];
	void *slot;
	gacc_step step;
	if (imports) {
		open_device();
		check(gacc_cuda_register(job, NULL), gacc_last_error(job));
	}
	check(gacc_grad_buffer(job, &slot, NULL), gacc_last_error(job));
	fill(slot, imports);
	puts("filled");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		exit(1);
	check(gacc_push(job, &opts, NULL), gacc_last_error(job));
	check(gacc_wait(job, -1, &step), gacc_last_error(job));
	read_params(job, params, imports);
	printf("%.9g %.9g\n", (double)params[0], (double)params[ELEMENTS - 1]);
}

int main(int argc, char **argv)
{
	static const gacc_tensor tensor = { .name = "w", .dtype = GACC_F32, .ndim = 1, .shape = { ELEMENTS } };
	const char *role = argc > 1 ? argv[1] : "";
	const int imports = argc > 2 && !strcmp(argv[2], "import");
	gacc_client *client;
	gacc_job *job;
	check(gacc_open(NULL, &client), "");
	check(gacc_attach(client, NULL, &job), gacc_client_error(client));
	check(gacc_register(job, &tensor, 1), gacc_last_error(job));
	check(gacc_ready(job, -1, NULL), gacc_last_error(job));
	if (!strcmp(role, "next")) {
		train(job, imports);
		gacc_detach(job, 1);
	} else {
		queue_copy(job);
		if (!strcmp(role, "late"))
			for (raise(SIGUSR1);;)
				pause();
		gacc_detach(job, 0);
	}
	gacc_close(client);
	return 0;
}
