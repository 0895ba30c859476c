/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer whose gradients are on an NVIDIA GPU: each goes to a slot as the device has it,
 * and the daemon updates the parameters in host memory.
 *
 *     gaccctl run -n 1 --micro-size 1 --steps 20 --set accumulate=none --set optimizer.type=sgd --set optimizer.lr=0.5
 *             --set init=[{pattern: '*', type: zeros}] -- ./offload
 *
 * With device=cuda, slots_on=device and without accumulate=none the daemon, too, works on the GPU, and nothing crosses
 * the bus: the program is the same.
 *
 * The driver's interface alone (libcuda.so.1, found by dlopen), and no kernel of its own: the "gradient" of step n is
 * what cuMemsetD8Async makes of it, so that the last line is the same everywhere. A real trainer enqueues its forward
 * and backward in `stream` instead.
 */
#include <dlfcn.h>
#include <gacc/gacc_cuda.h>
#include <stdio.h>
#include <stdlib.h>

enum { ELEMENTS = 1 << 20, BYTES = 4 * ELEMENTS };

/* The functions of cuda.h that this program calls; a program that has the toolkit includes that instead. */
static int (*init)(unsigned);
static int (*retain)(void **context, int device), (*set_current)(void *context);
static int (*create_stream)(gacc_cuda_stream *, unsigned), (*alloc)(gacc_cuda_memory *, size_t);
static int (*set_bytes)(gacc_cuda_memory, unsigned char, size_t, gacc_cuda_stream);

static void *symbol(const char *name)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW), *found = library ? dlsym(library, name) : NULL;

	if (found)
		return found;
	fprintf(stderr, "offload: no NVIDIA driver: %s\n", dlerror());
	exit(2);
}

static void find_driver(void)
{
	*(void **)&init = symbol("cuInit");
	*(void **)&retain = symbol("cuDevicePrimaryCtxRetain");
	*(void **)&set_current = symbol("cuCtxSetCurrent");
	*(void **)&create_stream = symbol("cuStreamCreate");
	*(void **)&alloc = symbol("cuMemAlloc_v2");
	*(void **)&set_bytes = symbol("cuMemsetD8Async");
}

static void driver(int code, const char *what)
{
	if (!code)
		return;
	fprintf(stderr, "offload: %s: CUDA error %d\n", what, code);
	exit(1);
}

static void check(gacc_status st, const char *text)
{
	if (st == GACC_OK)
		return;
	fprintf(stderr, "offload: %s\n", *text ? text : gacc_strerror(st));
	exit(1);
}

/* One window: parameters up, gradients down, push, step. All but the last is queued. */
static int train(gacc_job *job, gacc_cuda_stream stream, gacc_cuda_memory params, gacc_cuda_memory grads)
{
	gacc_push_opts opts = { .struct_size = sizeof(opts), .weight = 1, .async = 1 };
	gacc_position at;
	gacc_step step;
	void *slot;
	gacc_status st = gacc_next(job, &at);

	if (st == GACC_EDONE)
		return 0;
	if (st != GACC_EAGAIN) {
		check(st, gacc_last_error(job));
		check(gacc_cuda_copy_params(job, stream, params, 0, BYTES), gacc_last_error(job));
		/* 0x3f800000 and its like: the bytes of small positive numbers */
		driver(set_bytes(grads, (unsigned char)(0x3c + at.window % 3), BYTES, stream), "cuMemsetD8Async");
		check(gacc_grad_buffer(job, &slot, NULL), gacc_last_error(job));
		check(gacc_cuda_copy_gradient(job, stream, 0, grads, BYTES), gacc_last_error(job));
		check(gacc_cuda_push(job, stream, &opts, NULL), gacc_last_error(job));
	}
	check(gacc_wait(job, -1, &step), gacc_last_error(job));
	return !step.job_done;
}

int main(void)
{
	static const gacc_tensor tensor = { .name = "w", .dtype = GACC_F32, .ndim = 1, .shape = { ELEMENTS } };
	gacc_cuda_memory params, grads;
	gacc_cuda_stream stream;
	gacc_client *client;
	gacc_job *job;
	float first, last;
	void *context;

	find_driver();
	driver(init(0), "cuInit");
	driver(retain(&context, 0), "cuDevicePrimaryCtxRetain");
	driver(set_current(context), "cuCtxSetCurrent");
	driver(create_stream(&stream, 1), "cuStreamCreate");
	driver(alloc(&params, BYTES), "cuMemAlloc");
	driver(alloc(&grads, BYTES), "cuMemAlloc");
	check(gacc_open(NULL, &client), "");
	check(gacc_attach(client, NULL, &job), gacc_client_error(client));
	check(gacc_register(job, &tensor, 1), gacc_last_error(job));
	check(gacc_ready(job, -1, NULL), gacc_last_error(job));
	check(gacc_cuda_register(job, NULL), gacc_last_error(job));
	while (train(job, stream, params, grads))
		;
	check(gacc_cuda_read_params(job, &first, 0, sizeof(first)), gacc_last_error(job));
	check(gacc_cuda_read_params(job, &last, BYTES - sizeof(last), sizeof(last)), gacc_last_error(job));
	printf("parameters %.9g %.9g\n", (double)first, (double)last);
	gacc_detach(job, 1);
	gacc_close(client);
	return 0;
}
